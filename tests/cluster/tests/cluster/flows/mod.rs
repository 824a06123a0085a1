//! Evaluates which connections the NetworkPolicies of the operator and of its jobs allow. The tests don't open real
//! connections, because the nodes of tests do not enforce NetworkPolicies.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stagecoach_api::contract::{HTTP_PORT, MASTER_PORT};
use stagecoach_cluster::chart;
use stagecoach_cluster::flows::{End, Labels, Network, Pod};
use stagecoach_operator::build::{JobReference, PolicyPeers, labels, network_policy};

use crate::chart::assert_namespace_precedes;

mod evaluator;

const OPEN: bool = true;
const CLOSED: bool = false;

const HTTP: (&str, u16) = ("TCP", HTTP_PORT);
const METRICS: (&str, u16) = ("TCP", 8080);
const RENDEZVOUS: (&str, u16) = ("TCP", MASTER_PORT);
/// An example of the port of a connection between two stages. The kernel chooses the actual port.
const LINK: (&str, u16) = ("TCP", 41234);
const DNS: (&str, u16) = ("UDP", 53);
const DNS_TCP: (&str, u16) = ("TCP", 53);
const HTTPS: (&str, u16) = ("TCP", 443);
const API: (&str, u16) = ("TCP", 6443);
const ETCD: (&str, u16) = ("TCP", 2379);

/// The ends of connections, by name.
type Ends = BTreeMap<&'static str, End>;

fn job(name: &str, namespace: &str) -> JobReference {
    JobReference { name: name.into(), namespace: namespace.into(), uid: format!("uid-of-{name}-in-{namespace}") }
}

fn text(labels: &Value) -> Labels {
    serde_json::from_value(labels.clone()).unwrap()
}

fn pod(namespace: &str, number: u8, labels: Labels) -> End {
    End::Pod(Pod { namespace: namespace.into(), labels, address: [10, 244, 0, number].into(), ports: BTreeMap::new() })
}

/// Returns the cluster of the tables: the jobs `a`, `b`, `open` and `reaching` in the namespace `team`, a job `a` in
/// the namespace `other`, the operator as the chart with `values` runs it, and unrelated pods.
fn cluster(values: &Value) -> (Network, Ends) {
    let objects = chart::render("stagecoach-system", values);
    let template = &chart::find(&objects, "Deployment", "stagecoach-operator")["spec"]["template"];
    let operator = text(&template["metadata"]["labels"]);
    let [readers, dns] = ["STAGECOACH_READERS", "STAGECOACH_DNS"]
        .map(|variable| serde_json::from_str::<Vec<_>>(&expanded(template, variable, "stagecoach-system")).unwrap());
    let peers = PolicyPeers { readers: &readers, dns: &dns, ..PolicyPeers::default() };

    let mut network = Network::default();
    for namespace in ["stagecoach-system", "team", "other", "monitoring", "kube-system"] {
        network = network.namespace(namespace, Labels::new());
    }
    let (a, b, namesake) = (job("a", "team"), job("b", "team"), job("a", "other"));
    // this job has no policy, so only policies of other pods can close a connection to it
    let open = job("open", "team");
    for job in [&a, &b, &namesake] {
        network = network.policy(serde_json::to_value(network_policy(job, peers)).unwrap());
    }
    let reaching = job("reaching", "team");
    let allowed = ["203.0.113.0/24".to_owned()];
    let peers = PolicyPeers { egress_cidrs: &allowed, ..peers };
    network = network.policy(serde_json::to_value(network_policy(&reaching, peers)).unwrap());
    network = network.policy(chart::find(&objects, "NetworkPolicy", "stagecoach-operator").clone());

    let stage = |job: &JobReference, stage: u32, attempt: u64, number: u8| {
        let mut labels = labels(job, Some(attempt));
        labels.insert("stagecoach.dev/stage".to_owned(), stage.to_string());
        pod(&job.namespace, number, labels)
    };
    let mut spare = labels(&a, Some(2));
    spare.insert("stagecoach.dev/spare".to_owned(), "0".to_owned());
    let prometheus = text(&json!({"app.kubernetes.io/name": "prometheus"}));
    let ends = Ends::from([
        ("a/0", stage(&a, 0, 2, 1)),
        ("a/1", stage(&a, 1, 2, 2)),
        ("a/1 of the last attempt", stage(&a, 1, 1, 3)),
        ("spare of a", pod("team", 21, spare)),
        ("b/0", stage(&b, 0, 1, 4)),
        ("namesake/0", stage(&namesake, 0, 1, 5)),
        ("open/0", stage(&open, 0, 1, 18)),
        ("reaching/0", stage(&reaching, 0, 1, 20)),
        ("operator", pod("stagecoach-system", 6, operator.clone())),
        ("operator 2", pod("stagecoach-system", 7, operator.clone())),
        ("neighbour of the operator", pod("stagecoach-system", 8, Labels::new())),
        ("impostor", pod("team", 9, operator)),
        ("notebook", pod("team", 10, text(&json!({"stagecoach.dev/job": "a"})))),
        ("prometheus", pod("monitoring", 11, prometheus.clone())),
        ("neighbour of prometheus", pod("monitoring", 12, Labels::new())),
        ("prometheus of a team", pod("other", 13, prometheus)),
        ("dns", pod("kube-system", 14, text(&json!({"k8s-app": "kube-dns"})))),
        ("neighbour of dns", pod("kube-system", 19, Labels::new())),
        ("dns on the node", End::Outside([169, 254, 20, 10].into())),
        ("api server", End::Outside([10, 0, 0, 1].into())),
        ("internet", End::Outside([203, 0, 113, 7].into())),
    ]);
    (network, ends)
}

