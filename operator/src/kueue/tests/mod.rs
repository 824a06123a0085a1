//! Tests of the answers of a queue and of the next writes, without a cluster.

mod dispatched;
mod objects;
mod workloads;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use stagecoach_api::PipelineJobSpec;
use stagecoach_api::contract::Mesh;
use stagecoach_lifecycle::{Admission, UnixMillis};

use super::{QueueInputs, QueueState, WorkloadAction, actions, holder};
use crate::build::JobReference;
use crate::build::kueue::{Demand, Workload};

const SAMPLE_JOB: &str = include_str!("../../../../manifests/samples/shakespeare.yaml");

fn job() -> JobReference {
    JobReference { name: "a".into(), namespace: "ml".into(), uid: "12345678".into() }
}

/// Returns the spec of a job with these fields.
fn spec(fields: &[(&str, &str)]) -> PipelineJobSpec {
    let fields: Vec<_> = fields.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
    stagecoach_api::parse_with(SAMPLE_JOB, "shakespeare.yaml", &fields).unwrap().spec
}

fn demand_of(elastic: bool, fields: &[(&str, &str)]) -> Demand {
    let labels = BTreeMap::from([("kueue.x-k8s.io/queue-name".to_owned(), "team".to_owned())]);
    let annotations = BTreeMap::from([("kueue.x-k8s.io/elastic-job".to_owned(), elastic.to_string())]);
    Demand::new(&labels, &annotations, &spec(fields)).unwrap()
}

fn demand(elastic: bool, stages: u32) -> Demand {
    demand_of(elastic, &[("stages", &stages.to_string())])
}

