//! Tests of the admission, the eviction and the end of a job.

use serde_json::{Value, json};
use stagecoach_api::contract::{StagePhase, StageStatus};
use stagecoach_cluster::until;

use super::{message, queued};
use crate::support::{condition_of, has_condition};

#[test]
fn a_job_has_pods_only_while_its_queue_admits_it() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let preemption = json!({"preemption": {"withinClusterQueue": "LowerPriority"}});
    let queue = queues.queue(2, preemption);
    queues.create("first", &queue, json!({}));
    let first = cluster.wait_running("first", 1);
    assert!(has_condition(&first, "Admitted", "True", "Admitted"), "{:#}", first["status"]);
    let workload = queues.wait_workload("first", "PodsReady", "True");
    let sets = &workload["spec"]["podSets"];
    assert_eq!((sets.as_array().unwrap().len(), &sets[0]["name"], &sets[0]["count"]), (1, &json!("stages"), &json!(2)));
    assert_eq!(workload["metadata"]["ownerReferences"][0]["uid"], first["metadata"]["uid"]);
    for pod in cluster.pods("first") {
        let (labels, annotations) = (&pod["metadata"]["labels"], &pod["metadata"]["annotations"]);
        assert_eq!(labels["kueue.x-k8s.io/podset"], "stages");
        assert_eq!(labels["kueue.x-k8s.io/cluster-queue-name"], queue.as_str());
        assert_eq!(annotations["kueue.x-k8s.io/workload"], workload["metadata"]["name"]);
        assert_eq!(labels["stagecoach.dev/rank"], labels["stagecoach.dev/stage"]);
    }

    // the second job waits without pods, and shows why
    queues.create("second", &queue, json!({}));
    let why = |job: &Value| message(job, "Admitted").contains("insufficient unused quota");
    let second = cluster.wait("second", "waiting", why);
    assert_eq!(second["status"]["phase"], "Pending");
    assert!(has_condition(&second, "Admitted", "False", "Queued"));
    assert!(message(&second, "Ready").contains("insufficient unused quota"), "{:#}", second["status"]);
    assert!(cluster.pods("second").is_empty());

    // the second job starts when the first job ends
    cluster.finish("first", 1, 2);
    cluster.wait_phase("first", "Complete");
    cluster.wait_running("second", 1);
    let ended = queues.workloads("first");
    assert!(has_condition(&ended[0], "Finished", "True", "Succeeded"), "{:#}", ended[0]["status"]);

    // a third job with priority preempts the second job, which drains, releases its reservation, and waits again
    queues.create("third", &queue, json!({"metadata": {"labels": {"kueue.x-k8s.io/priority-class": "high"}}}));
    cluster.wait_running("third", 1);
    let second = cluster.wait_phase("second", "Pending");
    assert_eq!(second["status"]["restarts"]["total"], 0, "an eviction is no failure");
    assert!(cluster.pods("second").iter().all(|pod| pod["metadata"]["deletionTimestamp"].is_string()));
    let waits = queues.wait_workload("second", "QuotaReserved", "False");
    assert!(has_condition(&waits, "Requeued", "True", "Preempted"), "{:#}", waits["status"]);
    assert_eq!(queues.workloads("second").len(), 1, "it keeps its place in the queue");

    // the second job runs again after the end of the third job
    cluster.finish("third", 1, 2);
    let second = cluster.wait_running("second", 2);
    assert!(has_condition(&second, "Admitted", "True", "Admitted"));
    cluster.finish("second", 2, 2);
    cluster.wait_phase("second", "Complete");
    until("its events", || {
        let events = cluster.events("second");
        let wanted = ["Queued", "Admitted", "AttemptStarted", "Running", "AdmissionLost", "Draining"];
        wanted.iter().all(|reason| events.iter().any(|event| event == reason)).then_some(())
    });
}

