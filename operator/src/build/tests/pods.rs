//! Tests of the operator's additions to the pods.

use super::*;
use crate::build::kueue::{PodSetPlacement, PodSetPlacements};

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

/// The job has two replicas of three stages.
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

/// The job has two replicas of three stages, and a spare.
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

/// Checks the differences between the pod of a spare and the pod of a stage, with a PodGroup of each API.
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
        // apart from the name, the role's labels, the gang and the environment, both pods are the same
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

/// The CRD has no schema for the overrides of single stages.
#[test]
fn a_placement_replaces_a_node_selector_that_is_not_an_object() {
    let set = PodSetPlacement { node_selector: [("zone".to_owned(), "a".to_owned())].into(), ..Default::default() };
    let placement = PodSetPlacements(["stages", "stage-1"].map(|name| (name.to_owned(), set.clone())).into());
    for wrong in [json!("gpu"), json!(["gpu"]), json!(7)] {
        let change = json!({"stages": [{"stage": 1, "spec": {"nodeSelector": wrong, "tolerations": wrong}}]});
        let placed = AttemptTemplate { placement: Some(placement.clone()), ..attempt(change) };
        assert_eq!(pod(&placed, 1)["spec"]["nodeSelector"], json!({"zone": "a"}), "{wrong}");
    }
}
