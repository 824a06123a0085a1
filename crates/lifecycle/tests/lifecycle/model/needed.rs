//! Tests that each guard is needed: without the guard, an invariant is violated.

use stagecoach_api::contract::Mesh;

use super::cluster_state::Faults;
use super::clusters::{NONE, one_of_two_replicas, replacing, two_stages, with_spare};
use super::operator::Guard;
use super::properties::*;
use super::steps::ClusterModel;
use super::{assert_invariants, assert_violated_without, explore};

/// Asserts that all invariants hold with the guard, and that `invariant` is violated without the guard.
fn assert_guard_is_needed(guard: Guard, model: &ClusterModel, invariant: &'static str) {
    assert_invariants(model, &[]);
    assert_violated_without(guard, model, invariant);
}

#[test]
fn every_guard_is_needed() {
    let stale_read = two_stages(Faults { stale_reads: 1, failures: 1, ..NONE });
    let stale_read_during_drain = two_stages(Faults { stale_reads: 1, spec_changes: 1, ..NONE });
    let crash = two_stages(Faults { crashes: 1, ..NONE });
    let failure = two_stages(Faults { failures: 1, ..NONE });
    let failures = two_stages(Faults { failures: 3, ..NONE });
    let lost_node = two_stages(Faults { partitions: 1, ..NONE });
    let lost_status = two_stages(Faults { status_losses: 1, ..NONE });
    // with one stage, one partitioned node runs a whole group
    let lost_group = ClusterModel { mesh: Mesh::pipeline(1), ..lost_node.clone() };
    assert_guard_is_needed(Guard::CompareAndSwap, &stale_read, ATTEMPT_NUMBERS_ARE_UNIQUE);
    assert_guard_is_needed(Guard::CompareAndSwap, &stale_read, TERMINAL);
    assert_guard_is_needed(Guard::ConfirmTheRead, &stale_read, CREATED_ONCE);
    assert_guard_is_needed(Guard::ConfirmBeforeDeleting, &stale_read_during_drain, CURRENT_PODS_ARE_KEPT);
    assert_guard_is_needed(Guard::RecordFirst, &crash, ONLY_RECORDED_ARE_CREATED);
    assert_guard_is_needed(Guard::WaitForOlder, &failure, ONE_LIVES);
    assert_guard_is_needed(Guard::NumberAbovePods, &lost_status, ATTEMPT_NUMBERS_ARE_UNIQUE);
    assert_guard_is_needed(Guard::LiveList, &stale_read, ONE_LIVES);
    assert_guard_is_needed(Guard::PodsCreated, &failure, CREATED_ONCE);
    assert_guard_is_needed(Guard::Fence, &lost_group, ONE_COMMITS);
    assert_guard_is_needed(Guard::TerminationTimeout, &lost_node, FINAL_STATES_ARE_VALID);
    assert_guard_is_needed(Guard::Budget, &failures, BUDGET);
    let replaced = replacing(Faults { failures: 1, ..NONE });
    assert_guard_is_needed(Guard::Incarnations, &replaced, CREATED_ONCE);
    // the tests in the parent module show that the invariants hold with the guards
    let spare = with_spare(Faults { failures: 1, ..NONE });
    let promotions = with_spare(Faults { failures: 2, ..NONE });
    assert_violated_without(Guard::SpareIncarnations, &spare, CLAIMED_ONCE);
    assert_violated_without(Guard::StagesFirst, &spare, CLAIMED_ONCE);
    assert_violated_without(Guard::NothingToCreate, &spare, CREATED_ONCE);
    assert_violated_without(Guard::WaitForSpares, &spare, ONE_LIVES);
    assert_violated_without(Guard::RemoveSpares, &spare, FINAL_STATES_ARE_VALID);
    assert_violated_without(Guard::PromotionCounts, &promotions, BUDGET);
    let undisturbed = one_of_two_replicas(NONE);
    // a single replica can form a group
    let lost_replica = one_of_two_replicas(Faults { failures: 1, partitions: 1, ..NONE });
    assert_violated_without(Guard::Fence, &lost_replica, ONE_COMMITS);
    assert_violated_without(Guard::OneReplicaCompletes, &undisturbed, NO_ATTEMPT_AFTER_COMPLETION);
    // a group needs two of the three replicas
    let two_of_three =
        ClusterModel { mesh: Mesh { stages: 1, data_parallel: 3 }, min_data_parallel: 2, ..one_of_two_replicas(NONE) };
    assert_violated_without(Guard::RemoveWaiting, &two_of_three, FINAL_STATES_ARE_VALID);
    let both = ClusterModel { min_data_parallel: 2, ..undisturbed };
    assert_guard_is_needed(Guard::EnoughReplicas, &both, ENOUGH);
}

/// While the status is not lost, the recorded attempt number determines an unused next number. The guard
/// `NumberAbovePods` is needed only after the status was lost.
#[test]
fn numbers_need_the_pods_only_once_the_status_is_lost() {
    let faults = Faults { crashes: 1, stale_reads: 1, failures: 1, ..NONE };
    assert_eq!(
        explore(&ClusterModel { disabled_guard: Some(Guard::NumberAbovePods), ..two_stages(faults) }, None).0,
        [""; 0]
    );
}
