//! Evaluates NetworkPolicies as Kubernetes defines them, because the nodes of tests do not enforce NetworkPolicies.
//! These functions are pure.
//!
//! Both ends must permit a connection. The policies that select the source pod decide on its egress, and the policies
//! that select the target pod decide on its ingress. A pod that no policy selects allows every connection. A pod that
//! some policies select allows only the connections that at least one of these policies allows. Replies always pass.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value};

/// The labels of a pod or of a namespace.
pub type Labels = BTreeMap<String, String>;

/// One end of a connection.
#[derive(Clone, Debug)]
pub enum End {
    /// A pod.
    Pod(Pod),
    /// Any end that is not a pod, such as a machine of the internet or the API server. No policy restricts it.
    Outside(IpAddr),
}

/// The attributes by which policies select a pod.
#[derive(Clone, Debug)]
pub struct Pod {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.labels`
    pub labels: Labels,
    /// `status.podIP`
    pub address: IpAddr,
    /// The named ports of the pod's containers.
    pub ports: BTreeMap<String, u16>,
}

/// A protocol and a port, such as `("TCP", 443)`.
pub type Target<'a> = (&'a str, u16);

/// The policies of a cluster and the labels of its namespaces.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// The labels of each namespace. As in Kubernetes, the label `kubernetes.io/metadata.name` contains the namespace's
    /// name.
    namespaces: BTreeMap<String, Labels>,
    policies: Vec<Value>,
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Ingress,
    Egress,
}

impl Network {
    /// Adds a namespace.
    pub fn namespace(mut self, name: &str, mut labels: Labels) -> Network {
        labels.insert("kubernetes.io/metadata.name".into(), name.into());
        self.namespaces.insert(name.into(), labels);
        self
    }

    /// Adds a NetworkPolicy.
    pub fn policy(mut self, policy: Value) -> Network {
        assert_eq!(policy["kind"], "NetworkPolicy", "{policy}");
        self.policies.push(policy);
        self
    }

    /// Whether `from` may open a connection to the port `target` of `to`.
    ///
    /// # Panics
    /// If a namespace was not added, or a policy has a field that this evaluator does not support.
    pub fn allows(&self, from: &End, to: &End, target: Target<'_>) -> bool {
        self.leave(Direction::Egress, from, to, to, target) && self.leave(Direction::Ingress, to, from, to, target)
    }

    /// Whether the policies that select `own` allow it to communicate with `other` in this direction. `to` is the end
    /// that accepts the connection, at its port `target`.
    fn leave(&self, direction: Direction, own: &End, other: &End, to: &End, target: Target<'_>) -> bool {
        let End::Pod(pod) = own else { return true };
        let mut isolated = false;
        for policy in self.policies.iter().filter(|policy| isolates(policy, direction, pod)) {
            isolated = true;
            let (rules, peers) = match direction {
                Direction::Ingress => (&policy["spec"]["ingress"], "from"),
                Direction::Egress => (&policy["spec"]["egress"], "to"),
            };
            let allows = |rule: &Value| {
                let rule = fields(rule, &[peers, "ports"]);
                any(rule.get(peers), |peer| self.is_peer(peer, &pod.namespace, other))
                    && any(rule.get("ports"), |port| is_port(port, to, target))
            };
            if list(rules).iter().any(allows) {
                return true;
            }
        }
        !isolated
    }

    /// Whether `end` matches `peer`, which belongs to a rule of a policy in `namespace`.
    fn is_peer(&self, peer: &Value, namespace: &str, end: &End) -> bool {
        let peer = fields(peer, &["podSelector", "namespaceSelector", "ipBlock"]);
        if let Some(block) = peer.get("ipBlock") {
            let block = fields(block, &["cidr", "except"]);
            let address = match end {
                End::Pod(pod) => pod.address,
                End::Outside(address) => *address,
            };
            let is_in = |cidr: &Value| contains(cidr.as_str().unwrap(), address);
            return is_in(&block["cidr"]) && !block.get("except").map(list).unwrap_or_default().iter().any(is_in);
        }
        let End::Pod(pod) = end else { return false };
        let labels = |namespace: &str| {
            self.namespaces
                .get(namespace)
                .unwrap_or_else(|| panic!("the namespace {namespace} was not added to the network"))
        };
        let in_namespace = match peer.get("namespaceSelector") {
            Some(selector) => selects(selector, labels(&pod.namespace)),
            None => pod.namespace == namespace,
        };
        in_namespace && peer.get("podSelector").is_none_or(|selector| selects(selector, &pod.labels))
    }
}

/// Whether `policy` restricts one direction of `pod`.
fn isolates(policy: &Value, direction: Direction, pod: &Pod) -> bool {
    let spec = fields(&policy["spec"], &["podSelector", "policyTypes", "ingress", "egress"]);
    let applies = match (spec.get("policyTypes"), direction) {
        (Some(types), Direction::Ingress) => list(types).contains(&"Ingress".into()),
        (Some(types), Direction::Egress) => list(types).contains(&"Egress".into()),
        (None, Direction::Ingress) => true,
        (None, Direction::Egress) => spec.contains_key("egress"),
    };
    applies && policy["metadata"]["namespace"] == pod.namespace && selects(&spec["podSelector"], &pod.labels)
}

/// Whether an item of a rule's list satisfies `predicate`. An absent or empty list matches everything.
fn any(items: Option<&Value>, predicate: impl Fn(&Value) -> bool) -> bool {
    let items = items.map(list).unwrap_or_default();
    items.is_empty() || items.iter().any(predicate)
}

fn is_port(port: &Value, to: &End, (protocol, number): Target<'_>) -> bool {
    let port = fields(port, &["port", "endPort", "protocol"]);
    if port.get("protocol").and_then(Value::as_str).unwrap_or("TCP") != protocol {
        return false;
    }
    match (port.get("port"), to) {
        (None, _) => true,
        (Some(Value::String(name)), End::Pod(pod)) => pod.ports.get(name) == Some(&number),
        (Some(Value::String(_)), End::Outside(_)) => false,
        (Some(first), _) => {
            let first = first.as_u64().unwrap();
            (first..=port.get("endPort").and_then(Value::as_u64).unwrap_or(first)).contains(&number.into())
        }
    }
}

/// Whether a label selector selects `labels`. The empty selector selects all.
fn selects(selector: &Value, labels: &Labels) -> bool {
    let selector = fields(selector, &["matchLabels", "matchExpressions"]);
    let wanted = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let expressions = selector.get("matchExpressions").map(list).unwrap_or_default();
    wanted.into_iter().all(|(key, value)| labels.get(key).is_some_and(|label| value == label))
        && expressions.iter().all(|expression| {
            let expression = fields(expression, &["key", "operator", "values"]);
            let label = labels.get(expression["key"].as_str().unwrap());
            let is_listed = || label.is_some_and(|label| list(&expression["values"]).contains(&label.as_str().into()));
            match expression["operator"].as_str() {
                Some("In") => is_listed(),
                Some("NotIn") => !is_listed(),
                Some("Exists") => label.is_some(),
                Some("DoesNotExist") => label.is_none(),
                other => panic!("{other:?} is not an operator of a label selector"),
            }
        })
}

/// Whether `address` is within `cidr`.
fn contains(cidr: &str, address: IpAddr) -> bool {
    let (network, length) = cidr.split_once('/').unwrap_or_else(|| panic!("{cidr} has no length"));
    let (network, length): (IpAddr, u32) = (network.parse().unwrap(), length.parse().unwrap());
    let bits = |address| match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    let ((network, size), (address, same)) = (bits(network), bits(address));
    assert!(length <= size, "{cidr}");
    // a length of 0 would shift out all 128 bits of an IPv6 address, for which `checked_shr` returns `None`
    size == same && (network ^ address).checked_shr(size - length).unwrap_or(0) == 0
}

/// Returns the fields of an object. Panics at a field that is not in `known`: this evaluator must not ignore a field.
fn fields<'a>(object: &'a Value, known: &[&str]) -> &'a Map<String, Value> {
    let object = object.as_object().unwrap_or_else(|| panic!("{object} should be an object with some of {known:?}"));
    object.keys().for_each(|key| assert!(known.contains(&key.as_str()), "`{key}` is not one of {known:?}"));
    object
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
