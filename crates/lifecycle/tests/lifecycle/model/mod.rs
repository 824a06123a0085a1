//! Model checking: the tests explore every order of events in a small cluster, whose operator calls the real state
//! machine (`decide`).
//!
//! The model contains these parts:
//!
//! - the job object;
//! - pods with unique names, which are deleted by UID;
//! - nodes that start, kill and remove the pods;
//! - groups (the stages that train together), which form, commit, drain and lose peers;
//! - the volume's fence, which gives one group the right to commit checkpoints;
//! - the operator.
//!
//! The operator reads the job (sometimes a stale version), lists the pods, and calls `decide`. It then stores the
//! decision in the job's status (the record) by compare-and-swap, and creates and deletes pods, one at a time. The
//! operator may crash between any two writes, or after a write whose response it never received. A node may be
//! partitioned: the API then shows its pod unchanged for ever, while the process may run for any further time. Time is
//! an event, and advances only to the operator's wake-up. All immediate transitions precede this event, unless a fault
//! makes the pods or the operator slow. A terminating process may take any time below the termination timeout.
//!
//! The API guarantees, through the pods' names, that no stage of an attempt runs twice. The volume guarantees that only
//! the fence's holder commits. The model shows only that the fence is necessary. An older attempt on partitioned nodes
//! may take the fence from a newer attempt, which then fails and restarts. Two attempts still never commit at the same
//! time.
//!
//! With replacement of stages, a stage that has lost its group may wait for the next group or exit at any time. A group
//! consists of the newest living process of each stage. A stage 0 that has lost a group takes the next fence only if it
//! holds the newest fence.
//!
//! A process may end unnoticed by its node. The other stages then report the end, and the node reports it later.
//!
//! With spares (processes that wait to replace a stage), a group promotes a spare to a stage that has ended, or by
//! mistake to a stage 0 that is alive. The promotion may happen at any time until another process of that stage has
//! started, and the API may show the promotion at any later time. A spare that is not ready counts as pending.
//!
//! If replicas may be missing, a group has as many replicas as the waiting processes can form. A replica in a group may
//! combine stages of different replicas of the job. The group may form earlier or later than in reality, because the
//! processes of the model have no clocks. A process that waits outside a group never makes a member of the group exit.
//! The leader is the stage 0 that took the group's fence. When the waiting processes can form another replica, the
//! leader leaves its group for the next group, which includes these processes. The other members follow. When the
//! leader's process ends, the next leader is stage 0 of the second replica, or the process that replaces the leader.
//! The volume records the rank of the leader. An older group may train beside a newer group.
//!
//! The model does not contain the following:
//!
//! - reports about lost stages whose processes are alive;
//! - a process's computations and published progress: training is done after one checkpoint;
//! - a second operator beside the first;
//! - time between two writes of one decision, or while an operator starts;
//! - gang scheduling, quotas and active deadlines;
//! - pods that are removed by force while they run.
//!
//! Times are multiples of ten seconds, and the timeouts are as close together as possible. Exits within the same ten
//! seconds are simultaneous.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use stagecoach_api::contract::Mesh;
use stateright::{Checker, HasDiscoveries, Model};

mod cluster_state;
mod clusters;
mod faults;
mod model_pod;
mod needed;
mod operator;
mod pods;
mod properties;
mod steps;
mod time;

use cluster_state::{ClusterState, Faults};
use clusters::{NONE, elastic, one_of_two_replicas, queued, replacing, two_stages, with_spare};
use operator::Guard;
use properties::*;
use steps::ClusterModel;

