//! The state machine and its caller in a small world, under every interleaving: each scenario is explored to its end.
//!
//! Modelled are the job object with its resourceVersion; pods by unique names, deleted by UID; nodes that start, stop
//! and remove them; groups that form, commit, drain and lose peers; the volume's fence; and the operator, which reads
//! the job (at times a version that was overwritten since), lists the pods, decides with the real `decide`, and writes:
//! the record by compare-and-swap first, then one pod at a time. It may die between any two writes, also after a write
//! whose answer it never saw. A node may be cut off: the API shows its pod as it was, for ever, while the process lives
//! on as long as it likes. Time is an event: it passes to the operator's wake only, when nobody else is about to do
//! something; but who was asked to leave may take any time short of the termination timeout.
//!
//! That no stage of an attempt lives twice is the API's doing, by the pods' names; that only the fence's holder commits
//! is the volume's: what is shown of the fence is that nothing else would do. An older attempt on nodes that are cut off
//! may take the fence from a newer one, which then fails and restarts: still no two of them commit side by side.
//!
//! Left out: what a process computes, reports and says of its progress (a job needs one checkpoint); a second operator
//! beside the first; time that passes between two writes of one plan, or while an operator starts; gangs, quotas, and
//! deadlines of the whole job; pods that are removed by force while they run. Times are multiples of ten seconds, with
//! timeouts as close together as they may be; what ended in the same ten seconds ended at once.
//!
//! `STAGECOACH_MODEL=all` explores larger worlds too: minutes, and two gigabytes.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use stateright::{Checker, HasDiscoveries, Model};

mod operator;
mod pods;
mod properties;
mod steps;
mod world;

use operator::Guard;
use properties::*;
use steps::Checked;
use world::{Faults, World};

const NONE: Faults = Faults { crashes: 0, lags: 0, failures: 0, cuts: 0, changes: 0, losses: 0 };

const fn of_two(faults: Faults) -> Checked {
    Checked { stages: 2, faults, without: None }
}