/// Returns a variable of the operator from the Deployment, expanded as the kubelet expands it.
fn expanded(template: &Value, variable: &str, namespace: &str) -> String {
    let env = template["spec"]["containers"][0]["env"].as_array().unwrap();
    assert_namespace_precedes(env, |found| found["name"] == variable);
    let found = env.iter().find(|found| found["name"] == variable).unwrap();
    found["value"].as_str().unwrap().replace("$(POD_NAMESPACE)", namespace)
}

fn assert_flows(values: &Value, rows: &[(&str, &str, (&str, u16), bool)]) {
    let (network, ends) = cluster(values);
    let is_wrong = |(from, to, target, open): &&(&str, &str, (&str, u16), bool)| {
        network.allows(&ends[from], &ends[to], *target) != *open
    };
    let wrong: Vec<_> = rows.iter().filter(is_wrong).collect();
    assert!(wrong.is_empty(), "should be: {wrong:#?}");
}

fn scraped() -> Value {
    json!({"scrapers": [{
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
    }]})
}

#[test]
fn a_job_talks_to_itself_and_is_read_by_few() {
    assert_flows(
        &scraped(),
        &[
            // connections within the job, at every port, also from a pod of the last attempt that is still terminating
            ("a/1", "a/0", RENDEZVOUS, OPEN),
            ("a/0", "a/1", LINK, OPEN),
            ("a/1", "a/0", LINK, OPEN),
            ("a/1", "a/0", HTTP, OPEN),
            ("a/1 of the last attempt", "a/0", RENDEZVOUS, OPEN),
            ("spare of a", "a/0", RENDEZVOUS, OPEN),
            ("a/0", "spare of a", LINK, OPEN),
            ("b/0", "spare of a", RENDEZVOUS, CLOSED),
            // connections with other jobs, including one of the same name, and with pods with copied labels
            ("b/0", "a/0", RENDEZVOUS, CLOSED),
            ("b/0", "a/0", HTTP, CLOSED),
            ("a/0", "b/0", LINK, CLOSED),
            ("namesake/0", "a/0", RENDEZVOUS, CLOSED),
            ("a/0", "namesake/0", HTTP, CLOSED),
            ("notebook", "a/0", RENDEZVOUS, CLOSED),
            ("notebook", "a/0", HTTP, CLOSED),
            ("a/0", "notebook", HTTPS, CLOSED),
            // DNS over UDP and TCP, to the cluster's servers only, and no other port of these servers
            ("a/0", "dns", DNS, OPEN),
            ("a/0", "dns", DNS_TCP, OPEN),
            ("a/0", "dns on the node", DNS, OPEN),
            ("a/0", "internet", DNS, CLOSED),
            ("a/0", "notebook", DNS, CLOSED),
            ("a/0", "neighbour of dns", DNS_TCP, CLOSED),
            ("a/0", "dns", METRICS, CLOSED),
            ("dns", "a/0", HTTP, CLOSED),
            // other outgoing connections are closed
            ("a/0", "internet", HTTPS, CLOSED),
            ("a/0", "open/0", RENDEZVOUS, CLOSED),
            ("a/0", "api server", API, CLOSED),
            ("a/0", "api server", HTTPS, CLOSED),
            ("a/0", "operator", METRICS, CLOSED),
            // the job's own list of CIDRs opens outgoing connections to these addresses, and to no others
            ("reaching/0", "internet", HTTPS, OPEN),
            ("reaching/0", "internet", LINK, OPEN),
            ("reaching/0", "api server", API, CLOSED),
            ("reaching/0", "a/0", LINK, CLOSED),
            ("reaching/0", "dns", DNS, OPEN),
            ("internet", "reaching/0", HTTP, CLOSED),
            // incoming connections from outside are closed
            ("internet", "a/0", HTTP, CLOSED),
            ("api server", "a/0", RENDEZVOUS, CLOSED),
            // the operator's replicas and the scraper reach the status port, and only that port
            ("operator", "a/0", HTTP, OPEN),
            ("operator 2", "a/1", HTTP, OPEN),
            ("operator", "namesake/0", HTTP, OPEN),
            ("operator", "a/0", RENDEZVOUS, CLOSED),
            ("operator", "a/0", LINK, CLOSED),
            ("prometheus", "a/0", HTTP, OPEN),
            ("prometheus", "namesake/0", HTTP, OPEN),
            ("prometheus", "a/0", RENDEZVOUS, CLOSED),
            // a pod needs both the operator's labels and the operator's namespace to count as the operator
            ("impostor", "a/0", HTTP, CLOSED),
            ("neighbour of the operator", "a/0", HTTP, CLOSED),
            ("neighbour of prometheus", "a/0", HTTP, CLOSED),
            ("prometheus of a team", "a/0", HTTP, CLOSED),
        ],
    );
}

