//! Tests of the Workloads of different jobs. `workloads.json` has each field that the operator sends to the API server.
//! The tests of Kueue's minor versions send the same file to Kueue's webhooks.

use serde_json::{Map, Value, json};

use super::{ADMITTED, demand_of, job, workload};
use crate::build::kueue::{Demand, PriorityClassName};

/// Fields of the spec of a job: paths and values.
type Fields = &'static [(&'static str, &'static str)];
type OwnedFields = Vec<(&'static str, String)>;

const REPLICAS: [(&str, &str); 3] = [("stages", "2"), ("dataParallel", "4"), ("training.gradientBlocks", "4")];

/// Returns for each job its name, whether the job is elastic, and the fields of its spec.
fn jobs() -> Vec<(&'static str, bool, OwnedFields)> {
    let owned =
        |fields: Fields| -> OwnedFields { fields.iter().map(|(path, value)| (*path, (*value).to_owned())).collect() };
    let template = |fields: Fields, template: Value| {
        let mut fields = owned(fields);
        fields.push(("template", template.to_string()));
        fields
    };
    let topology = |fields: Fields, annotations: &[(&str, &str)]| {
        let annotations: Map<String, Value> =
            annotations.iter().map(|(key, value)| (format!("kueue.x-k8s.io/podset-{key}"), json!(value))).collect();
        template(fields, json!({"metadata": {"annotations": annotations}}))
    };
    let on = |stage: u32| json!({"stage": stage, "spec": {"nodeSelector": {"gpu": format!("kind-{stage}")}}});
    let gpu = json!({"resources": {"requests": {"cpu": 8, "memory": "64Gi"}, "limits": {"nvidia.com/gpu": 1}}});
    let mut trainer = gpu.clone();
    trainer["name"] = "trainer".into();
    let whole = json!({"spec": {
        "priorityClassName": "high",
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [trainer, {"name": "logger", "image": "logger:1", "command": ["log"]}],
        "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "gpus"}],
    }});
    let [stages, replicas]: [Fields; 2] = [&[("stages", "4")], &REPLICAS];
    let required = "required-topology";
    vec![
        ("stages", false, owned(stages)),
        ("elastic", true, owned(stages)),
        ("replicas", false, owned(replicas)),
        ("fewer replicas", false, [owned(replicas), owned(&[("restart.minDataParallel", "3")])].concat()),
        ("elastic with fewer replicas", true, [owned(replicas), owned(&[("restart.minDataParallel", "3")])].concat()),
        ("spares", false, owned(&[("stages", "4"), ("spares", "2")])),
        (
            "overrides and spares",
            false,
            template(&[("stages", "4"), ("spares", "1")], json!({"stages": [on(1), on(3)]})),
        ),
        (
            "eight kinds of pods",
            false,
            template(&[("stages", "8")], json!({"stages": (0..8).map(on).collect::<Vec<_>>()})),
        ),
        ("a template with all fields", false, template(stages, whole)),
        ("one rack", false, topology(stages, &[(required, "rack")])),
        ("one rack if possible", false, topology(stages, &[("preferred-topology", "rack")])),
        ("any rack", false, topology(stages, &[("unconstrained-topology", "true")])),
        ("a rack for each replica", false, topology(replicas, &[("slice-required-topology", "rack")])),
        (
            "a host for two stages in one rack, and spares",
            false,
            [
                topology(
                    &[("stages", "4")],
                    &[(required, "rack"), ("slice-required-topology", "host"), ("slice-size", "2")],
                ),
                owned(&[("spares", "1")]),
            ]
            .concat(),
        ),
        ("an elastic job in one rack", true, topology(stages, &[(required, "rack")])),
    ]
}

fn demand(elastic: bool, fields: &[(&'static str, String)]) -> Demand {
    let fields: Vec<(&str, &str)> = fields.iter().map(|(path, value)| (*path, value.as_str())).collect();
    demand_of(elastic, &fields)
}

#[test]
fn the_workloads_equal_the_golden_ones() {
    let mut found: Map<String, Value> = jobs()
        .iter()
        .map(|(name, elastic, fields)| {
            ((*name).to_owned(), demand(*elastic, fields).workload(&job(), 1, 0, None, "example.com/trainer:1"))
        })
        .collect();
    let two = demand_of(true, &[("stages", "2")]);
    let four = demand_of(true, &[("stages", "4")]);
    let slice = four.workload(&job(), 2, 0, Some(&workload(&two, 1, &ADMITTED, Some(2))), "example.com/trainer:1");
    found.insert("a slice".into(), slice);
    let class = Some(PriorityClassName::Workload("high".into()));
    let with_class = Demand { priority_class: class, ..demand_of(false, &[("stages", "2")]) };
    found.insert("a class of Kueue".into(), with_class.workload(&job(), 1, 1000, None, "example.com/trainer:1"));
    let found = Value::Object(found);
    let golden: Value = serde_json::from_str(include_str!("workloads.json")).unwrap();
    for (case, object) in golden.as_object().unwrap() {
        assert_eq!(found[case], *object, "{case}");
    }
    assert_eq!(found.as_object().map(Map::len), golden.as_object().map(Map::len));
}