/// Explores everything, or until `promise` is broken, and says what was found: promises that are broken, and examples.
fn explore(model: &Checked, promise: Option<&'static str>) -> (Vec<&'static str>, Vec<&'static str>) {
    let checker = match promise {
        // One thread finds a short way there.
        Some(promise) => model.clone().checker().finish_when(HasDiscoveries::AnyOf([promise].into())),
        None => model.clone().checker().finish_when(HasDiscoveries::AnyFailures).threads(2),
    };
    let checker = checker.spawn_bfs().join();
    let (states, steps, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    println!("{model:?}: {states} states, {steps} steps, {depth} deep");
    let (mut broken, mut seen) = (vec![], vec![]);
    for (name, path) in checker.discoveries() {
        if SOMETIMES.contains(&name) {
            seen.push(name);
            continue;
        }
        broken.push(name);
        let (last, steps) = (path.last_state().clone(), path.into_actions());
        println!("  not so: {name}, after {} steps", steps.len());
        if model.without.is_none() {
            println!("  {steps:#?}\n  {last:#?}");
        }
    }
    (broken, seen)
}

/// Every promise holds, and the examples are seen.
fn holds(model: &Checked, examples: &[&str]) {
    let (broken, seen) = explore(model, None);
    assert!(broken.is_empty(), "{model:?}: {broken:?}");
    assert!(examples.iter().all(|example| seen.contains(example)), "{model:?}: no more than {seen:?} was seen");
}

#[test]
fn promises_are_kept_in_every_state() {
    for (faults, examples) in [
        (NONE, vec![COMPLETES]),
        (Faults { crashes: 2, lags: 1, failures: 2, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
        (Faults { crashes: 1, failures: 3, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS, GIVES_UP]),
        (Faults { crashes: 2, lags: 1, cuts: 1, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
        (Faults { crashes: 1, failures: 1, cuts: 1, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
        (Faults { crashes: 2, lags: 1, failures: 1, changes: 1, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
        (Faults { crashes: 1, cuts: 1, changes: 1, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
        (Faults { crashes: 1, lags: 1, failures: 1, losses: 1, ..NONE }, vec![COMPLETES, THREE_ATTEMPTS]),
    ] {
        holds(&of_two(faults), &examples);
    }
    let alone = Checked { stages: 1, ..of_two(Faults { crashes: 1, cuts: 2, ..NONE }) };
    holds(&alone, &[COMPLETES, THREE_ATTEMPTS]);
    if std::env::var("STAGECOACH_MODEL").is_ok_and(|which| which == "all") {
        for faults in [
            Faults { cuts: 2, ..NONE },
            Faults { crashes: 1, lags: 1, failures: 3, ..NONE },
            Faults { crashes: 1, lags: 1, cuts: 1, changes: 1, ..NONE },
            Faults { crashes: 1, lags: 1, cuts: 1, losses: 1, ..NONE },
            Faults { crashes: 1, lags: 1, failures: 1, cuts: 1, ..NONE },
        ] {
            holds(&of_two(faults), &[COMPLETES, THREE_ATTEMPTS]);
        }
    }
}

/// A world that keeps its promises with the guard breaks this one without it.
fn is_needed(guard: Guard, model: &Checked, promise: &'static str) {
    holds(model, &[]);
    let without = Checked { without: Some(guard), ..model.clone() };
    let (broken, _) = explore(&without, Some(promise));
    assert!(broken.contains(&promise), "without {guard:?}: {broken:?}");
}

#[test]
fn no_guard_can_be_spared() {
    let old_read = of_two(Faults { lags: 1, failures: 1, ..NONE });
    let old_read_of_a_drain = of_two(Faults { lags: 1, changes: 1, ..NONE });
    let crash = of_two(Faults { crashes: 1, ..NONE });
    let failure = of_two(Faults { failures: 1, ..NONE });
    let failures = of_two(Faults { failures: 3, ..NONE });
    let lost_node = of_two(Faults { cuts: 1, ..NONE });
    let lost_status = of_two(Faults { losses: 1, ..NONE });
    // With one stage, one node that is cut off holds a whole group.
    let lost_group = Checked { stages: 1, ..lost_node.clone() };
    is_needed(Guard::CompareAndSwap, &old_read, NUMBERS);
    is_needed(Guard::CompareAndSwap, &old_read, TERMINAL);
    is_needed(Guard::ConfirmTheRead, &old_read, CREATED_ONCE);
    is_needed(Guard::ConfirmBeforeDeleting, &old_read_of_a_drain, STAYS);
    is_needed(Guard::RecordFirst, &crash, RECORDED);
    is_needed(Guard::WaitForOlder, &failure, ONE_LIVES);
    is_needed(Guard::NumberAbovePods, &lost_status, NUMBERS);
    is_needed(Guard::LiveList, &old_read, ONE_LIVES);
    is_needed(Guard::PodsCreated, &failure, CREATED_ONCE);
    is_needed(Guard::Fence, &lost_group, ONE_COMMITS);
    is_needed(Guard::TerminationTimeout, &lost_node, ENDS);
    is_needed(Guard::Budget, &failures, BUDGET);
}

/// The recorded number is guard enough until the status is lost: this is what `NumberAbovePods` is for, and no more.
#[test]
fn numbers_need_the_pods_only_once_the_status_is_lost() {
    let faults = Faults { crashes: 1, lags: 1, failures: 1, ..NONE };
    assert_eq!(explore(&Checked { without: Some(Guard::NumberAbovePods), ..of_two(faults) }, None).0, [""; 0]);
}

/// Then every run is finite, and what must hold where it comes to rest comes true in the end.
#[test]
fn no_step_leads_back() {
    for faults in [
        Faults { crashes: 1, lags: 1, failures: 1, ..NONE },
        Faults { cuts: 1, ..NONE },
        Faults { crashes: 1, failures: 1, changes: 1, ..NONE },
        Faults { crashes: 1, lags: 1, losses: 1, ..NONE },
    ] {
        let model = of_two(faults);
        let mut left = HashMap::new();
        model.init_states().iter().for_each(|world| walk(&model, world, &mut left));
        println!("{:?}: {} states, no way back", model.faults, left.len());
    }
}

/// Depth first; `left` says of each state whether all its successors were seen.
fn walk(model: &Checked, world: &World, left: &mut HashMap<u64, bool>) {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    let key = hasher.finish();
    match left.get(&key) {
        Some(true) => return,
        Some(false) => panic!("a way leads back to {world:#?}"),
        None => {}
    }
    left.insert(key, false);
    model.next_states(world).iter().for_each(|next| walk(model, next, left));
    left.insert(key, true);
}
