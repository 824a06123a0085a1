//! Tests of the NetworkPolicy evaluator `stagecoach_cluster::flows`. The expected results follow Kubernetes' definition
//! of a NetworkPolicy.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};
use stagecoach_cluster::flows::{End, Labels, Network, Pod};

fn labels(of: &[(&str, &str)]) -> Labels {
    of.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

fn pod(namespace: &str, app: &str, address: [u8; 4]) -> End {
    let ports = BTreeMap::from([("web".into(), 8080)]);
    End::Pod(Pod { namespace: namespace.into(), labels: labels(&[("app", app)]), address: address.into(), ports })
}

fn outside(address: &str) -> End {
    End::Outside(address.parse::<IpAddr>().unwrap())
}

fn network(specs: &[Value]) -> Network {
    let network = Network::default().namespace("blue", labels(&[("tier", "a")])).namespace("red", Labels::new());
    specs.iter().fold(network, |network, spec| {
        network.policy(json!({"kind": "NetworkPolicy", "metadata": {"namespace": "blue"}, "spec": spec}))
    })
}

/// Whether `from` may connect to TCP port 80 of the pod `server` in `blue` under one ingress rule.
fn enters(rule: Value, from: &End) -> bool {
    let policy = json!({"podSelector": {"matchLabels": {"app": "server"}}, "ingress": [rule]});
    network(&[policy]).allows(from, &pod("blue", "server", [10, 0, 0, 1]), ("TCP", 80))
}

#[test]
fn a_pod_is_open_until_a_policy_selects_it_and_policies_add_up() {
    let (server, other) = (pod("blue", "server", [10, 0, 0, 1]), pod("blue", "other", [10, 0, 0, 2]));
    let (client, elsewhere) = (pod("blue", "client", [10, 0, 0, 3]), pod("red", "server", [10, 0, 0, 4]));
    let open = |specs: &[Value], from: &End, to: &End| network(specs).allows(from, to, ("TCP", 80));
    let selector = json!({"matchLabels": {"app": "server"}});
    let deny = json!({"podSelector": selector, "policyTypes": ["Ingress"]});
    let allow = |app: &str| json!({"podSelector": selector, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": app}}}]}]});

    assert!(open(&[], &client, &server));
    assert!(!open(std::slice::from_ref(&deny), &client, &server));
    // the policy restricts neither other pods, nor pods of other namespaces, nor the other direction
    assert!(open(std::slice::from_ref(&deny), &client, &other));
    assert!(open(std::slice::from_ref(&deny), &client, &elsewhere));
    assert!(open(std::slice::from_ref(&deny), &server, &client));
    assert!(open(&[deny.clone(), allow("client")], &client, &server));
    assert!(open(&[allow("other"), allow("client"), deny.clone()], &client, &server));
    assert!(!open(&[allow("other"), deny], &client, &server));
    // an empty rule allows everything, and an empty list of rules allows nothing
    assert!(open(&[json!({"podSelector": {}, "ingress": [{}]})], &client, &server));
    assert!(!open(&[json!({"podSelector": {}, "ingress": []})], &client, &server));
}

#[test]
fn both_ends_must_agree_and_the_types_have_defaults() {
    let (server, client) = (pod("blue", "server", [10, 0, 0, 1]), pod("blue", "client", [10, 0, 0, 3]));
    let open = |spec: Value| network(&[spec]).allows(&client, &server, ("TCP", 80));
    let of_client = json!({"matchLabels": {"app": "client"}});
    assert!(!open(json!({"podSelector": of_client, "policyTypes": ["Egress"]})));
    assert!(!open(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "egress": [{}]})));
    assert!(!open(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}]})));
    assert!(open(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]})));
    // a policy without policyTypes always restricts ingress, and restricts egress if it has egress rules
    assert!(open(json!({"podSelector": of_client})));
    assert!(!open(json!({"podSelector": of_client, "egress": []})));
    assert!(!open(json!({"podSelector": {"matchLabels": {"app": "server"}}, "egress": [{}]})));
}

