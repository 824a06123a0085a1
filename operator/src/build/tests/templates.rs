//! Tests of the user's pod template: its merge into the pods, and the problems that its containers and volumes cause.

use super::*;

#[test]
fn a_stage_may_have_a_template_of_its_own() {
    let template = json!({
        "metadata": {"labels": {"team": "speech"}},
        "spec": {
            "nodeSelector": {"gpu": "h100", "zone": "a"},
            "tolerations": [{"key": "gpu"}],
            "containers": [
                {"name": "proxy", "image": "proxy:1"},
                {"name": "trainer", "env": [{"name": "A", "value": "1"}], "resources": {"limits": {"gpu": 1, "memory": "1Gi"}},
                 "volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]},
            ],
        },
        "stages": [{
            "stage": 1,
            "metadata": {"labels": {"large": "yes"}, "annotations": {"a": "b"}},
            "spec": {
                "nodeSelector": {"gpu": "h200", "zone": null},
                "tolerations": [{"key": "large"}],
                "containers": [
                    {"name": "trainer", "env": [{"name": "A", "value": "2"}, {"name": "B"}], "resources": {"limits": {"memory": "2Gi"}},
                     "volumeMounts": [{"name": "v", "mountPath": "/b", "readOnly": true}]},
                    {"name": "watcher", "image": "watcher:1"},
                ],
            },
        }, {"stage": 7, "spec": {"nodeSelector": {"gpu": "none"}}}],
    });
    let attempt = attempt(template);
    let [common, own] = [0, 1].map(|stage| pod(&attempt, stage));
    assert_eq!(common["spec"]["nodeSelector"], json!({"gpu": "h100", "zone": "a"}));
    assert_eq!((&common["metadata"]["labels"]["large"], &common["spec"]["stages"]), (&Value::Null, &Value::Null));
    assert_eq!(own["spec"]["nodeSelector"], json!({"gpu": "h200"}));
    assert_eq!(own["spec"]["tolerations"], json!([{"key": "large"}]), "items without names are replaced");
    let names = |pod: &Value| -> Vec<Value> {
        pod["spec"]["containers"].as_array().unwrap().iter().map(|container| container["name"].clone()).collect()
    };
    assert_eq!((names(&common).len(), names(&own)), (2, vec![json!("proxy"), json!("trainer"), json!("watcher")]));
    let changed = trainer(&own);
    assert_eq!(changed["resources"]["limits"], json!({"gpu": 1, "memory": "2Gi"}));
    assert_eq!((&changed["env"][0]["value"], &changed["env"][1]["name"]), (&json!("2"), &json!("B")));
    assert_eq!(changed["volumeMounts"][0], json!({"name": "v", "mountPath": "/a"}));
    assert_eq!(changed["volumeMounts"][1], json!({"name": "v", "mountPath": "/b", "readOnly": true}));
    assert_eq!(changed["image"], trainer(&common)["image"]);
    let labels = &own["metadata"]["labels"];
    assert_eq!(
        (&labels["team"], &labels["large"], &labels["stagecoach.dev/stage"]),
        (&json!("speech"), &json!("yes"), &json!("1"))
    );
    assert_eq!(own["metadata"]["annotations"]["a"], "b");
}

#[test]
fn fields_of_the_pod_template_are_kept() {
    let template = json!({
        "metadata": {"labels": {"team": "speech", "stagecoach.dev/attempt": "99"}, "annotations": {"a": "b"}},
        "spec": {
            "terminationGracePeriodSeconds": 7,
            "nodeSelector": {"gpu": "h100"},
            "fieldOfANewerKubernetes": {"maxUnits": 1},
            "securityContext": {"runAsUser": 1000},
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "containers": [
                {"name": "proxy", "image": "proxy:1"},
                {"name": "trainer", "image": "mine:2", "env": [{"name": "RUST_LOG", "value": "debug"}],
                 "resources": {"limits": {"nvidia.com/gpu": 1}}, "securityContext": {"readOnlyRootFilesystem": false}},
            ],
        },
    });
    let pod = pod(&attempt(template), 0);
    let (spec, trainer) = (&pod["spec"], trainer(&pod));
    assert_eq!(spec["fieldOfANewerKubernetes"], json!({"maxUnits": 1}));
    assert_eq!((&spec["terminationGracePeriodSeconds"], &spec["nodeSelector"]["gpu"]), (&json!(7), &json!("h100")));
    assert_eq!(
        (&spec["securityContext"]["runAsUser"], &spec["securityContext"]["runAsGroup"]),
        (&json!(1000), &json!(65532))
    );
    assert_eq!((&trainer["image"], &trainer["resources"]["limits"]["nvidia.com/gpu"]), (&json!("mine:2"), &json!(1)));
    assert_eq!(
        (&trainer["env"][0]["name"], &trainer["securityContext"]["readOnlyRootFilesystem"]),
        (&json!("RUST_LOG"), &json!(false))
    );
    assert_eq!(spec["containers"].as_array().unwrap().len(), 2);
    assert_eq!(spec["containers"][0], json!({"name": "proxy", "image": "proxy:1"}), "a sidecar is left as it is");
    let volumes: Vec<_> = spec["volumes"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(volumes, ["scratch", "stagecoach-config", "workspace"]);
    // the operator's labels take precedence, because the operator selects pods by them
    assert_eq!(
        (&pod["metadata"]["labels"]["stagecoach.dev/attempt"], &pod["metadata"]["labels"]["team"]),
        (&json!("3"), &json!("speech"))
    );
    assert_eq!(pod["metadata"]["annotations"]["a"], "b");
    // autoscalers do not move the pod, unless the template allows it
    let safe = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    assert_eq!(pod["metadata"]["annotations"][safe], "false");
    let evictable = attempt(json!({"metadata": {"annotations": {safe: "true"}}}));
    assert_eq!(
        crate::build::pod(&reference(), &evictable, PodRole::Spare(0)).metadata.annotations.unwrap()[safe],
        "true"
    );
}

#[test]
fn pods_keep_off_the_nodes_that_are_excluded_besides_what_their_template_demands() {
    let is_not = |node| json!({"key": "metadata.name", "operator": "NotIn", "values": [node]});
    let terms = |template: Value| {
        let excluded_nodes = ["node-a".to_owned(), "node-b".to_owned()].into();
        let pod = pod(&AttemptTemplate { excluded_nodes, ..attempt(template) }, 1);
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            .clone()
    };
    let both = json!([is_not("node-a"), is_not("node-b")]);
    assert_eq!(terms(json!({})), json!([{"matchFields": both}]));
    let zones = |zone: &str| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
    let required = json!({"nodeSelectorTerms": [zones("a"), zones("b")]});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
    let merged = ["a", "b"].map(|zone| {
        let mut term = zones(zone);
        term["matchFields"] = both.clone();
        term
    });
    assert_eq!(terms(json!({"spec": {"affinity": affinity}})), json!(merged));
    // the affinity of a stage's override is merged too
    assert_eq!(terms(json!({"stages": [{"stage": 1, "spec": {"affinity": affinity}}]})), json!(merged));
    assert_eq!(pod(&attempt(json!({})), 1)["spec"]["affinity"], Value::Null);
}

#[test]
fn a_job_without_a_volume_is_invalid_in_a_cluster() {
    let mut job = job(json!({}));
    assert_eq!(missing_volume(&job.spec), None);
    job.spec.storage.persistent_volume_claim = None;
    assert!(missing_volume(&job.spec).unwrap().starts_with("spec.storage.persistentVolumeClaim is missing"));
    let mounts = json!([{"name": "mine", "mountPath": "/workspace"}]);
    let fields = json!({"spec": {"containers": [{"name": "trainer", "volumeMounts": mounts}]}});
    job.spec.template = Some(PodTemplate(fields.as_object().cloned().unwrap()));
    assert_eq!(missing_volume(&job.spec), None, "the template has its own");
    job.spec.template = None;
    job.spec.trainer.kind = TrainerType::Custom;
    assert_eq!(missing_volume(&job.spec), None, "a custom trainer may need no volume");
}

#[test]
fn a_job_for_gpus_asks_for_them() {
    let missing = |device: Device, template: Value| {
        let mut job = job(template);
        job.spec.training.as_mut().unwrap().device = device;
        missing_gpu(&job.spec)
    };
    let container =
        |name: &str, resources: Value| json!({"spec": {"containers": [{"name": name, "resources": resources}]}});
    let reported = missing(Device::Cuda, container("trainer", json!({"limits": {"memory": "4Gi"}}))).unwrap();
    assert!(
        reported.starts_with("spec.training.device is Cuda, and no container trainer of spec.template asks"),
        "{reported}"
    );
    assert!(missing(Device::Cuda, json!({})).is_some());
    let beside = container("beside", json!({"limits": {"nvidia.com/gpu": 1}}));
    assert!(missing(Device::Cuda, beside).is_some(), "a GPU of another container does not count");
    for resources in [
        json!({"limits": {"nvidia.com/gpu": 1}}),
        json!({"requests": {"nvidia.com/mig-3g.40gb": 1}}),
        json!({"claims": [{"name": "gpu"}]}),
    ] {
        assert_eq!(missing(Device::Cuda, container("trainer", resources.clone())), None, "{resources}");
        let mut stage = container("trainer", resources);
        stage["stage"] = 1.into();
        assert_eq!(
            missing(Device::Cuda, json!({"stages": [stage]})),
            None,
            "a GPU in the override of one stage suffices"
        );
    }
    assert_eq!(missing(Device::Auto, json!({})), None);
}

#[test]
fn more_gpus_than_a_stage_uses_are_reported() {
    let surplus = |device: Device, trainer: TrainerType, limits: Value, stage_limits: Value| {
        let pod = |limits| json!({"containers": [{"name": "trainer", "resources": {"limits": limits}}]});
        let mut job = job(json!({"spec": pod(limits), "stages": [{"stage": 1, "spec": pod(stage_limits)}]}));
        job.spec.training.as_mut().unwrap().device = device;
        job.spec.trainer.kind = trainer;
        surplus_gpus(&job.spec)
    };
    let (one, two) = (json!({"nvidia.com/gpu": 1}), json!({"nvidia.com/gpu": "2"}));
    for limits in [[&two, &one], [&one, &two]] {
        let [limits, stage_limits] = limits.map(Value::clone);
        let reported = surplus(Device::Auto, TrainerType::BuiltIn, limits, stage_limits).unwrap();
        assert!(
            reported.starts_with("container trainer of spec.template asks for 2 GPUs (nvidia.com/gpu)"),
            "{reported}"
        );
    }
    assert_eq!(surplus(Device::Cuda, TrainerType::BuiltIn, one.clone(), json!({"memory": "2Gi"})), None);
    assert_eq!(
        surplus(Device::Cpu, TrainerType::BuiltIn, two.clone(), one.clone()),
        None,
        "a stage on the CPU uses none"
    );
    assert_eq!(surplus(Device::Auto, TrainerType::Custom, two, one), None, "another trainer may use them all");
}