#[test]
fn a_stage_is_replaced_within_the_same_admission() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let queue = queues.queue(2, json!({}));
    queues.create("kept", &queue, json!({"spec": {"restart": {"maxRestarts": 20, "reformTimeoutSeconds": 60}}}));
    cluster.wait_running("kept", 1);
    let before = queues.workload("kept").unwrap();
    let mut pod = "kept-1-1".to_owned();
    for kill in 1..=10 {
        cluster.kubelet.pod(&pod).exit(1, "");
        cluster.wait("kept", &format!("whole after kill {kill}"), |job| {
            let status = &job["status"];
            status["restarts"]["replaced"] == kill && status["phase"] == "Running" && status["readyStages"] == 2
        });
        // a stage that fails again without progress would restart the group
        cluster.train_to("kept", 1, kill);
        pod = format!("kept-1-1-{kill}");
    }
    let after = queues.workload("kept").unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["status"]["admission"], before["status"]["admission"]);
    assert_eq!(condition_of(&after, "Evicted"), None);
    assert_eq!(cluster.job("kept").unwrap()["status"]["attempt"]["number"], 1);
}

#[test]
fn a_spare_takes_the_place_of_a_stage_within_the_same_admission() {
    let (queues, cluster) = (queued(), &queued().cluster);
    // the promoted spare and the new spare need no more quota than the pods that they replace
    let queue = queues.queue(3, json!({}));
    queues.create("promoted", &queue, json!({"spec": {"spares": 1, "restart": {"reformTimeoutSeconds": 60}}}));
    let stand_by = || {
        cluster.wait("promoted", "training, with its spare", |job| {
            message(job, "Running") == "all 2 stages are ready; 1 of 1 spares stand by"
        })
    };
    stand_by();
    let before = queues.workload("promoted").unwrap();
    let place = StageStatus { stage: 1, incarnation: 1, phase: StagePhase::Forming, ..StageStatus::default() };
    cluster.kubelet.pod("promoted-spare-0-1").set_status(place);
    cluster.wait("promoted", "replaced", |job| job["status"]["restarts"]["replaced"] == 1);
    cluster.kubelet.pod("promoted-1-1").exit(1, "");
    until("the next spare", || {
        (cluster.pod_names("promoted") == ["promoted-0-1", "promoted-spare-0-1", "promoted-spare-1-1"]).then_some(())
    });
    stand_by();
    for pod in cluster.pods("promoted") {
        assert_eq!(pod["metadata"]["annotations"]["kueue.x-k8s.io/workload"], before["metadata"]["name"]);
    }
    let after = queues.workload("promoted").unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["status"]["admission"], before["status"]["admission"]);
    assert_eq!((&after["status"]["reclaimablePods"], condition_of(&after, "Evicted")), (&Value::Null, None));
    assert_eq!(cluster.job("promoted").unwrap()["status"]["attempt"]["number"], 1);
}

#[test]
fn a_suspended_job_leaves_its_queue() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let queue = queues.queue(2, json!({}));
    queues.create("leaving", &queue, json!({}));
    cluster.wait_running("leaving", 1);
    cluster.edit("leaving", json!({"suspend": true}));
    cluster.wait_phase("leaving", "Suspended");
    until("its Workload to go", || queues.workloads("leaving").is_empty().then_some(()));
    queues.create("next", &queue, json!({}));
    cluster.wait_running("next", 1);
    cluster.edit("leaving", json!({"suspend": false}));
    queues.wait_admitted("leaving", "False");
    cluster.plane.client().delete(&crate::support::path("next"));
    cluster.wait_running("leaving", 2);
}

#[test]
fn the_nodes_of_an_assigned_flavor_get_the_pods() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let toleration = json!({"key": "spot", "operator": "Exists", "effect": "NoSchedule"});
    let flavor = json!({"nodeLabels": {"kubernetes.io/hostname": "node-2"}, "tolerations": [toleration]});
    stagecoach_cluster::kueue::create(
        cluster.plane.client(),
        &[
            stagecoach_cluster::kueue::resource_flavor("second-node", flavor),
            stagecoach_cluster::kueue::cluster_queue("flavored", &[("second-node", json!({"pods": 4}))], json!({})),
            stagecoach_cluster::kueue::local_queue("flavored", "flavored"),
        ],
    );
    queues.create("placed", "flavored", json!({"spec": {"spares": 1, "restart": {"reformTimeoutSeconds": 60}}}));
    cluster.wait_running("placed", 1);
    let pods = until("the spare", || Some(cluster.pods("placed")).filter(|pods| pods.len() == 3));
    for pod in pods {
        assert_eq!(pod["spec"]["nodeSelector"]["kubernetes.io/hostname"], "node-2");
        assert!(pod["spec"]["tolerations"].as_array().unwrap().contains(&toleration), "{:#}", pod["spec"]);
    }
    let workload = queues.workload("placed").unwrap();
    let counts: Vec<_> =
        workload["spec"]["podSets"].as_array().unwrap().iter().map(|set| (&set["name"], &set["count"])).collect();
    assert_eq!(counts, [(&json!("stages"), &json!(2)), (&json!("spares"), &json!(1))]);
}

