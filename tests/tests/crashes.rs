//! Every operation on the shared folder may be the last one of the stage that does it: the launcher starts the group
//! again, and it ends with the undisturbed run's bits. Real trainers, real SIGKILLs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use stagecoach_checkpoint::layout;
use stagecoach_tests::corpus::Draws;
use stagecoach_tests::faulty::{Call, Fault, How};
use stagecoach_tests::scene::{Case, Ran, Scene, each, seed};

const SYNC: &str = "{everySteps: 2, keepLast: 1, mode: Sync}";
const ASYNC: &str = "{everySteps: 2, keepLast: 1, mode: Async}";
/// How many of the rest are drawn, unless all are run.
const SAMPLE: usize = 20;

struct Death {
    from_mess: bool,
    call: Call,
    how: How,
}

/// Every way to die at each of `calls`.
fn ways(from_mess: bool, calls: &[Call]) -> impl Iterator<Item = Death> {
    let ways = |call: &Call| match call.operation.as_str() {
        "write" => vec![How::DieWithin, How::DieAfter],
        // these follow another call on the same file or folder, with nothing between: before is after that one
        "size" | "read_at" | "sync" | "remove_file" | "remove_dir" => vec![How::DieAfter],
        _ => vec![How::DieBefore, How::DieAfter],
    };
    calls
        .iter()
        .flat_map(move |call| ways(call).into_iter().map(move |how| Death { from_mess, call: call.clone(), how }))
}

/// Every rename both ways; every mkdir and sync one way or the other; some of the rest.
fn sample(deaths: Vec<Death>) -> Vec<Death> {
    let mut draws = Draws(seed());
    let (mut chosen, mut rest) = (Vec::new(), Vec::new());
    let mut before = false;
    for death in deaths {
        if death.how == How::DieBefore {
            before = draws.below(2) == 0;
        }
        match death.call.operation.as_str() {
            "rename" | "sync" => chosen.push(death),
            "make_dir" | "sync_dir" if before == (death.how == How::DieBefore) => chosen.push(death),
            "make_dir" | "sync_dir" => {}
            _ => rest.push(death),
        }
    }
    chosen.extend((0..SAMPLE).map(|_| rest.swap_remove(draws.below(rest.len() as u64) as usize)));
    chosen
}

/// Whether the call was reached, and the stage died of it.
fn run(scene: &Scene, checkpoint: &str, at: usize, death: &Death) -> bool {
    let Death { from_mess, call, how } = death;
    let fault = Fault { rank: call.rank, call: call.number, how: *how }.to_string();
    println!("{fault}: {} {}", call.operation, call.path);
    let name = &format!("case-{at}");
    if *from_mess {
        scene.mess(name);
    }
    let ran = scene.run(&Case { name, checkpoint, fault: &fault, restarts: 3 });
    ran.ended_well(scene);
    if *from_mess {
        keeps_what_was_damaged(&ran);
    }
    let fired = ran.fired();
    if let Some(fired) = &fired {
        assert!(checkpoint == ASYNC || fired.operation == call.operation, "{fired:?} instead");
        assert!(ran.attempts() > 1);
    }
    fired.is_some()
}

/// Damaged checkpoints are for people to look at: also those that an older group was about to set aside.
fn keeps_what_was_damaged(ran: &Ran) {
    for step in [0, 3] {
        let manifest = ran.folder.join("damaged").join(layout::step_name(step)).join(layout::MANIFEST);
        assert!(manifest.exists(), "{} is gone", manifest.display());
    }
}

/// The calls of a run that goes on from the mess undisturbed.
fn trace(scene: &Scene, checkpoint: &str) -> Vec<Call> {
    scene.mess("traced");
    let ran = scene.run(&Case { name: "traced", checkpoint, fault: "trace", restarts: 0 });
    ran.ended_well(scene);
    keeps_what_was_damaged(&ran);
    ran.trace()
}

/// How many, by operation.
fn told(deaths: &[Death], of: usize) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    deaths.iter().for_each(|d| *counts.entry(&d.call.operation).or_default() += 1);
    println!("{} of {of} deaths, seed {}: {counts:?}", deaths.len(), seed());
}

#[test]
fn every_operation_may_be_the_last() {
    let scene = Scene::new(env!("CARGO_BIN_EXE_faulty"));
    let calls = trace(&scene, SYNC);
    // where nothing is there yet, only the way to the first save differs
    let afresh: Vec<Call> = scene.afresh.iter().take_while(|call| call.operation != "create").cloned().collect();
    let mut deaths: Vec<Death> = ways(false, &afresh).chain(ways(true, &calls)).collect();
    let of = deaths.len();
    if std::env::var("STAGECOACH_CRASHES").as_deref() != Ok("all") {
        deaths = sample(deaths);
    }
    told(&deaths, of);
    each("deaths", 3, &deaths, |at, death| assert!(run(&scene, SYNC, at, death), "the fault was never reached"));
}

#[test]
fn so_may_any_behind_training() {
    let scene = Scene::new(env!("CARGO_BIN_EXE_faulty"));
    let mut calls = trace(&scene, ASYNC);
    calls.retain(|call| !["open", "size", "read_at"].contains(&call.operation.as_str())); // that is loading
    let mut all: Vec<Death> = ways(true, &calls).collect();
    let (of, mut draws) = (all.len(), Draws(seed()));
    let deaths: Vec<Death> = (0..15).map(|_| all.swap_remove(draws.below(all.len() as u64) as usize)).collect();
    told(&deaths, of);
    // two threads of a stage call in any order: a number may belong to another call, or to none
    let reached = AtomicUsize::new(0);
    each("deaths behind training", 1, &deaths, |at, death| {
        reached.fetch_add(usize::from(run(&scene, ASYNC, at, death)), Ordering::SeqCst);
    });
    let reached = reached.into_inner();
    println!("{reached} of {} were reached", deaths.len());
    assert!(reached >= 10);
}
