//! Model checking: the state machine and its caller under every interleaving of a small cluster, exhaustively.
//!
//! The model contains the job object with its resourceVersion; pods with unique names, deleted by UID; nodes that
//! start, kill and remove the pods; groups that form, commit, drain and lose peers; the volume's fence; and the
//! operator. The operator reads the job (sometimes a stale version), lists the pods, decides with the real `decide`,
//! and writes: first the record by compare-and-swap, then one pod at a time. The operator may crash between any two
//! writes, or after a write whose response it never received. A node may be partitioned: the API then shows its pod
//! unchanged for ever, while the process continues to run for any time. Time is an event: it advances only to the
//! operator's wake-up, and only when no other transition is immediate. A terminating process may take any time below
//! the termination timeout.
//!
//! The API guarantees, through the pods' names, that no stage of an attempt runs twice. The volume guarantees that only
//! the fence's holder commits; the model only shows that the fence is necessary. An older attempt on partitioned nodes
//! may take the fence from a newer attempt, which then fails and restarts. Two attempts still never commit at the same
//! time.
//!
//! With replacement of stages, a stage that has lost its group may wait for the next group or give up at any time. A
//! group takes in the newest living process of each stage. A stage 0 that has lost a group takes the next fence only if
//! it holds the last one.
//!
//! The other stages may report that a process has ended before the process's node notices.
//!
//! With spares, a group promotes a spare to a stage that has ended, or by mistake to a stage 0 that is alive. The
//! promotion may happen at any time until another process of that stage has started, and the API may show it at any
//! later time. A spare that is not ready counts as pending.
//!
//! With missing replicas, a group forms with every replica that the present stages can form. The group may form earlier
//! or later than in reality, and no time passes for the other processes. A process that waits beside a group never ends
//! a member of the group. When the waiting processes can form another replica, the leader leaves for the next group,
//! which takes them in, and the other members follow. When the leader's process ends, the next leader is stage 0 of the
//! second replica, or the process that is started in the leader's place, which the volume names. An older group may
//! live on beside a newer one.
//!
//! The model leaves out reports of lost stages that may be alive; a process's computations, reports and published
//! progress (a job needs one checkpoint); a second operator beside the first; time between two writes of a plan, or
//! while an operator starts; gangs, quotas and active deadlines; and pods that are removed by force while they run.
//! Times are multiples of ten seconds, with timeouts as close together as possible. Exits within the same ten seconds
//! are simultaneous.
//!
//! `make test-slow` also explores clusters with more faults. `STAGECOACH_MODEL=all` also explores larger clusters,
//! which takes minutes and two gigabytes of memory.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use stagecoach_api::contract::Mesh;
use stateright::{Checker, HasDiscoveries, Model};

mod cluster_state;
mod operator;
mod pods;
mod properties;
mod steps;
mod time;

use cluster_state::{ClusterState, Faults};
use operator::Guard;
use properties::*;
use steps::ClusterModel;

const NONE: Faults =
    Faults { crashes: 0, stale_reads: 0, failures: 0, partitions: 0, spec_changes: 0, status_losses: 0, evictions: 0 };

const fn two_stages(faults: Faults) -> ClusterModel {
    ClusterModel {
        mesh: Mesh::pipeline(2),
        replaces_stages: false,
        spares: 0,
        min_data_parallel: u32::MAX,
        is_queued: false,
        is_elastic: false,
        faults,
        disabled_guard: None,
    }
}

/// The same cluster with replacement of lost stages.
const fn replacing(faults: Faults) -> ClusterModel {
    ClusterModel { replaces_stages: true, ..two_stages(faults) }
}

/// The same cluster with a spare beside the stages.
const fn with_spare(faults: Faults) -> ClusterModel {
    ClusterModel { spares: 1, ..replacing(faults) }
}

/// The same cluster with a queue that admits the job.
const fn queued(faults: Faults) -> ClusterModel {
    ClusterModel { is_queued: true, ..replacing(faults) }
}

/// Two replicas of one stage. Either replica is enough for a group.
const fn one_of_two_replicas(faults: Faults) -> ClusterModel {
    ClusterModel { mesh: Mesh { stages: 1, data_parallel: 2 }, min_data_parallel: 1, ..replacing(faults) }
}

/// Two replicas of one stage, with a queue that admits one of them first.
const fn elastic(faults: Faults) -> ClusterModel {
    ClusterModel { is_queued: true, is_elastic: true, ..one_of_two_replicas(faults) }
}