#[test]
fn a_job_without_admission_shows_the_mistake() {
    let (queues, cluster) = (queued(), &queued().cluster);
    queues.create("nowhere", "missing", json!({}));
    cluster.wait("nowhere", "waiting for a queue that does not exist", |job| {
        message(job, "Admitted").contains("missing doesn't exist")
    });
    let queue = queues.queue(2, json!({}));
    queues.create("unknown", &queue, json!({"metadata": {"labels": {"kueue.x-k8s.io/priority-class": "none"}}}));
    let job = cluster.wait("unknown", "refused for its priority class", |job| {
        has_condition(job, "Admitted", "False", "PriorityClassMissing")
    });
    let expected = "the WorkloadPriorityClass none does not exist: create it, or name another";
    assert_eq!(message(&job, "Admitted"), expected);
    stagecoach_cluster::kueue::create(cluster.plane.client(), &[stagecoach_cluster::kueue::priority_class("none", 3)]);
    cluster.wait_running("unknown", 1);
    assert_eq!(queues.workload("unknown").unwrap()["spec"]["priority"], 3);
}

#[test]
fn the_objects_of_the_page_work_as_written() {
    let (_, cluster) = (queued(), &queued().cluster);
    let node = json!({"metadata": {"labels": {"gpu": "h200"}}});
    cluster.plane.client().patch("/api/v1/nodes/node-0", &node).unwrap();
    let page = include_str!("../../../../docs/KUEUE.md");
    // the blocks are items of a list, indented by three spaces
    let blocks = page.split("   ```yaml\n").skip(1).filter_map(|rest| Some(rest.split_once("   ```")?.0));
    let blocks: Vec<String> = blocks.map(|block| block.replace("\n   ", "\n")).collect();
    let [queues, job] = blocks.as_slice() else { panic!("{blocks:#?}") };
    for block in [queues, job] {
        cluster.plane.apply(block.strip_prefix("   ").unwrap());
    }
    cluster.wait_running("llama", 1);
    assert!(cluster.pods("llama").iter().all(|pod| pod["spec"]["nodeName"] == "node-0"));
}

#[test]
fn a_workload_that_another_controller_has_made_is_adopted() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let queue = queues.queue(2, json!({}));
    let name = json!({"kueue.x-k8s.io/prebuilt-workload-name": "prebuilt"});
    queues.create("adopting", &queue, json!({"metadata": {"labels": name}}));
    cluster.wait("adopting", "waiting for its Workload", |job| {
        message(job, "Admitted") == "the Workload prebuilt does not exist yet"
    });
    // the Workload has no label of this operator
    let container = json!({"name": "trainer", "image": "none"});
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
    let spec = json!({"queueName": queue, "podSets": [{"name": "stages", "count": 2, "template": template}]});
    let api = stagecoach_cluster::kueue::API;
    let workload = json!({"apiVersion": api, "kind": "Workload", "metadata": {"name": "prebuilt"}, "spec": spec});
    stagecoach_cluster::kueue::create(cluster.plane.client(), &[workload]);
    let job = cluster.wait_running("adopting", 1);
    let workload = queues.wait_workload("adopting", "PodsReady", "True");
    assert_eq!(workload["metadata"]["name"], "prebuilt");
    assert_eq!(workload["metadata"]["ownerReferences"][0]["uid"], job["metadata"]["uid"]);
    cluster.finish("adopting", 1, 2);
    cluster.wait_phase("adopting", "Complete");
    until("the Workload to be finished", || {
        has_condition(queues.workloads("adopting").first()?, "Finished", "True", "Succeeded").then_some(())
    });
}