/// Explores the states until a state violates `invariant` or, with `None`, any invariant. Returns the violated
/// invariants, and the examples (conditions in `REACHABLE`) that were found.
fn explore(model: &ClusterModel, invariant: Option<&'static str>) -> (Vec<&'static str>, Vec<&'static str>) {
    let checker = match invariant {
        // a single thread finds a short path
        Some(invariant) => model.clone().checker().finish_when(HasDiscoveries::AnyOf([invariant].into())),
        None => model.clone().checker().finish_when(HasDiscoveries::AnyFailures).threads(2),
    };
    let checker = checker.spawn_bfs().join();
    let (states, steps, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    println!("{model:?}: {states} states, {steps} steps, {depth} deep");
    let (mut broken, mut seen) = (vec![], vec![]);
    for (name, path) in checker.discoveries() {
        if REACHABLE.contains(&name) {
            seen.push(name);
            continue;
        }
        broken.push(name);
        let (last, steps) = (path.last_state().clone(), path.into_actions());
        println!("  violated: {name}, after {} steps", steps.len());
        if model.disabled_guard.is_none() {
            println!("  {steps:#?}\n  {last:#?}");
        }
    }
    (broken, seen)
}

/// Asserts that every invariant holds and that the examples are reachable.
fn assert_invariants(model: &ClusterModel, examples: &[&str]) {
    let (broken, seen) = explore(model, None);
    assert!(broken.is_empty(), "{model:?}: {broken:?}");
    assert!(examples.iter().all(|example| seen.contains(example)), "{model:?}: only {seen:?} was reached");
}

fn explores_all() -> bool {
    std::env::var("STAGECOACH_MODEL").is_ok_and(|which| which == "all")
}

#[test]
fn invariants_hold_in_every_state() {
    for (faults, examples) in [
        (NONE, vec![COMPLETES]),
        (Faults { crashes: 1, failures: 3, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS, GIVES_UP]),
        (Faults { crashes: 2, stale_reads: 1, partitions: 1, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
        (Faults { crashes: 2, stale_reads: 1, failures: 1, spec_changes: 1, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
        (Faults { crashes: 1, stale_reads: 1, failures: 1, status_losses: 1, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
    ] {
        assert_invariants(&two_stages(faults), &examples);
    }
    for (faults, examples) in [
        (NONE, vec![COMPLETES]),
        (Faults { crashes: 1, stale_reads: 1, failures: 1, ..NONE }, vec![COMPLETES, REPLACES, REPLACED_BEFORE_NOTICE]),
        (Faults { crashes: 1, partitions: 1, ..NONE }, vec![COMPLETES]),
        (Faults { crashes: 1, failures: 1, spec_changes: 1, ..NONE }, vec![COMPLETES, REPLACES]),
        (Faults { failures: 1, status_losses: 1, ..NONE }, vec![COMPLETES, REPLACES]),
    ] {
        assert_invariants(&replacing(faults), &examples);
    }
    for (faults, examples) in [
        (NONE, vec![COMPLETES]),
        (
            Faults { failures: 1, ..NONE },
            vec![COMPLETES, REPLACES, REPLACED_BEFORE_NOTICE, PROMOTES, PROMOTED_TOO_LATE, MISTAKEN_PROMOTION],
        ),
        (Faults { crashes: 1, partitions: 1, ..NONE }, vec![COMPLETES]),
        (Faults { crashes: 1, stale_reads: 1, spec_changes: 1, ..NONE }, vec![COMPLETES]),
        (Faults { crashes: 1, stale_reads: 1, status_losses: 1, ..NONE }, vec![COMPLETES]),
    ] {
        assert_invariants(&with_spare(faults), &examples);
    }
    let alone = ClusterModel { mesh: Mesh::pipeline(1), ..two_stages(Faults { crashes: 1, partitions: 2, ..NONE }) };
    assert_invariants(&alone, &[COMPLETES, THREE_ATTEMPTS]);
    let replicas = |faults| ClusterModel { mesh: Mesh { stages: 1, data_parallel: 2 }, ..replacing(faults) };
    assert_invariants(&replicas(Faults { crashes: 1, spec_changes: 1, ..NONE }), &[COMPLETES]);
    assert_invariants(&replicas(Faults { failures: 1, spec_changes: 1, ..NONE }), &[COMPLETES, REPLACES]);
    if explores_all() {
        for faults in [
            Faults { partitions: 2, ..NONE },
            Faults { crashes: 1, stale_reads: 1, failures: 3, ..NONE },
            Faults { crashes: 1, stale_reads: 1, partitions: 1, spec_changes: 1, ..NONE },
            Faults { crashes: 1, stale_reads: 1, partitions: 1, status_losses: 1, ..NONE },
            Faults { crashes: 1, stale_reads: 1, failures: 1, partitions: 1, ..NONE },
        ] {
            assert_invariants(&two_stages(faults), &[COMPLETES, THREE_ATTEMPTS]);
        }
        let two_spares = ClusterModel { spares: 2, ..with_spare(Faults { failures: 1, ..NONE }) };
        assert_invariants(&two_spares, &[COMPLETES, REPLACES, PROMOTES, PROMOTED_TOO_LATE, MISTAKEN_PROMOTION]);
        assert_invariants(&with_spare(Faults { stale_reads: 1, failures: 1, ..NONE }), &[COMPLETES, PROMOTES]);
        assert_invariants(&with_spare(Faults { failures: 1, partitions: 1, ..NONE }), &[COMPLETES, PROMOTES]);
    }
}

/// Each of these clusters has about a million states or more.
#[test]
#[ignore = "a minute or more: `make model`"]
fn invariants_hold_under_more_faults() {
    for (faults, examples) in [
        (Faults { crashes: 2, stale_reads: 1, failures: 2, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
        (Faults { crashes: 1, failures: 1, partitions: 1, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
        (Faults { crashes: 1, partitions: 1, spec_changes: 1, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
    ] {
        assert_invariants(&two_stages(faults), &examples);
    }
    for (faults, examples) in [
        (Faults { crashes: 1, failures: 2, ..NONE }, vec![COMPLETES, REPLACES, REPLACED_BEFORE_NOTICE, THREE_ATTEMPTS]),
        (Faults { failures: 1, partitions: 1, ..NONE }, vec![COMPLETES, REPLACES]),
    ] {
        assert_invariants(&replacing(faults), &examples);
    }
    let spare = with_spare(Faults { crashes: 1, failures: 1, ..NONE });
    assert_invariants(
        &spare,
        &[COMPLETES, REPLACES, REPLACED_BEFORE_NOTICE, PROMOTES, PROMOTED_TOO_LATE, MISTAKEN_PROMOTION],
    );
    let replicas = one_of_two_replicas(Faults { failures: 2, ..NONE });
    assert_invariants(
        &replicas,
        &[COMPLETES, REPLACES, REPLACED_BEFORE_NOTICE, COMPLETES_WITHOUT_REPLICA, REPLICA_REJOINS],
    );
}

#[test]
fn invariants_hold_where_replicas_may_be_missing() {
    for (faults, examples) in [
        (NONE, vec![COMPLETES, COMPLETES_WITHOUT_REPLICA, REPLICA_REJOINS]),
        (
            Faults { crashes: 1, stale_reads: 1, failures: 1, ..NONE },
            vec![COMPLETES, REPLACES, COMPLETES_WITHOUT_REPLICA, REPLICA_REJOINS],
        ),
        (Faults { crashes: 1, partitions: 1, ..NONE }, vec![COMPLETES, COMPLETES_WITHOUT_REPLICA, REPLICA_REJOINS]),
    ] {
        assert_invariants(&one_of_two_replicas(faults), &examples);
    }
    if explores_all() {
        for faults in [
            Faults { failures: 1, partitions: 1, ..NONE },
            Faults { failures: 1, spec_changes: 1, ..NONE },
            Faults { failures: 1, status_losses: 1, ..NONE },
        ] {
            assert_invariants(
                &one_of_two_replicas(faults),
                &[COMPLETES, REPLACES, COMPLETES_WITHOUT_REPLICA, REPLICA_REJOINS],
            );
        }
        let two_stages_each = ClusterModel {
            mesh: Mesh { stages: 2, data_parallel: 2 },
            ..one_of_two_replicas(Faults { failures: 1, ..NONE })
        };
        assert_invariants(&two_stages_each, &[COMPLETES, REPLACES, COMPLETES_WITHOUT_REPLICA, REPLICA_REJOINS]);
    }
}

#[test]
fn invariants_hold_for_a_job_with_a_queue() {
    for (faults, examples) in [
        (Faults { evictions: 2, ..NONE }, vec![COMPLETES, COMPLETES_AFTER_EVICTION]),
        (Faults { crashes: 1, stale_reads: 1, evictions: 1, ..NONE }, vec![COMPLETES, COMPLETES_AFTER_EVICTION]),
        (Faults { failures: 1, evictions: 1, ..NONE }, vec![COMPLETES, REPLACES, COMPLETES_AFTER_EVICTION]),
        (Faults { spec_changes: 1, evictions: 1, ..NONE }, vec![COMPLETES, COMPLETES_AFTER_EVICTION]),
        (Faults { partitions: 1, evictions: 1, ..NONE }, vec![COMPLETES, COMPLETES_AFTER_EVICTION]),
    ] {
        assert_invariants(&queued(faults), &examples);
    }
    assert_violated_without(Guard::ReleaseLast, &queued(Faults { evictions: 1, ..NONE }), RESERVED);
}

#[test]
fn an_elastic_job_grows_while_it_runs() {
    for (faults, examples) in [
        (NONE, vec![COMPLETES, COMPLETES_WITH_ADDED_REPLICA, REPLICA_REJOINS]),
        (Faults { crashes: 1, stale_reads: 1, ..NONE }, vec![COMPLETES, COMPLETES_WITH_ADDED_REPLICA]),
        (Faults { failures: 1, ..NONE }, vec![COMPLETES, COMPLETES_WITH_ADDED_REPLICA, REPLACES]),
        (Faults { evictions: 1, ..NONE }, vec![COMPLETES, COMPLETES_WITH_ADDED_REPLICA, COMPLETES_AFTER_EVICTION]),
        (Faults { partitions: 1, ..NONE }, vec![COMPLETES, COMPLETES_WITH_ADDED_REPLICA]),
    ] {
        assert_invariants(&elastic(faults), &examples);
    }
}

fn assert_violated_without(guard: Guard, model: &ClusterModel, invariant: &'static str) {
    let unguarded = ClusterModel { disabled_guard: Some(guard), ..model.clone() };
    let (broken, _) = explore(&unguarded, Some(invariant));
    assert!(broken.contains(&invariant), "without {guard:?}: {broken:?}");
}

/// Checks that no sequence of transitions returns to an earlier state. Every run therefore reaches a final state, and
/// the invariant about final states (`FINAL_STATES_ARE_VALID`) applies to every run. In a cycle, a job could run for
/// ever without an end.
#[test]
fn the_state_graph_has_no_cycle() {
    for model in [
        two_stages(Faults { crashes: 1, stale_reads: 1, failures: 1, ..NONE }),
        two_stages(Faults { partitions: 1, ..NONE }),
        two_stages(Faults { crashes: 1, failures: 1, spec_changes: 1, ..NONE }),
        two_stages(Faults { crashes: 1, stale_reads: 1, status_losses: 1, ..NONE }),
        replacing(Faults { crashes: 1, failures: 1, ..NONE }),
        replacing(Faults { partitions: 1, ..NONE }),
        with_spare(Faults { failures: 1, ..NONE }),
        with_spare(Faults { spec_changes: 1, ..NONE }),
    ] {
        let mut finished = HashMap::new();
        model.init_states().iter().for_each(|cluster| walk(&model, cluster, &mut finished));
        println!("{:?}: {} states, no cycle", model.faults, finished.len());
    }
}

/// Walks depth first. `finished` records for each state whether all its successors have been visited.
fn walk(model: &ClusterModel, cluster: &ClusterState, finished: &mut HashMap<u64, bool>) {
    let mut hasher = DefaultHasher::new();
    cluster.hash(&mut hasher);
    let key = hasher.finish();
    match finished.get(&key) {
        Some(true) => return,
        Some(false) => panic!("a cycle leads back to {cluster:#?}"),
        None => {}
    }
    finished.insert(key, false);
    model.next_states(cluster).iter().for_each(|next| walk(model, next, finished));
    finished.insert(key, true);
}