/// Explores all states, or stops once `invariant` is violated. Returns the violated invariants and the found examples.
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
        (Faults { crashes: 1, stale_reads: 1, failures: 1, ..NONE }, vec![COMPLETES, REPLACES, PRECEDES]),
        (Faults { crashes: 1, partitions: 1, ..NONE }, vec![COMPLETES]),
        (Faults { crashes: 1, failures: 1, spec_changes: 1, ..NONE }, vec![COMPLETES, REPLACES]),
        (Faults { failures: 1, status_losses: 1, ..NONE }, vec![COMPLETES, REPLACES]),
    ] {
        assert_invariants(&replacing(faults), &examples);
    }
    for (faults, examples) in [
        (NONE, vec![COMPLETES]),
        (Faults { failures: 1, ..NONE }, vec![COMPLETES, REPLACES, PRECEDES, PROMOTES, TOO_LATE, WRONGLY]),
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
        assert_invariants(&two_spares, &[COMPLETES, REPLACES, PROMOTES, TOO_LATE, WRONGLY]);
        assert_invariants(&with_spare(Faults { stale_reads: 1, failures: 1, ..NONE }), &[COMPLETES, PROMOTES]);
        assert_invariants(&with_spare(Faults { failures: 1, partitions: 1, ..NONE }), &[COMPLETES, PROMOTES]);
    }
}