/// Returns the Workload `number` of a demand, with these conditions set to `True` and with `admitted` admitted pods.
fn workload(demand: &Demand, number: u64, conditions: &[&str], admitted: Option<u32>) -> Arc<Workload> {
    let mut object = demand.workload(&job(), number, 0, None, "trainer:1");
    object["metadata"]["uid"] = format!("uid-{number}").into();
    let condition = |kind: &&str| json!({"type": kind, "status": "True", "reason": *kind, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    object["status"]["conditions"] = conditions.iter().map(condition).collect();
    if let Some(count) = admitted {
        let assigned = json!([{"name": "stages", "count": count, "flavors": {"cpu": "default"}}]);
        object["status"]["admission"] = json!({"clusterQueue": "all", "podSetAssignments": assigned});
    }
    Arc::new(serde_json::from_value(object).unwrap())
}

const ADMITTED: [&str; 2] = ["QuotaReserved", "Admitted"];
const EVICTED: [&str; 3] = ["QuotaReserved", "Admitted", "Evicted"];

/// Returns the next writes in short form: the kind of the write, and the name of the Workload.
fn next(demand: Option<&Demand>, workloads: &[Arc<Workload>], inputs: &QueueInputs) -> Vec<String> {
    in_short(&actions(&job(), demand, workloads, inputs))
}

fn in_short(actions: &[WorkloadAction]) -> Vec<String> {
    let name = |workload: &Arc<Workload>| workload.metadata.name.clone().unwrap();
    let short = |action: &WorkloadAction| match action {
        WorkloadAction::Create { number, replaced } => {
            format!("create {number} for {}", replaced.as_ref().map_or("none".into(), name))
        }
        WorkloadAction::Adopt(of) => format!("adopt {}", name(of)),
        WorkloadAction::SetCounts(of) => format!("counts {}", name(of)),
        WorkloadAction::SetPriority(of) => format!("priority {}", name(of)),
        WorkloadAction::Delete(of) => format!("delete {}", name(of)),
        WorkloadAction::Evict(of) => format!("evict {}", name(of)),
        WorkloadAction::Release(of) => format!("release {}", name(of)),
        WorkloadAction::Finish { workload, reason, .. } => format!("finish {} {reason}", name(workload)),
        WorkloadAction::SetPodsReady { workload, is_ready } => format!("ready {} {is_ready}", name(workload)),
        WorkloadAction::SetReclaimable { workload, counts } => format!("reclaimable {} {counts:?}", name(workload)),
        WorkloadAction::SetBoost { workload, boost, .. } => format!("boost {} {boost}", name(workload)),
    };
    actions.iter().map(short).collect()
}

/// Returns the demand of an elastic job of two stages with one to three replicas, with these Workloads.
fn elastic_demand(workloads: &[Arc<Workload>]) -> Demand {
    let range = "{minDataParallel: 1, maxDataParallel: 3}";
    let demand = demand_of(false, &[("stages", "2"), ("elastic", range), ("training.microbatches", "4")]);
    demand.after_admission(holder(workloads).and_then(|holder| holder.admitted_mesh()), true)
}

#[test]
fn an_elastic_job_asks_for_one_more_replica_until_it_has_all() {
    let first = elastic_demand(&[]);
    assert_eq!((first.mesh.data_parallel, first.mesh.stages), (1, 2));
    let running = QueueInputs { is_running: true, ..QueueInputs::default() };
    let mut workloads = vec![workload(&first, 1, &ADMITTED, Some(2))];
    let mut admissions = Vec::new();
    for (number, admitted) in [(2, 2), (3, 3)] {
        let demand = elastic_demand(&workloads);
        assert_eq!(demand.mesh.data_parallel, admitted);
        let before = workloads.last().unwrap().clone();
        let create = format!("create {number} for {}", before.metadata.name.as_ref().unwrap());
        let actions = next(Some(&demand), &workloads, &running);
        assert!(actions.contains(&create), "{actions:?}");
        // if Kueue has not finished the Workload that the admitted slice has replaced, the operator does
        let finish = actions.contains(&"finish a-12345-1 WorkloadSliceReplaced".to_owned());
        assert_eq!(finish, number == 3, "{actions:?}");
        // the job runs under its admission while the next slice waits
        let state = QueueState::new(&demand, &workloads, false);
        let mesh = Mesh { stages: 2, data_parallel: 3 };
        assert_eq!((state.grant.mesh, state.grant.replicas), (Some(mesh), Some(admitted - 1)));
        admissions.push(state.grant.admission);
        let mut slice = demand.workload(&job(), number, 0, Some(&before), "trainer:1");
        slice["metadata"]["uid"] = format!("uid-{number}").into();
        slice["status"] = json!({
            "conditions": ADMITTED.map(|kind| json!({"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})),
            "admission": {"clusterQueue": "all", "podSetAssignments": [{"name": "stages", "count": 2 * admitted, "flavors": {"cpu": "default"}}]},
        });
        workloads.push(Arc::new(serde_json::from_value(slice).unwrap()));
    }
    let all = elastic_demand(&workloads);
    let state = QueueState::new(&all, &workloads, false);
    assert_eq!((all.mesh.data_parallel, state.grant.replicas), (3, Some(3)));
    admissions.push(state.grant.admission);
    assert!(admissions.windows(2).all(|pair| pair[0] == pair[1]), "{admissions:?}: no attempt is drained");
    // without slices in Kueue, the job keeps its number of replicas
    let admitted = Some(Mesh { stages: 2, data_parallel: 2 });
    assert_eq!(elastic_demand(&[]).after_admission(admitted, false).mesh.data_parallel, 2);
    // after an eviction, the job asks for its fewest replicas again
    let evicted = vec![workload(&all, 4, &EVICTED, Some(6))];
    let demand = elastic_demand(&evicted);
    assert_eq!(demand.mesh.data_parallel, 1);
    assert_eq!(next(Some(&demand), &evicted, &stopped()), ["release a-12345-4"]);
    let queued = vec![workload(&all, 4, &[], None)];
    assert_eq!(next(Some(&demand), &queued, &stopped()), ["counts a-12345-4"]);
}

fn stopped() -> QueueInputs {
    QueueInputs { has_stopped: true, ..QueueInputs::default() }
}

#[test]
fn a_workload_has_one_pod_set_for_each_kind_of_pods() {
    let stages = json!([{"stage": 1, "spec": {"nodeSelector": {"gpu": "h200"}}}, {"stage": 3, "spec": {"nodeSelector": {"gpu": "h200"}}}]);
    let template =
        json!({"stages": stages, "spec": {"containers": [{"name": "trainer", "command": ["x"]}]}}).to_string();
    let fields = [("stages", "4"), ("spares", "2"), ("template", template.as_str())];
    let workload = demand_of(false, &fields).workload(&job(), 3, 7, None, "trainer:1");
    assert_eq!(workload["metadata"]["name"], "a-12345-3");
    let sets = workload["spec"]["podSets"].as_array().unwrap();
    let counts: Vec<(&str, u64)> =
        sets.iter().map(|set| (set["name"].as_str().unwrap(), set["count"].as_u64().unwrap())).collect();
    assert_eq!(counts, [("stages", 2), ("stage-1", 2), ("spares", 2)]);
    assert_eq!(sets[1]["template"]["spec"]["nodeSelector"], json!({"gpu": "h200"}));
    // the command is omitted, because a change of the command needs no new admission
    assert_eq!(sets[0]["template"]["spec"]["containers"], json!([{"name": "trainer", "image": "trainer:1"}]));
    let spec = &workload["spec"];
    assert_eq!(
        (&spec["queueName"], &spec["priority"], &spec["priorityClassRef"]),
        (&json!("team"), &json!(7), &Value::Null)
    );
}

#[test]
fn fewer_replicas_are_asked_for_where_the_job_names_them() {
    let replicas = [("dataParallel", "4"), ("stages", "2"), ("training.gradientBlocks", "4")];
    let min_count = |elastic, more: &[(&str, &str)]| {
        let demand = demand_of(elastic, &[&replicas, more].concat());
        demand.workload(&job(), 1, 0, None, "a")["spec"]["podSets"][0]["minCount"].clone()
    };
    assert_eq!(min_count(false, &[]), Value::Null);
    assert_eq!(min_count(false, &[("restart.minDataParallel", "3")]), 6);
    // Kueue rejects a minimum together with slices
    assert_eq!(min_count(true, &[("restart.minDataParallel", "3")]), Value::Null);

    let demand = demand_of(false, &[&replicas[..], &[("restart.minDataParallel", "2")]].concat());
    let granted = |pods| demand.granted_mesh(&workload(&demand, 1, &ADMITTED, Some(pods)));
    let mesh = |data_parallel| Some(Mesh { stages: 2, data_parallel });
    assert_eq!([8, 7, 6, 5, 4, 3].map(granted), [mesh(4), mesh(3), mesh(3), mesh(2), mesh(2), None]);
}

#[test]
fn a_job_runs_under_the_newest_admission_that_fits() {
    let (two, three) = (demand(true, 2), demand(true, 3));
    let old = workload(&two, 1, &ADMITTED, Some(2));
    let waiting = workload(&three, 2, &[], None);
    let state = QueueState::new(&three, &[old.clone(), waiting], false);
    // the slice waits, and the job keeps its two stages
    assert_eq!(
        (state.grant.admission, state.grant.mesh),
        (Admission::Admitted(old.admission_id()), Some(Mesh::pipeline(2)))
    );
    let new = workload(&three, 2, &ADMITTED, Some(3));
    let state = QueueState::new(&three, &[old.clone(), new.clone()], false);
    assert_eq!(
        (state.grant.admission, state.grant.mesh),
        (Admission::Admitted(new.admission_id()), Some(Mesh::pipeline(3)))
    );
    // without slices, a job that asks for more waits again, and a job that asks for fewer continues
    let rigid = workload(&demand(false, 2), 1, &ADMITTED, Some(2));
    let granted = |stages| QueueState::new(&demand(false, stages), std::slice::from_ref(&rigid), false).grant;
    assert_eq!(granted(3).admission, Admission::Waiting);
    assert_eq!(
        (granted(1).admission, granted(1).mesh),
        (Admission::Admitted(rigid.admission_id()), Some(Mesh::pipeline(1)))
    );
    for conditions in [&["QuotaReserved"][..], &EVICTED, &["QuotaReserved", "Admitted", "Finished"]] {
        let workload = workload(&two, 1, conditions, Some(2));
        assert_eq!(QueueState::new(&two, &[workload], false).grant.admission, Admission::Waiting, "{conditions:?}");
    }
}

#[test]
fn a_reservation_is_given_back_only_after_the_last_pod() {
    let demand = demand(false, 2);
    let evicted = [workload(&demand, 1, &EVICTED, Some(2))];
    assert_eq!(next(Some(&demand), &evicted, &QueueInputs::default()), [""; 0]);
    assert_eq!(next(Some(&demand), &evicted, &stopped()), ["release a-12345-1"]);
    // the operator removes the boost first, because the boost would raise the priority of the queued Workload
    let mut boosted = (*evicted[0]).clone();
    let annotations = boosted.metadata.annotations.get_or_insert_default();
    annotations.insert("kueue.x-k8s.io/priority-boost".into(), "3".into());
    assert_eq!(next(Some(&demand), &[Arc::new(boosted)], &stopped()), ["boost a-12345-1 0"]);
    // a suspended or ended job also releases its quota only after the last pod
    let admitted = [workload(&demand, 1, &ADMITTED, Some(2))];
    for (demand, inputs, expected) in [
        (Some(&demand), QueueInputs { is_suspended: true, ..QueueInputs::default() }, "delete a-12345-1"),
        (
            Some(&demand),
            QueueInputs { outcome: Some((true, "done".into())), ..QueueInputs::default() },
            "finish a-12345-1 Succeeded",
        ),
        (
            Some(&demand),
            QueueInputs { outcome: Some((false, "failed".into())), ..QueueInputs::default() },
            "finish a-12345-1 Failed",
        ),
    ] {
        assert_eq!(next(demand, &admitted, &inputs), [""; 0]);
        assert_eq!(next(demand, &admitted, &QueueInputs { has_stopped: true, ..inputs }), [expected]);
    }
}

#[test]
fn an_elastic_job_asks_for_more_beside_its_admission() {
    let (two, three, four) = (demand(true, 2), demand(true, 3), demand(true, 4));
    let old = workload(&two, 1, &["QuotaReserved", "Admitted", "PodsReady"], Some(2));
    let running = QueueInputs { is_running: true, ..QueueInputs::default() };
    let actions = |demand: &Demand, others: &[Arc<Workload>]| {
        next(Some(demand), &[std::slice::from_ref(&old), others].concat(), &running)
    };
    assert_eq!(actions(&two, &[]), [""; 0]);
    assert_eq!(actions(&three, &[]), ["create 2 for a-12345-1"]);
    assert_eq!(actions(&three, &[workload(&three, 2, &[], None)]), [""; 0]);
    assert_eq!(actions(&four, &[workload(&three, 2, &[], None)]), ["counts a-12345-2"]);
    assert_eq!(actions(&two, &[workload(&three, 2, &[], None)]), ["delete a-12345-2"]);
    let one = demand(true, 1);
    // pods beyond the new number may still run
    let exceeds = QueueInputs { exceeds_grant: true, ..running.clone() };
    assert_eq!(next(Some(&one), std::slice::from_ref(&old), &exceeds), [""; 0]);
    assert_eq!(actions(&one, &[]), ["counts a-12345-1"]);
    // without slices in Kueue, a job that asks for more is queued again, and a job that asks for fewer releases the
    // surplus
    let slices_are_off = true;
    let inputs = QueueInputs { slices_are_off, ..running };
    let holder = std::slice::from_ref(&old);
    assert_eq!(next(Some(&three), holder, &inputs), [""; 0]);
    assert_eq!(next(Some(&three), holder, &QueueInputs { slices_are_off, ..stopped() })[0], "delete a-12345-1");
    assert_eq!(next(Some(&one), holder, &inputs), [r#"reclaimable a-12345-1 {"stages": 1}"#]);
    let state = QueueState::new(&three, holder, slices_are_off);
    assert_eq!(state.grant.admission, Admission::Waiting);
    assert!(state.condition.unwrap().message.contains("ElasticJobsViaWorkloadSlices of Kueue is off"));
}

#[test]
fn more_spares_wait_for_quota_beside_the_admission() {
    let with = |elastic, spares: &str| demand_of(elastic, &[("stages", "2"), ("spares", spares)]);
    let running = QueueInputs { is_running: true, ..QueueInputs::default() };
    let actions = |demand: &Demand, admitted: &Demand| {
        let holder = workload(admitted, 1, &["QuotaReserved", "Admitted", "PodsReady"], Some(2));
        let message = QueueState::new(demand, std::slice::from_ref(&holder), false).condition.unwrap().message;
        (next(Some(demand), &[holder], &running), message.ends_with("the job asks for 2"))
    };
    let (one, two) = (with(true, "1"), with(true, "2"));
    assert_eq!(actions(&two, &one), (vec!["create 2 for a-12345-1".to_owned()], true));
    assert_eq!(actions(&one, &two), (vec!["counts a-12345-1".to_owned()], false));
    // without slices, the reservation can't grow, and the stages keep running
    assert_eq!(actions(&with(false, "2"), &with(false, "1")), (Vec::new(), true));
}

#[test]
fn a_job_has_one_place_in_the_queue() {
    let (two, three) = (demand(false, 2), demand(false, 3));
    assert_eq!(next(Some(&two), &[], &stopped()), ["create 1 for none"]);
    let waiting = [workload(&two, 4, &[], None)];
    assert_eq!(next(Some(&two), &waiting, &stopped()), [""; 0]);
    assert_eq!(next(Some(&three), &waiting, &stopped()), ["counts a-12345-4"]);
    // a demand for another queue needs another Workload
    let other = Demand { queue_name: "other".into(), ..two.clone() };
    assert_eq!(next(Some(&other), &waiting, &stopped()), ["delete a-12345-4"]);
    assert_eq!(next(None, &waiting, &stopped()), ["delete a-12345-4"]);
    let finished = [workload(&two, 4, &["Finished"], None)];
    assert_eq!(next(Some(&two), &finished, &stopped()), ["create 5 for none"]);
}

#[test]
fn the_boost_follows_the_time_since_the_checkpoint() {
    let demand = demand(false, 2);
    let holder = [workload(&demand, 1, &["QuotaReserved", "Admitted", "PodsReady"], Some(2))];
    let at = |minutes: u64| {
        let now = UnixMillis::from_seconds(minutes * 60);
        next(Some(&demand), &holder, &QueueInputs { is_running: true, now, ..QueueInputs::default() })
    };
    assert_eq!(at(0), [""; 0]);
    assert_eq!(at(5), ["boost a-12345-1 3"]);
}
