//! Tests of the pods: the user's template and the additions of the operator.

use super::*;

#[test]
fn a_pod_gets_the_contract_and_restricted_security() {
    let pod = pod(&attempt(json!({})), 1);
    assert_eq!(pod["metadata"]["name"], "shakespeare-1-3");
    let reference = &pod["metadata"]["ownerReferences"][0];
    assert_eq!((&reference["uid"], &reference["controller"]), (&json!("u-1"), &json!(true)));
    assert_eq!(
        (&pod["spec"]["restartPolicy"], &pod["spec"]["automountServiceAccountToken"]),
        (&json!("Never"), &json!(false))
    );
    let trainer = trainer(&pod);
    assert_eq!((&trainer["image"], &trainer["args"]), (&json!("example.com/trainer@sha256:00"), &json!(["stage"])));
    let read = environment(&pod);
    assert_eq!((read.rank, read.mesh, read.attempt), (1, Mesh::pipeline(3), 3));
    assert_eq!((read.master_addr.as_str(), read.job_uid.as_str()), ("shakespeare", "u-1"));
    let security = (&pod["spec"]["securityContext"], &trainer["securityContext"]);
    assert_eq!(
        (&security.0["runAsNonRoot"], &security.0["seccompProfile"]["type"]),
        (&json!(true), &json!("RuntimeDefault"))
    );
    assert_eq!(
        (&security.1["allowPrivilegeEscalation"], &security.1["capabilities"]["drop"]),
        (&json!(false), &json!(["ALL"]))
    );
}

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
    // the operator's labels take precedence: pods are selected by them
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
    // the terms of a stage with its own affinity are merged too
    assert_eq!(terms(json!({"stages": [{"stage": 1, "spec": {"affinity": affinity}}]})), json!(merged));
    assert_eq!(pod(&attempt(json!({})), 1)["spec"]["affinity"], Value::Null);
}

#[test]
fn a_custom_trainer_gets_only_the_environment() {
    let mut job = custom_job();
    job.spec.storage.persistent_volume_claim = None;
    let attempt = AttemptTemplate::new(
        &job,
        Attempt { number: 1, mesh: Mesh::pipeline(2), revision: 7, admission: 0, admitted_replicas: None },
        "unused",
        None,
    )
    .unwrap();
    let pod = pod(&attempt, 1);
    let trainer = trainer(&pod);
    assert_eq!((&trainer["command"], trainer.get("args")), (&json!(["python", "train.py"]), None));
    assert_eq!(
        (&trainer["volumeMounts"], &pod["spec"]["volumes"], trainer.get("readinessProbe")),
        (&json!([]), &json!([]), None)
    );
    assert!(trainer["env"].as_array().unwrap().iter().any(|v| v["name"] == "WORLD_SIZE" && v["value"] == "2"));
}

/// Two replicas of three stages.
#[test]
fn the_pods_of_replicas_are_named_and_labelled_by_replica_and_stage() {
    let mesh = Mesh { stages: 3, data_parallel: 2 };
    let change = json!({"stages": [{"stage": 1, "spec": {"nodeSelector": {"pool": "large"}}}]});
    let attempt = AttemptTemplate { mesh, gang_size: 4, pod_group_api: Some(PodGroupApi::Volcano), ..attempt(change) };
    let pods: Vec<Value> = (0..mesh.ranks()).map(|rank| pod(&attempt, rank)).collect();
    let names: Vec<_> = pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
    let expected = ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"].map(|at| format!("shakespeare-{at}-3"));
    assert_eq!(names, expected);
    let again = PodRole::Stage(InstanceId { rank: 4, incarnation: 2 });
    assert_eq!(pod_as(&attempt, again)["metadata"]["name"], "shakespeare-1-1-3-2");
    for (rank, pod) in (0..).zip(&pods) {
        let labels = &pod["metadata"]["labels"];
        let label = |name: &str| labels[format!("stagecoach.dev/{name}")].as_str().unwrap().parse::<u32>().unwrap();
        assert_eq!([label("replica"), label("stage"), label("rank")], [rank / 3, rank % 3, rank]);
        let made_as = PodRole::from_labels(&serde_json::from_value(labels.clone()).unwrap());
        assert_eq!(made_as, Some(PodRole::Stage(InstanceId { rank, incarnation: 0 })));
        let read = environment(pod);
        assert_eq!((read.rank, read.mesh), (rank, mesh));
        assert_eq!(pod["spec"]["nodeSelector"]["pool"] == "large", rank % 3 == 1, "each replica has such a stage");
    }
    let objects = build(&reference(), &attempt, None);
    assert_eq!(to_value(&objects.pod_group)["spec"]["minMember"], 4);
    let selector = to_value(&objects.service)["spec"]["selector"].clone();
    let picked = |pod: &&Value| {
        selector.as_object().unwrap().iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value)
    };
    let picked: Vec<_> = pods.iter().filter(picked).map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(picked, ["shakespeare-0-0-3"]);
    let stored = read(&config_map(&attempt)).unwrap();
    assert_eq!(stored, attempt);
}