#[test]
fn peers_are_pods_namespaces_and_addresses() {
    let (near, far) = (pod("blue", "client", [10, 0, 0, 3]), pod("red", "client", [10, 0, 0, 4]));
    let from = |peer: Value, end: &End| enters(json!({"from": [peer]}), end);
    let client = json!({"matchLabels": {"app": "client"}});
    let rows = [
        // a pod selector alone selects within the namespace of the policy
        (json!({"podSelector": client}), true, false),
        (json!({"podSelector": {}}), true, false),
        (json!({"podSelector": {"matchLabels": {"app": "client", "x": "y"}}}), false, false),
        (json!({"namespaceSelector": {}}), true, true),
        (json!({"namespaceSelector": {}, "podSelector": client}), true, true),
        (json!({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "server"}}}), false, false),
        (json!({"namespaceSelector": {"matchLabels": {"tier": "a"}}}), true, false),
        (json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "red"}}}), false, true),
        (json!({"namespaceSelector": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}}), true, false),
        (
            json!({"namespaceSelector": {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}}),
            false,
            true,
        ),
        (
            json!({"namespaceSelector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]}}),
            true,
            false,
        ),
        // `NotIn` also selects a namespace without the label
        (
            json!({"namespaceSelector": {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a"]}]}}),
            false,
            true,
        ),
        (json!({"ipBlock": {"cidr": "10.0.0.0/30"}}), true, false),
        (json!({"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.4/32"]}}), true, false),
        (json!({"ipBlock": {"cidr": "0.0.0.0/0"}}), true, true),
        (json!({"ipBlock": {"cidr": "::/0"}}), false, false),
    ];
    for (peer, is_near, is_far) in rows {
        assert_eq!((from(peer.clone(), &near), from(peer.clone(), &far)), (is_near, is_far), "{peer}");
    }
    // one matching peer is enough, and selectors never match addresses
    assert!(enters(json!({"from": [{"podSelector": {}}, {"namespaceSelector": {}}]}), &far));
    assert!(!enters(json!({"from": [{"namespaceSelector": {}}]}), &outside("203.0.113.7")));
    assert!(enters(json!({"from": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}), &outside("203.0.113.7")));
    assert!(enters(json!({"from": [{"ipBlock": {"cidr": "2001:db8::/32"}}]}), &outside("2001:db8::7")));
    assert!(!enters(json!({"from": [{"ipBlock": {"cidr": "2001:db8::/32"}}]}), &outside("2001:db9::7")));
    assert!(enters(json!({"from": [{"ipBlock": {"cidr": "::/0"}}]}), &outside("2001:db9::7")));
}

#[test]
fn ports_have_protocols_ranges_and_names() {
    let (server, client) = (pod("blue", "server", [10, 0, 0, 1]), outside("203.0.113.7"));
    let open = |ports: Value, target| {
        let policy = json!({"podSelector": {}, "ingress": [{"ports": ports}]});
        network(&[policy]).allows(&client, &server, target)
    };
    let rows = [
        (json!([]), ("UDP", 53), true),
        (json!([{"port": 80}]), ("TCP", 80), true),
        (json!([{"port": 80}]), ("UDP", 80), false),
        (json!([{"port": 80}]), ("TCP", 81), false),
        (json!([{"port": 80}, {"port": 81}]), ("TCP", 81), true),
        (json!([{"protocol": "UDP"}]), ("UDP", 9), true),
        (json!([{"protocol": "UDP"}]), ("TCP", 9), false),
        (json!([{"port": 80, "endPort": 90}]), ("TCP", 90), true),
        (json!([{"port": 80, "endPort": 90}]), ("TCP", 91), false),
        (json!([{"port": "web"}]), ("TCP", 8080), true),
        (json!([{"port": "web"}]), ("TCP", 80), false),
        (json!([{"port": "other"}]), ("TCP", 8080), false),
    ];
    for (ports, target, expected) in rows {
        assert_eq!(open(ports.clone(), target), expected, "{ports} {target:?}");
    }
}

#[test]
#[should_panic(expected = "`ports` is not one of")]
fn a_misplaced_field_does_not_go_unnoticed() {
    enters(json!({"from": [{"podSelector": {}, "ports": [{"port": 80}]}]}), &outside("203.0.113.7"));
}
