//! Tests of the constructed objects.

use serde::Serialize;
use serde_json::{Value, json};
use stagecoach_api::contract::{Mesh, StageEnv};
use stagecoach_api::job::{Device, PersistentVolumeClaim, PodTemplate, TrainerType};
use stagecoach_api::{PipelineJob, parse_with};
use stagecoach_lifecycle::{Attempt, InstanceId};

use super::*;

const SAMPLE_JOB: &str = include_str!("../../../manifests/samples/shakespeare.yaml");

const NUMBER_3: Attempt = Attempt { number: 3, mesh: Mesh::pipeline(3), revision: 7 };

fn reference() -> JobReference {
    JobReference { name: "shakespeare".into(), namespace: "ml".into(), uid: "u-1".into() }
}

fn job(template: Value) -> PipelineJob {
    let mut job = parse_with(SAMPLE_JOB, "shakespeare.yaml", &[]).unwrap();
    let fields = template.as_object().cloned().unwrap();
    job.spec.template = Some(PodTemplate(fields));
    let claim = PersistentVolumeClaim { claim_name: "training".into() };
    job.spec.storage.persistent_volume_claim = Some(claim);
    job
}

fn attempt(template: Value) -> AttemptTemplate {
    AttemptTemplate::new(&job(template), NUMBER_3, "example.com/trainer@sha256:00", None).unwrap()
}

fn to_value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).unwrap()
}

/// What the trainer of a pod reads, where the kubelet has filled in what it alone knows.
fn environment(pod: &Value) -> StageEnv {
    let variables = trainer(pod)["env"].as_array().unwrap().iter();
    let pairs = variables
        .map(|variable| (variable["name"].as_str().unwrap(), variable["value"].as_str().unwrap_or("127.0.0.1")));
    StageEnv::from_vars(pairs).unwrap()
}

fn pod(attempt: &AttemptTemplate, stage: u32) -> Value {
    pod_as(attempt, PodRole::Stage(InstanceId { rank: stage, incarnation: 0 }))
}

fn pod_as(attempt: &AttemptTemplate, role: PodRole) -> Value {
    to_value(&super::pod(&reference(), attempt, role))
}

fn config_map(attempt: &AttemptTemplate) -> Value {
    to_value(&build(&reference(), attempt, None).config_map)
}

fn read(config_map: &Value) -> Result<AttemptTemplate, BuildError> {
    AttemptTemplate::from_config_map(&serde_json::from_value(config_map.clone()).unwrap())
}

fn trainer(pod: &Value) -> &Value {
    pod["spec"]["containers"].as_array().unwrap().iter().find(|c| c["name"] == "trainer").unwrap()
}

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
    // autoscalers leave it where it is, unless the template says otherwise
    let safe = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    assert_eq!(pod["metadata"]["annotations"][safe], "false");
    let evictable = attempt(json!({"metadata": {"annotations": {safe: "true"}}}));
    assert_eq!(super::pod(&reference(), &evictable, PodRole::Spare(0)).metadata.annotations.unwrap()[safe], "true");
}

#[test]
fn the_config_map_stores_the_attempt_template() {
    let containers = json!([{"name": "trainer", "image": "mine:2"}]);
    let attempt = attempt(json!({"spec": {"terminationGracePeriodSeconds": 7, "containers": containers}}));
    let map = config_map(&attempt);
    assert_eq!((&map["immutable"], &map["metadata"]["name"]), (&json!(true), &json!("shakespeare-3")));
    assert_eq!(read(&map).unwrap(), attempt);
    // the stage gets its attempt's job with the grace period, and nothing that only the operator uses
    let stage = parse_with(map["data"]["job.yaml"].as_str().unwrap(), "job.yaml", &[]).unwrap();
    assert_eq!((stage.spec.stages, stage.status), (3, None));
    let template = stage.spec.template.map(|template| Value::Object(template.0));
    assert_eq!(template, Some(json!({"spec": {"terminationGracePeriodSeconds": 7}})));
    let mut broken = map.clone();
    broken["data"]["blueprint.json"] = "{}".into();
    assert!(read(&broken).unwrap_err().to_string().contains("shakespeare-3 holds no template"));
    let text = map["data"]["blueprint.json"].as_str().unwrap();
    broken["data"]["blueprint.json"] = text.replace("\"stages\":3", "\"stages\":4000000000").into();
    assert!(read(&broken).unwrap_err().to_string().contains("shakespeare-3 names no stages"));
}