/// Two replicas of three stages, and a spare.
#[test]
fn pods_that_read_the_corpus_get_the_variables_of_the_secret() {
    let own = json!({"configMapRef": {"name": "proxy"}});
    let mut job = job(json!({"spec": {"containers": [{"name": "trainer", "envFrom": [own]}, {"name": "sidecar"}]}}));
    let mesh = Mesh { stages: 3, data_parallel: 2 };
    let variables = |job: &PipelineJob| -> Vec<Value> {
        let attempt = AttemptTemplate::new(job, Attempt { mesh, ..NUMBER_3 }, "a", None).unwrap();
        let pods = (0..6).map(|rank| pod(&attempt, rank)).chain([pod_as(&attempt, PodRole::Spare(0))]);
        pods.map(|pod| {
            assert_eq!(pod["spec"]["containers"][1], json!({"name": "sidecar"}));
            trainer(&pod)["envFrom"].clone()
        })
        .collect()
    };
    let without = json!([own]);
    assert_eq!(variables(&job), vec![without.clone(); 7]);
    let data = job.spec.data.as_mut().unwrap();
    data.credentials = Some(CredentialsSpec { secret_name: "hub".into() });
    let with = json!([own, {"secretRef": {"name": "hub"}}]);
    let [first, other] = [&with, &without];
    assert_eq!(variables(&job).iter().collect::<Vec<_>>(), [first, other, other, first, other, other, first]);
}

/// The differences between a spare's pod and a stage's, with a PodGroup of each API.
#[test]
fn a_spare_differs_from_a_stage_by_its_identity_and_is_in_no_gang() {
    let template = json!({
        "spec": {"nodeSelector": {"gpu": "h100"}},
        "stages": [{"stage": 0, "spec": {"nodeSelector": {"gpu": "h200"}}}],
    });
    for api in PodGroupApi::ALL.into_iter().map(Some).chain([None]) {
        let attempt = AttemptTemplate { pod_group_api: api, ..attempt(template.clone()) };
        let [mut stage, mut spare] = [pod(&attempt, 1), pod_as(&attempt, PodRole::Spare(4))];
        assert_eq!(spare["metadata"]["name"], "shakespeare-spare-4-3");
        let read = environment(&spare);
        assert_eq!((read.spare, read.mesh, read.attempt), (Some(4), Mesh::pipeline(3), 3));
        // all other fields are the same
        stage["metadata"]["name"] = spare["metadata"]["name"].clone();
        let take = |pod: &mut Value, part: &[&str], name: &str| {
            let part = part.iter().fold(pod, |value, part| &mut value[part]);
            part.as_object_mut().unwrap().shift_remove(name)
        };
        let labels = ["metadata", "labels"];
        assert_eq!(take(&mut spare, &labels, "stagecoach.dev/spare"), Some(json!("4")));
        assert_eq!(take(&mut stage, &labels, "stagecoach.dev/stage"), Some(json!("1")));
        assert_eq!(take(&mut stage, &labels, "stagecoach.dev/incarnation"), Some(json!("0")));
        let gang = [
            take(&mut stage, &labels, "scheduling.x-k8s.io/pod-group"),
            take(&mut stage, &["metadata", "annotations"], "scheduling.k8s.io/group-name"),
            take(&mut stage, &["spec"], "schedulingGroup"),
        ];
        assert_eq!(gang.iter().flatten().count(), usize::from(api.is_some()), "{api:?}");
        let environment = |pod: &mut Value| pod["spec"]["containers"][0]["env"].take().as_array().unwrap().clone();
        let (of_stage, of_spare) = (environment(&mut stage), environment(&mut spare));
        let only = |these: &[Value], others: &[Value]| -> Vec<Value> {
            these.iter().filter(|one| !others.contains(one)).map(|one| one["name"].clone()).collect()
        };
        assert_eq!(only(&of_spare, &of_stage), ["STAGECOACH_SPARE"]);
        assert_eq!(
            only(&of_stage, &of_spare),
            ["RANK", "STAGECOACH_INCARNATION", "STAGECOACH_STAGE", "STAGECOACH_REPLICA"]
        );
        assert_eq!(spare, stage, "{api:?}");
    }
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
    assert_eq!(missing_volume(&job.spec), None, "a trainer of one's own may need none");
}

