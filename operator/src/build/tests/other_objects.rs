//! Tests of the objects of an attempt other than its pods and its ConfigMap.

use super::*;

/// The tests with an API server check the resulting PodGroups against the real CRDs.
#[test]
fn only_volcanos_pod_group_has_queue_and_priority() {
    let template = json!({"metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "research"}},
        "spec": {"priorityClassName": "high"}});
    let spec = |api| {
        let attempt = AttemptTemplate { pod_group_api: Some(api), ..attempt(template.clone()) };
        to_value(&build(&reference(), &attempt, None).pod_group)["spec"].clone()
    };
    let volcano = json!({"minMember": 3, "queue": "research", "priorityClassName": "high"});
    assert_eq!(spec(PodGroupApi::Volcano), volcano);
    assert_eq!(spec(PodGroupApi::Coscheduling), json!({"minMember": 3}));
}

#[test]
fn the_service_selects_stage_0_of_one_attempt_before_it_is_ready() {
    let attempt_with = |number| AttemptTemplate { number, ..attempt(json!({})) };
    let service = to_value(&build(&reference(), &attempt_with(4), None).service);
    assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
    let selector = service["spec"]["selector"].as_object().unwrap();
    let picks = |pod: &Value| selector.iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value);
    assert!(picks(&pod(&attempt_with(4), 0)));
    assert!(!picks(&pod(&attempt_with(4), 1)) && !picks(&pod(&attempt_with(3), 0)));
}

/// Whether a policy allows a pod with these labels to connect to this port, as a network plugin would decide.
fn lets_in(policy: &Value, from: &Value, port: u64) -> bool {
    let matches = |peer: &Value| {
        let wanted = peer["podSelector"]["matchLabels"].as_object();
        wanted.is_some_and(|wanted| wanted.iter().all(|(key, value)| from[key] == *value))
    };
    policy["spec"]["ingress"].as_array().unwrap().iter().any(|rule| {
        let peers = rule["from"].as_array().unwrap().iter().any(matches);
        let ports = rule["ports"].as_array().is_none_or(|ports| ports.iter().any(|p| p["port"] == port));
        peers && ports
    })
}

#[test]
fn the_network_policy_allows_exactly_what_is_needed() {
    let operator = json!({"podSelector": {"matchLabels": {"app.kubernetes.io/name": "stagecoach-operator"}}});
    let readers = [serde_json::from_value(operator).unwrap()];
    let peers = PolicyPeers { readers: &readers, ..PolicyPeers::default() };
    let policy = to_value(&build(&reference(), &attempt(json!({})), Some(peers)).network_policy);
    let own = to_value(&labels(&reference(), Some(1)));
    let others = to_value(&labels(&JobReference { uid: "u-2".into(), ..reference() }, Some(1)));
    let reader = json!({"app.kubernetes.io/name": "stagecoach-operator"});
    for (from, port, allowed) in [
        (&own, 29500, true),
        (&own, 40001, true),
        (&others, 29500, false),
        (&others, 9090, false),
        (&reader, 9090, true),
        (&reader, 29500, false),
    ] {
        assert_eq!(lets_in(&policy, from, port), allowed, "{from} to {port}");
    }
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
}

#[test]
fn the_network_policy_allows_connections_to_the_cidrs_of_the_job() {
    let egress = |egress_cidrs: &[String]| {
        let peers = PolicyPeers { egress_cidrs, ..PolicyPeers::default() };
        to_value(&build(&reference(), &attempt(json!({})), Some(peers)).network_policy)["spec"]["egress"].clone()
    };
    let (without, with) = (egress(&[]), egress(&["0.0.0.0/0".to_owned(), "2001:db8::/32".to_owned()]));
    let added = json!({"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "2001:db8::/32"}}]});
    assert_eq!(with, json!([without[0], without[1], added]));
    assert_eq!(without.as_array().unwrap().len(), 2, "a rule without peers would allow all");
}

#[test]
fn the_jobs_network_policy_covers_a_spare() {
    let attempt = attempt(json!({}));
    let peers = PolicyPeers::default();
    let policy = to_value(&build(&reference(), &attempt, Some(peers)).network_policy);
    let labels = &pod_as(&attempt, PodRole::Spare(0))["metadata"]["labels"];
    let selector = policy["spec"]["podSelector"]["matchLabels"].as_object().unwrap();
    assert!(selector.iter().all(|(key, value)| labels[key] == *value));
    assert!(lets_in(&policy, labels, 29500));
}