#[test]
fn the_operator_talks_to_the_api_and_to_trainers() {
    assert_flows(
        &scraped(),
        &[
            ("operator", "api server", API, OPEN),
            ("operator", "api server", HTTPS, OPEN),
            ("operator", "api server", ETCD, CLOSED),
            // these values do not name the API server's address, so every address is open at this port
            ("operator", "internet", HTTPS, OPEN),
            ("operator", "dns", DNS, OPEN),
            ("operator", "dns on the node", DNS_TCP, OPEN),
            ("operator", "internet", DNS, CLOSED),
            ("operator", "internet", ("TCP", 80), CLOSED),
            ("operator", "open/0", HTTP, OPEN),
            ("operator", "open/0", RENDEZVOUS, CLOSED),
            ("operator", "notebook", HTTP, CLOSED),
            ("operator", "operator 2", METRICS, CLOSED),
            ("prometheus", "operator", METRICS, OPEN),
            ("prometheus", "operator", HTTP, CLOSED),
            ("neighbour of prometheus", "operator", METRICS, CLOSED),
            ("prometheus of a team", "operator", METRICS, CLOSED),
            ("a/0", "operator", HTTP, CLOSED),
            ("notebook", "operator", METRICS, CLOSED),
            ("internet", "operator", METRICS, CLOSED),
            // the operator's policy does not restrict other pods of its namespace
            ("neighbour of the operator", "internet", HTTPS, OPEN),
        ],
    );
}

#[test]
fn only_named_peers_scrape() {
    assert_flows(
        &Value::Null,
        &[
            ("prometheus", "operator", METRICS, CLOSED),
            ("prometheus", "a/0", HTTP, CLOSED),
            ("operator", "a/0", HTTP, OPEN),
            ("operator", "namesake/0", HTTP, OPEN),
            ("a/1", "a/0", LINK, OPEN),
        ],
    );
}

#[test]
fn a_narrowed_operator_reaches_its_namespaces_and_its_api_server() {
    let api = json!({"ports": [6443], "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]});
    assert_flows(
        &json!({"watchNamespaces": ["team"], "networkPolicy": {"apiServer": api}}),
        &[
            ("operator", "a/0", HTTP, OPEN),
            ("operator", "b/0", HTTP, OPEN),
            ("operator", "namesake/0", HTTP, CLOSED),
            ("operator", "api server", API, OPEN),
            ("operator", "api server", HTTPS, CLOSED),
            ("operator", "internet", API, CLOSED),
            ("operator", "internet", HTTPS, CLOSED),
            ("operator", "dns", DNS, OPEN),
        ],
    );
}

#[test]
fn dns_is_where_the_values_say() {
    let elsewhere = json!([{"ipBlock": {"cidr": "203.0.113.7/32"}}]);
    let rows = |internet: bool, dns: bool| {
        ["a/0", "operator"].into_iter().flat_map(move |from| {
            [(from, "internet", DNS, internet), (from, "dns", DNS, dns), (from, "api server", DNS, internet && dns)]
        })
    };
    assert_flows(&json!({"dns": elsewhere}), &rows(OPEN, CLOSED).collect::<Vec<_>>());
    assert_flows(&json!({"dns": []}), &rows(OPEN, OPEN).collect::<Vec<_>>());
}

#[test]
fn the_chart_can_leave_policies_to_others() {
    let objects = chart::render("stagecoach-system", &json!({"networkPolicy": {"enabled": false}}));
    assert!(objects.iter().all(|object| object["kind"] != "NetworkPolicy"));
}