#[test]
fn a_job_for_gpus_asks_for_them() {
    let of = |device: Device, template: Value| {
        let mut job = job(template);
        job.spec.training.as_mut().unwrap().device = device;
        missing_gpu(&job.spec)
    };
    let container =
        |name: &str, resources: Value| json!({"spec": {"containers": [{"name": name, "resources": resources}]}});
    let reported = of(Device::Cuda, container("trainer", json!({"limits": {"memory": "4Gi"}}))).unwrap();
    assert!(
        reported.starts_with("spec.training.device is Cuda, and no container trainer of spec.template asks"),
        "{reported}"
    );
    assert!(of(Device::Cuda, json!({})).is_some());
    let beside = container("beside", json!({"limits": {"nvidia.com/gpu": 1}}));
    assert!(of(Device::Cuda, beside).is_some(), "another container's is none of a stage's");
    for resources in [
        json!({"limits": {"nvidia.com/gpu": 1}}),
        json!({"requests": {"nvidia.com/mig-3g.40gb": 1}}),
        json!({"claims": [{"name": "gpu"}]}),
    ] {
        assert_eq!(of(Device::Cuda, container("trainer", resources.clone())), None, "{resources}");
        let mut stage = container("trainer", resources);
        stage["stage"] = 1.into();
        assert_eq!(of(Device::Cuda, json!({"stages": [stage]})), None, "a stage without one says so itself");
    }
    assert_eq!(of(Device::Auto, json!({})), None);
}

#[test]
fn more_gpus_than_a_stage_uses_are_reported() {
    let of = |device: Device, trainer: TrainerType, limits: Value, stage_limits: Value| {
        let pod = |limits| json!({"containers": [{"name": "trainer", "resources": {"limits": limits}}]});
        let mut job = job(json!({"spec": pod(limits), "stages": [{"stage": 1, "spec": pod(stage_limits)}]}));
        job.spec.training.as_mut().unwrap().device = device;
        job.spec.trainer.kind = trainer;
        surplus_gpus(&job.spec)
    };
    let (one, two) = (json!({"nvidia.com/gpu": 1}), json!({"nvidia.com/gpu": "2"}));
    for limits in [[&two, &one], [&one, &two]] {
        let [limits, stage_limits] = limits.map(Value::clone);
        let reported = of(Device::Auto, TrainerType::BuiltIn, limits, stage_limits).unwrap();
        assert!(
            reported.starts_with("container trainer of spec.template asks for 2 GPUs (nvidia.com/gpu)"),
            "{reported}"
        );
    }
    assert_eq!(of(Device::Cuda, TrainerType::BuiltIn, one.clone(), json!({"memory": "2Gi"})), None);
    assert_eq!(of(Device::Cpu, TrainerType::BuiltIn, two.clone(), one.clone()), None, "a stage on the CPU uses none");
    assert_eq!(of(Device::Auto, TrainerType::Custom, two, one), None, "another trainer may use them all");
}
