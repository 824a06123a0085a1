//! A stage crashes at any operation on the shared folder. The launcher starts the group again, and the job's result is
//! bit-identical to the result of a run without faults. The trainers and the SIGKILLs are real.

use std::collections::BTreeMap;

use stagecoach_checkpoint::paths;
use stagecoach_test_volumes::VolumeFault;
use stagecoach_tests::corpus::Draws;
use stagecoach_tests::each;
use stagecoach_tests::faulty::{StageCall, StageFault};
use stagecoach_tests::fixture::{COMMITTED, Case, Fixture, seed};

const SYNC: &str = "{everySteps: 2, keepLast: 1, mode: Sync}";
const ASYNC: &str = "{everySteps: 2, keepLast: 1, mode: Async}";
/// The steps of the checkpoints in `damaged/` after a run that resumed from a folder with leftovers.
const MESS: [u64; 2] = [0, COMMITTED[2]];
/// The number of crashes in the sample at calls other than renames. Also the number of crashes in the test with
/// asynchronous saves.
const SAMPLE: usize = 10;

struct Death {
    from_leftovers: bool,
    call: StageCall,
    fault: VolumeFault,
}

/// Returns every kind of crash at each of `calls`.
fn ways(from_leftovers: bool, calls: &[StageCall]) -> impl Iterator<Item = Death> {
    let ways = |call: &StageCall| match call.operation.as_str() {
        "write" => vec![VolumeFault::CrashDuring, VolumeFault::CrashAfter],
        // a crash before one of these calls has the same effect as a crash after the previous call on the same file or
        // folder
        "size" | "read_at" | "sync" | "remove_file" | "remove_dir" => vec![VolumeFault::CrashAfter],
        _ => vec![VolumeFault::CrashBefore, VolumeFault::CrashAfter],
    };
    calls.iter().flat_map(move |call| {
        ways(call).into_iter().map(move |fault| Death { from_leftovers, call: call.clone(), fault })
    })
}

/// Returns a sample: every rename with all kinds of crashes, since a rename commits what was written before it, and
/// [`SAMPLE`] other crashes.
fn sample(deaths: Vec<Death>) -> Vec<Death> {
    let mut draws = Draws(seed());
    let (mut chosen, mut rest): (Vec<Death>, Vec<Death>) =
        deaths.into_iter().partition(|death| death.call.operation == "rename");
    chosen.extend((0..SAMPLE).map(|_| rest.swap_remove(draws.below(rest.len() as u64) as usize)));
    chosen
}

/// Runs the job with this crash. Returns the step after which the last attempt resumed, or `None` if no stage made the
/// call.
fn run(fixture: &Fixture, checkpoint: &str, at: usize, death: &Death) -> Option<u64> {
    let Death { from_leftovers, call, fault } = death;
    let fault = StageFault { rank: call.rank, call: call.number, fault: *fault }.to_string();
    println!("{fault}: {} {}", call.operation, call.path);
    let name = &format!("case-{at}");
    if *from_leftovers {
        fixture.with_leftovers(name);
    }
    let ran = fixture.run(&Case { name, checkpoint, fault: &fault, restarts: 3 });
    ran.ended_well(fixture);
    ran.is_tidy(if *from_leftovers { &MESS } else { &[] });
    let fired = ran.fired()?;
    assert!(checkpoint == ASYNC || fired.operation == call.operation, "{fired:?} instead");
    assert!(ran.attempts() > 1);
    Some(ran.resumed_after().unwrap_or(0))
}

/// Returns the step after which the next attempt must resume: the last step that was committed before the crash.
fn survives(traced: &[StageCall], Death { from_leftovers, call, fault }: &Death) -> u64 {
    let at = traced.iter().position(|c| (c.rank, c.number) == (call.rank, call.number)).unwrap();
    let done = &traced[..at + usize::from(*fault == VolumeFault::CrashAfter)];
    let committed = |call: &StageCall| paths::parse_step_dir_name(call.path.strip_prefix("checkpoints/")?);
    let newest = done.iter().filter(|call| call.operation == "rename").filter_map(committed).max();
    newest.unwrap_or(if *from_leftovers { COMMITTED[1] } else { 0 })
}

/// Returns the calls of an undisturbed run that resumes from a folder with leftovers.
fn trace(fixture: &Fixture, checkpoint: &str) -> Vec<StageCall> {
    fixture.with_leftovers("traced");
    let ran = fixture.run(&Case { name: "traced", checkpoint, fault: "trace", restarts: 0 });
    ran.ended_well(fixture);
    ran.is_tidy(&MESS);
    ran.trace()
}

/// Prints the number of crashes by operation.
fn reported(deaths: &[Death], of: usize) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    deaths.iter().for_each(|d| *counts.entry(&d.call.operation).or_default() += 1);
    println!("{} of {of} deaths, seed {}: {counts:?}", deaths.len(), seed());
}

#[test]
fn every_operation_may_be_the_last() {
    let fixture = crate::fixture();
    let calls = trace(&fixture, SYNC);
    // a run in an empty folder differs from this run only in the calls before its first save
    let first_run: Vec<StageCall> =
        fixture.first_run.iter().take_while(|call| call.operation != "create").cloned().collect();
    let mut deaths: Vec<Death> = ways(false, &first_run).chain(ways(true, &calls)).collect();
    let of = deaths.len();
    if std::env::var("STAGECOACH_CRASHES").as_deref() != Ok("all") {
        deaths = sample(deaths);
    }
    reported(&deaths, of);
    each("deaths", &deaths, |at, death| {
        let traced = if death.from_leftovers { &calls } else { &fixture.first_run };
        assert_eq!(run(&fixture, SYNC, at, death), Some(survives(traced, death)), "resumed after another step");
    });
}

#[test]
fn so_may_any_behind_training() {
    let fixture = crate::fixture();
    let mut calls = trace(&fixture, ASYNC);
    calls.retain(|call| !["open", "size", "read_at"].contains(&call.operation.as_str())); // calls of a load
    let mut all: Vec<Death> = ways(true, &calls).collect();
    let (of, mut draws) = (all.len(), Draws(seed()));
    // the calls of a stage's two threads interleave differently in each run: the number of a traced call may belong to
    // another call, or to none, and then no stage crashes
    let (mut died, mut survived) = (Vec::new(), 0);
    while died.len() < SAMPLE {
        assert!(!all.is_empty(), "only {} of {of} deaths happened", died.len());
        let death = all.swap_remove(draws.below(all.len() as u64) as usize);
        match run(&fixture, ASYNC, died.len() + survived, &death) {
            Some(step) => {
                assert!(step >= COMMITTED[1]);
                died.push(death);
            }
            None => survived += 1,
        }
    }
    reported(&died, of);
    println!("{survived} chosen crashes did not occur, because no stage made the call");
}