/// Each of these clusters has about a million states or more.
#[test]
#[ignore = "a minute or more: `make test-slow`"]
fn invariants_hold_under_more_faults() {
    for (faults, examples) in [
        (Faults { crashes: 2, stale_reads: 1, failures: 2, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
        (Faults { crashes: 1, failures: 1, partitions: 1, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
        (Faults { crashes: 1, partitions: 1, spec_changes: 1, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
    ] {
        assert_invariants(&two_stages(faults), &examples);
    }
    for (faults, examples) in [
        (Faults { crashes: 1, failures: 2, ..NONE }, vec![COMPLETES, REPLACES, PRECEDES, THREE_ATTEMPTS]),
        (Faults { failures: 1, partitions: 1, ..NONE }, vec![COMPLETES, REPLACES]),
    ] {
        assert_invariants(&replacing(faults), &examples);
    }
    let spare = with_spare(Faults { crashes: 1, failures: 1, ..NONE });
    assert_invariants(&spare, &[COMPLETES, REPLACES, PRECEDES, PROMOTES, TOO_LATE, WRONGLY]);
    let replicas = one_of_two_replicas(Faults { failures: 2, ..NONE });
    assert_invariants(&replicas, &[COMPLETES, REPLACES, PRECEDES, WITHOUT, TAKES_BACK]);
}

#[test]
fn invariants_hold_where_replicas_may_be_missing() {
    for (faults, examples) in [
        (NONE, vec![COMPLETES, WITHOUT, TAKES_BACK]),
        (Faults { crashes: 1, stale_reads: 1, failures: 1, ..NONE }, vec![COMPLETES, REPLACES, WITHOUT, TAKES_BACK]),
        (Faults { crashes: 1, partitions: 1, ..NONE }, vec![COMPLETES, WITHOUT, TAKES_BACK]),
    ] {
        assert_invariants(&one_of_two_replicas(faults), &examples);
    }
    if explores_all() {
        for faults in [
            Faults { failures: 1, partitions: 1, ..NONE },
            Faults { failures: 1, spec_changes: 1, ..NONE },
            Faults { failures: 1, status_losses: 1, ..NONE },
        ] {
            assert_invariants(&one_of_two_replicas(faults), &[COMPLETES, REPLACES, WITHOUT, TAKES_BACK]);
        }
        let two_stages_each = ClusterModel {
            mesh: Mesh { stages: 2, data_parallel: 2 },
            ..one_of_two_replicas(Faults { failures: 1, ..NONE })
        };
        assert_invariants(&two_stages_each, &[COMPLETES, REPLACES, WITHOUT, TAKES_BACK]);
    }
}

#[test]
fn invariants_hold_for_a_job_with_a_queue() {
    for (faults, examples) in [
        (Faults { evictions: 2, ..NONE }, vec![COMPLETES, RETURNS]),
        (Faults { crashes: 1, stale_reads: 1, evictions: 1, ..NONE }, vec![COMPLETES, RETURNS]),
        (Faults { failures: 1, evictions: 1, ..NONE }, vec![COMPLETES, REPLACES, RETURNS]),
        (Faults { spec_changes: 1, evictions: 1, ..NONE }, vec![COMPLETES, RETURNS]),
        (Faults { partitions: 1, evictions: 1, ..NONE }, vec![COMPLETES, RETURNS]),
    ] {
        assert_invariants(&queued(faults), &examples);
    }
    assert_violated_without(Guard::ReleaseLast, &queued(Faults { evictions: 1, ..NONE }), RESERVED);
}

#[test]
fn an_elastic_job_grows_while_it_runs() {
    for (faults, examples) in [
        (NONE, vec![COMPLETES, GROWS, TAKES_BACK]),
        (Faults { crashes: 1, stale_reads: 1, ..NONE }, vec![COMPLETES, GROWS]),
        (Faults { failures: 1, ..NONE }, vec![COMPLETES, GROWS, REPLACES]),
        (Faults { evictions: 1, ..NONE }, vec![COMPLETES, GROWS, RETURNS]),
        (Faults { partitions: 1, ..NONE }, vec![COMPLETES, GROWS]),
    ] {
        assert_invariants(&elastic(faults), &examples);
    }
}

/// Asserts that `invariant` is violated without the guard. All invariants hold with the guard.
fn assert_guard_is_needed(guard: Guard, model: &ClusterModel, invariant: &'static str) {
    assert_invariants(model, &[]);
    assert_violated_without(guard, model, invariant);
}

fn assert_violated_without(guard: Guard, model: &ClusterModel, invariant: &'static str) {
    let unguarded = ClusterModel { disabled_guard: Some(guard), ..model.clone() };
    let (broken, _) = explore(&unguarded, Some(invariant));
    assert!(broken.contains(&invariant), "without {guard:?}: {broken:?}");
}

#[test]
fn every_guard_is_needed() {
    let old_read = two_stages(Faults { stale_reads: 1, failures: 1, ..NONE });
    let old_read_of_a_drain = two_stages(Faults { stale_reads: 1, spec_changes: 1, ..NONE });
    let crash = two_stages(Faults { crashes: 1, ..NONE });
    let failure = two_stages(Faults { failures: 1, ..NONE });
    let failures = two_stages(Faults { failures: 3, ..NONE });
    let lost_node = two_stages(Faults { partitions: 1, ..NONE });
    let lost_status = two_stages(Faults { status_losses: 1, ..NONE });
    // with one stage, one partitioned node holds a whole group
    let lost_group = ClusterModel { mesh: Mesh::pipeline(1), ..lost_node.clone() };
    assert_guard_is_needed(Guard::CompareAndSwap, &old_read, NUMBERS);
    assert_guard_is_needed(Guard::CompareAndSwap, &old_read, TERMINAL);
    assert_guard_is_needed(Guard::ConfirmTheRead, &old_read, CREATED_ONCE);
    assert_guard_is_needed(Guard::ConfirmBeforeDeleting, &old_read_of_a_drain, STAYS);
    assert_guard_is_needed(Guard::RecordFirst, &crash, RECORDED);
    assert_guard_is_needed(Guard::WaitForOlder, &failure, ONE_LIVES);
    assert_guard_is_needed(Guard::NumberAbovePods, &lost_status, NUMBERS);
    assert_guard_is_needed(Guard::LiveList, &old_read, ONE_LIVES);
    assert_guard_is_needed(Guard::PodsCreated, &failure, CREATED_ONCE);
    assert_guard_is_needed(Guard::Fence, &lost_group, ONE_COMMITS);
    assert_guard_is_needed(Guard::TerminationTimeout, &lost_node, ENDS);
    assert_guard_is_needed(Guard::Budget, &failures, BUDGET);
    let replaced = replacing(Faults { failures: 1, ..NONE });
    assert_guard_is_needed(Guard::Incarnations, &replaced, CREATED_ONCE);
    // the tests above show that the invariants hold with the guards
    let spare = with_spare(Faults { failures: 1, ..NONE });
    let promotions = with_spare(Faults { failures: 2, ..NONE });
    assert_violated_without(Guard::SpareIncarnations, &spare, CLAIMED_ONCE);
    assert_violated_without(Guard::StagesFirst, &spare, CLAIMED_ONCE);
    assert_violated_without(Guard::NothingToCreate, &spare, CREATED_ONCE);
    assert_violated_without(Guard::WaitForSpares, &spare, ONE_LIVES);
    assert_violated_without(Guard::RemoveSpares, &spare, ENDS);
    assert_violated_without(Guard::PromotionCounts, &promotions, BUDGET);
    let undisturbed = one_of_two_replicas(NONE);
    // a single replica is a whole group
    let lost_replica = one_of_two_replicas(Faults { failures: 1, partitions: 1, ..NONE });
    assert_violated_without(Guard::Fence, &lost_replica, ONE_COMMITS);
    assert_violated_without(Guard::OneReplicaCompletes, &undisturbed, STAYS_DONE);
    // one replica is not enough
    let two_of_three =
        ClusterModel { mesh: Mesh { stages: 1, data_parallel: 3 }, min_data_parallel: 2, ..one_of_two_replicas(NONE) };
    assert_violated_without(Guard::RemoveWaiting, &two_of_three, ENDS);
    let both = ClusterModel { min_data_parallel: 2, ..undisturbed };
    assert_guard_is_needed(Guard::EnoughReplicas, &both, ENOUGH);
}

/// The recorded number suffices until the status is lost. `NumberAbovePods` is needed only after that.
#[test]
fn numbers_need_the_pods_only_once_the_status_is_lost() {
    let faults = Faults { crashes: 1, stale_reads: 1, failures: 1, ..NONE };
    assert_eq!(
        explore(&ClusterModel { disabled_guard: Some(Guard::NumberAbovePods), ..two_stages(faults) }, None).0,
        [""; 0]
    );
}

/// Without cycles, every run is finite, so that a property of every final state eventually holds.
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