/// A trainer of an older version refuses fields that it does not know.
#[test]
fn the_job_file_has_what_the_trainer_needs_and_nothing_at_its_default() {
    let mut job = job(json!({"spec": {"nodeSelector": {"gpu": "h100"}}}));
    let timeouts = json!({"startupTimeoutSeconds": 6, "reformTimeoutSeconds": 7, "heartbeatTimeoutSeconds": 8, "stallTimeoutSeconds": 9});
    job.spec.restart = serde_json::from_value(timeouts.clone()).unwrap();
    job.spec.restart.max_restarts = 3;
    (job.spec.active_deadline_seconds, job.spec.scheduling.timeout_seconds) = (Some(9), 7);
    let file: Value = serde_json::from_str(&AttemptTemplate::new(&job, NUMBER_3, "a", None).unwrap().job_file).unwrap();
    let mut fields: Vec<&String> = file["spec"].as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(fields, ["data", "model", "restart", "stages", "storage", "training"], "{file:#}");
    assert_eq!(file["spec"]["restart"], timeouts);
    let read = parse_with(&file.to_string(), "job.yaml", &[]).unwrap();
    assert_eq!((&read.spec.model, &read.spec.training), (&job.spec.model, &job.spec.training));
}

#[test]
fn an_attempt_of_the_same_revision_keeps_the_job_file_but_for_its_own_stages_and_timeouts() {
    let job = job(json!({}));
    let new = |attempt, job| AttemptTemplate::new(job, attempt, "a", None).unwrap();
    let mut before = new(NUMBER_3, &job);
    // as another version writes it
    let mut file: Value = serde_json::from_str(&before.job_file).unwrap();
    file["spec"]["pipeline"]["ofAnotherVersion"] = 1.into();
    file["spec"]["restart"]["stallTimeoutSeconds"] = 5.into();
    before.job_file = file.to_string();
    let read = |attempt: &AttemptTemplate| serde_json::from_str::<Value>(&attempt.job_file).unwrap();
    let after = new(Attempt { number: 4, mesh: Mesh::pipeline(2), ..NUMBER_3 }, &job);
    let kept = after.clone().with_job_file_of(&before);
    assert_eq!((&read(&kept)["spec"]["stages"], &read(&kept)["spec"]["restart"]), (&json!(2), &Value::Null));
    assert_eq!(read(&kept)["spec"]["pipeline"]["ofAnotherVersion"], 1);
    for other in [Some(8), None] {
        let other = AttemptTemplate { revision: other, ..before.clone() };
        assert_eq!(after.clone().with_job_file_of(&other), after);
    }
    let unreadable = AttemptTemplate { job_file: "a: b".into(), ..before };
    assert_eq!(after.clone().with_job_file_of(&unreadable), after);
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
    // also those of a stage that has its own
    assert_eq!(terms(json!({"stages": [{"stage": 1, "spec": {"affinity": affinity}}]})), json!(merged));
    assert_eq!(pod(&attempt(json!({})), 1)["spec"]["affinity"], Value::Null);
}

/// An operator of another version reads this ConfigMap: its keys never change.
#[test]
fn the_config_map_of_an_attempt_never_changes_its_form() {
    let template = json!({"spec": {"containers": [{"name": "trainer", "image": "mine:2"}]}});
    let text = json!({"attempt": 3, "stages": 2, "revision": 7, "builtIn": true, "claim": "training",
                      "gang": "scheduling.volcano.sh/v1beta1", "template": template})
    .to_string();
    let data = json!({"job.yaml": "the job", "blueprint.json": text});
    let attempt = read(&json!({"metadata": {"name": "shakespeare-3"}, "data": data})).unwrap();
    let expected = AttemptTemplate {
        number: 3,
        mesh: Mesh::pipeline(2),
        revision: Some(7),
        built_in: true,
        job_file: "the job".into(),
        claim: Some("training".into()),
        pod_group_api: Some(PodGroupApi::Volcano),
        excluded_nodes: [].into(),
        pod_template: template.as_object().cloned().unwrap(),
    };
    assert_eq!(attempt, expected);
    assert_eq!(config_map(&attempt)["data"], data);
    let excluding = AttemptTemplate { excluded_nodes: ["a".to_owned()].into(), ..attempt.clone() };
    assert_eq!(read(&config_map(&excluding)).unwrap(), excluding);
    let versions: Vec<_> = PodGroupApi::ALL.into_iter().map(PodGroupApi::api_version).collect();
    assert_eq!(
        versions,
        [
            "scheduling.k8s.io/v1beta1",
            "scheduling.k8s.io/v1alpha2",
            "scheduling.volcano.sh/v1beta1",
            "scheduling.x-k8s.io/v1alpha1"
        ]
    );
    let labels = &pod(&AttemptTemplate { pod_group_api: None, ..attempt }, 1)["metadata"]["labels"];
    for (label, value) in
        [("job", "shakespeare"), ("job-uid", "u-1"), ("attempt", "3"), ("stage", "1"), ("incarnation", "0")]
    {
        assert_eq!(labels[&format!("stagecoach.dev/{label}")], value);
    }
}

/// Whatever comes of them is seen before the real CRDs, in the tests with an API server.
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
    let told = of(Device::Cuda, container("trainer", json!({"limits": {"memory": "4Gi"}}))).unwrap();
    assert!(told.starts_with("spec.training.device is Cuda, and no container trainer of spec.template asks"), "{told}");
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

