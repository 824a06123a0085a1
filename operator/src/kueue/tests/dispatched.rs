//! Tests of the writes to the Workload of a job that runs in another cluster.

use std::sync::Arc;

use super::{ADMITTED, EVICTED, demand, in_short, job, workload};
use crate::build::kueue::{Demand, Workload};
use crate::kueue::{RemoteJobState, dispatched_actions};

#[test]
fn a_copy_in_another_cluster_stops_before_its_workload_goes() {
    let (two, three) = (demand(false, 2), demand(false, 3));
    let actions = |demand: Option<&Demand>, workloads: &[Arc<Workload>], situation| {
        in_short(&dispatched_actions(&job(), demand, workloads, situation))
    };
    let running = RemoteJobState { is_running: true, ..RemoteJobState::default() };
    let stopped = RemoteJobState { has_stopped: true, ..RemoteJobState::default() };
    assert_eq!(actions(Some(&two), &[], stopped), ["create 1 for none"]);
    let holder = [workload(&two, 1, &ADMITTED, Some(2))];
    assert_eq!(actions(Some(&two), &holder, running), ["ready a-12345-1 true"]);
    // the demand has another number of stages or another queue, or there is no demand, or the job is suspended
    let other = Demand { queue_name: "other".into(), ..two.clone() };
    let suspended = |situation| RemoteJobState { is_suspended: true, ..situation };
    for (demand, situation) in
        [(Some(&three), running), (Some(&other), running), (None, running), (Some(&two), suspended(running))]
    {
        assert_eq!(actions(demand, &holder, situation), ["evict a-12345-1"]);
        assert_eq!(actions(demand, &[workload(&two, 1, &EVICTED, Some(2))], situation), [""; 0]);
        let stopped = RemoteJobState { has_stopped: true, is_running: false, ..situation };
        assert_eq!(actions(demand, &holder, stopped), ["delete a-12345-1"]);
    }
    let waiting = [workload(&two, 1, &[], None)];
    assert_eq!(actions(Some(&three), &waiting, running), ["counts a-12345-1"]);
    assert_eq!(actions(Some(&two), &waiting, suspended(running)), ["delete a-12345-1"]);
    // Kueue has evicted the Workload
    let evicted = [workload(&two, 1, &EVICTED, Some(2))];
    assert_eq!(actions(Some(&two), &evicted, running), [""; 0]);
    assert_eq!(actions(Some(&two), &evicted, stopped), ["release a-12345-1"]);
    // the job has ended
    let ended = RemoteJobState { has_ended: true, has_stopped: true, ..RemoteJobState::default() };
    assert_eq!(actions(Some(&two), &holder, ended), [""; 0]);
    // a copied status that arrives after the end of the Workload starts no second run
    let finished = [workload(&two, 1, &["Finished"], None)];
    assert_eq!(actions(Some(&two), &finished, running), [""; 0]);
}
