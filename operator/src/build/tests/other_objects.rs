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
