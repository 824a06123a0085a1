//! Helm refuses wrong values before it installs anything, with a message that names the field.

use serde_json::{Value, json};
use stagecoach_cluster::chart::try_render;

#[test]
fn wrong_values_are_refused() {
    let rows = [
        // typos, at every level
        (json!({"replica": 2}), "'replica' not allowed"),
        (json!({"crd": {"instal": true}}), "'instal' not allowed"),
        (json!({"image": {"digset": ""}}), "'digset' not allowed"),
        (json!({"trainerImage": {"pullPolicy": "Always"}}), "'pullPolicy' not allowed"),
        (json!({"serviceAccount": {"annotation": {}}}), "'annotation' not allowed"),
        (json!({"rbac": {"enabled": true}}), "'enabled' not allowed"),
        (json!({"networkPolicy": {"apiserver": {}}}), "'apiserver' not allowed"),
        (json!({"networkPolicy": {"apiServer": {"port": 443}}}), "'port' not allowed"),
        (json!({"monitoring": {"serviceMonitor": {}}}), "'serviceMonitor' not allowed"),
        (json!({"monitoring": {"podMonitor": {"namespace": "a"}}}), "'namespace' not allowed"),
        (json!({"monitoring": {"prometheusRule": {"interval": "1m"}}}), "'interval' not allowed"),
        (json!({"monitoring": {"dashboard": {"label": {}}}}), "'label' not allowed"),
        (json!({"podDisruptionBudget": {"minAvailable": 1}}), "'minAvailable' not allowed"),
        (json!({"resources": {"limit": {}}}), "'limit' not allowed"),
        (json!({"affinity": {"nodeaffinity": {}}}), "'nodeaffinity' not allowed"),
        (json!({"tolerations": [{"key": "a", "effects": "NoSchedule"}]}), "'effects' not allowed"),
        (json!({"env": [{"name": "A", "value": "b", "valueFrom": {}}]}), "'valueFrom' not allowed"),
        (json!({"imagePullSecrets": [{"secretName": "a"}]}), "'secretName' not allowed"),
        (json!({"scrapers": [{"podSelectors": {}}]}), "'podSelectors' not allowed"),
        (json!({"scrapers": [{"podSelector": {"app": "prometheus"}}]}), "'app' not allowed"),
        (json!({"scrapers": [{"ipBlock": {"cidr": "10.0.0.0/8", "exept": []}}]}), "'exept' not allowed"),
        // values of the wrong type
        (json!({"replicas": "2"}), "/replicas': got string, want integer"),
        (json!({"leaderElection": "yes"}), "/leaderElection': got string, want boolean"),
        (json!({"watchNamespaces": "team-a"}), "/watchNamespaces': got string, want array"),
        (json!({"scrapers": {"podSelector": {}}}), "/scrapers': got object, want array"),
        (json!({"nodeSelector": {"gpu": true}}), "/nodeSelector/gpu': got boolean, want string"),
        (json!({"podAnnotations": {"a": 1}}), "/podAnnotations/a': got number, want string"),
        (json!({"imagePullSecrets": ["registry"]}), "/imagePullSecrets/0': got string, want object"),
        // values out of bounds
        (json!({"replicas": 0}), "/replicas': minimum: got 0"),
        (json!({"workers": 0}), "/workers': minimum: got 0"),
        (json!({"workers": 257}), "/workers': maximum: got 257"),
        (json!({"logFormat": "xml"}), "/logFormat': value must be one of"),
        (json!({"logLevel": ""}), "/logLevel': minLength"),
        (json!({"image": {"pullPolicy": "Sometimes"}}), "/image/pullPolicy': value must be one of"),
        (json!({"image": {"repository": ""}}), "/image/repository': minLength"),
        (json!({"image": {"tag": "a b"}}), "/image/tag': 'a b' does not match"),
        (json!({"image": {"digest": "sha256:abc"}}), "/image/digest': 'sha256:abc' does not match"),
        (json!({"fullnameOverride": "Trains"}), "/fullnameOverride': 'Trains' does not match"),
        (json!({"watchNamespaces": ["Team"]}), "/watchNamespaces/0': 'Team' does not match"),
        (json!({"watchNamespaces": [""]}), "/watchNamespaces/0': minLength"),
        (json!({"watchNamespaces": ["a", "a"]}), "/watchNamespaces': items at 0 and 1 are equal"),
        (json!({"networkPolicy": {"apiServer": {"ports": []}}}), "/networkPolicy/apiServer/ports': minItems"),
        (json!({"networkPolicy": {"apiServer": {"ports": [0]}}}), "/networkPolicy/apiServer/ports/0': minimum"),
        (
            json!({"monitoring": {"podMonitor": {"interval": "30"}}}),
            "/monitoring/podMonitor/interval': '30' does not match",
        ),
        (json!({"tolerations": [{"effect": "Never"}]}), "/tolerations/0/effect': value must be one of"),
        // an empty peer would allow everyone, in a policy that must exclude nearly everyone
        (json!({"scrapers": [{}]}), "/scrapers/0': minProperties"),
        // two operators would both act as the leader
        (json!({"leaderElection": false}), "/leaderElection': value must be true"),
        (json!({"replicas": 3, "leaderElection": false}), "/leaderElection': value must be true"),
        (json!({"trainerImage": {"repository": ""}}), "/trainerImage/repository': minLength"),
    ];
    let check = |(values, words): &(Value, &str)| match try_render("stagecoach-system", values) {
        Ok(_) => Some(format!("{values}: expected `{words}`, but it was rendered")),
        Err(error) if error.contains(words) => None,
        Err(error) => Some(format!("{values}: expected `{words}`, found `{error}`")),
    };
    let wrong: Vec<String> = rows.iter().filter_map(check).collect();
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}

/// Helm passes `global` to a subchart, and null removes a default. The chart must accept both.
#[test]
fn unusual_values_are_taken() {
    for values in
        [json!({"global": {"anything": 1}}), json!({"resources": {"limits": null}}), json!({"affinity": null})]
    {
        try_render("stagecoach-system", &values).unwrap_or_else(|error| panic!("{values}: {error}"));
    }
}