fn custom_job() -> PipelineJob {
    let mut job = job(
        json!({"spec": {"containers": [{"name": "trainer", "image": "torch:2", "command": ["python", "train.py"]}]}}),
    );
    job.spec.trainer.kind = TrainerType::Custom;
    (job.spec.model, job.spec.data, job.spec.training) = (None, None, None);
    job
}

#[test]
fn a_custom_trainer_gets_only_the_environment() {
    let mut job = custom_job();
    job.spec.storage.persistent_volume_claim = None;
    let attempt =
        AttemptTemplate::new(&job, Attempt { number: 1, mesh: Mesh::pipeline(2), revision: 7 }, "unused", None)
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

#[test]
fn the_service_selects_stage_0_of_one_attempt_before_it_is_ready() {
    let of_attempt = |number| AttemptTemplate { number, ..attempt(json!({})) };
    let service = to_value(&build(&reference(), &of_attempt(4), None).service);
    assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
    let selector = service["spec"]["selector"].as_object().unwrap();
    let picks = |pod: &Value| selector.iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value);
    assert!(picks(&pod(&of_attempt(4), 0)));
    assert!(!picks(&pod(&of_attempt(4), 1)) && !picks(&pod(&of_attempt(3), 0)));
}

/// Two replicas of three stages.
#[test]
fn the_pods_of_replicas_are_named_and_labelled_by_replica_and_stage() {
    let mesh = Mesh { stages: 3, data_parallel: 2 };
    let change = json!({"stages": [{"stage": 1, "spec": {"nodeSelector": {"pool": "large"}}}]});
    let attempt = AttemptTemplate { mesh, pod_group_api: Some(PodGroupApi::Volcano), ..attempt(change) };
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
    assert_eq!(to_value(&objects.pod_group)["spec"]["minMember"], 6);
    let selector = to_value(&objects.service)["spec"]["selector"].clone();
    let picked = |pod: &&Value| {
        selector.as_object().unwrap().iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value)
    };
    let picked: Vec<_> = pods.iter().filter(picked).map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(picked, ["shakespeare-0-0-3"]);
    let stored = read(&config_map(&attempt)).unwrap();
    assert_eq!(stored, attempt);
}

/// Whether a policy lets traffic in from a pod with these labels, to this port: what a node's plugin would decide.
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
    let peers = PolicyPeers { readers: &readers, dns: &[] };
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

/// What a spare's pod has otherwise than a stage's, with a PodGroup of each API.
#[test]
fn a_spare_differs_from_a_stage_by_who_it_is_and_is_of_no_gang() {
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
        // all else is the same
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
fn the_jobs_network_policy_covers_a_spare() {
    let attempt = attempt(json!({}));
    let peers = PolicyPeers { readers: &[], dns: &[] };
    let policy = to_value(&build(&reference(), &attempt, Some(peers)).network_policy);
    let labels = &pod_as(&attempt, PodRole::Spare(0))["metadata"]["labels"];
    let selector = policy["spec"]["podSelector"]["matchLabels"].as_object().unwrap();
    assert!(selector.iter().all(|(key, value)| labels[key] == *value));
    assert!(lets_in(&policy, labels, 29500));
}

/// Each field that the API server gets.
#[test]
fn the_objects_of_an_attempt_equal_the_golden_ones() {
    let readers = [serde_json::from_value(json!({"podSelector": {}})).unwrap()];
    let peers = PolicyPeers { readers: &readers, dns: &[] };
    let objects = |job: &PipelineJob, api: Option<PodGroupApi>, peers: Option<PolicyPeers<'_>>| {
        let attempt = AttemptTemplate::new(
            job,
            Attempt { mesh: Mesh::pipeline(2), ..NUMBER_3 },
            "example.com/trainer@sha256:00",
            api,
        )
        .unwrap();
        let AttemptObjects { service, network_policy, config_map, pod_group } = build(&reference(), &attempt, peers);
        let pods: Vec<_> = (0..attempt.mesh.ranks()).map(|rank| pod(&attempt, rank)).collect();
        json!({"service": service, "networkPolicy": network_policy, "configMap": config_map,
               "podGroup": pod_group, "pods": pods})
    };
    let found = json!({
        "built-in": objects(&job(json!({})), Some(PodGroupApi::ALL[0]), Some(peers)),
        "custom": objects(&custom_job(), Some(PodGroupApi::Volcano), None),
        "coscheduling": objects(&custom_job(), Some(PodGroupApi::Coscheduling), None)["pods"][0]["metadata"],
    });
    let golden: Value = serde_json::from_str(include_str!("golden.json")).unwrap();
    for (case, objects) in golden.as_object().unwrap() {
        for (kind, object) in objects.as_object().unwrap() {
            assert_eq!(found[case][kind], *object, "{kind} of {case}");
        }
    }
    assert_eq!(found, golden);
}
