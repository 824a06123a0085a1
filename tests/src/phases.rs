//! Observes the phase of a running stage from its thread names, since a stage names its threads after their work. A
//! stopped process does not change its phase, so a test knows the phase in which it kills or continues the process.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

use crate::is_gone;

/// The phase of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The stage reads a checkpoint.
    Load,
    /// The stage computes the forward pass of a microbatch.
    Forward,
    /// The stage computes the backward pass of a microbatch.
    Backward,
    /// The stage waits for the group's verdict on a step.
    Exchange,
    /// The stage's optimizer updates the weights.
    Update,
    /// The stage removes the files that older groups left in `fences/`.
    Sweep,
    /// The stage copies its state for a save during training.
    Snapshot,
    /// The stage's checkpoint thread writes shards during training.
    Write,
    /// The checkpoint thread writes the manifest and commits the checkpoint by a rename.
    Commit,
    /// The checkpoint thread removes older checkpoints.
    Prune,
    /// The main thread writes or commits a checkpoint, at the end of training or after a drain.
    LastSave,
    /// The stage has trained and saved, and computes the result.
    Finish,
}

impl Phase {
    /// The phases that occur in every step, every save or every start.
    pub const RECURRING: [Phase; 9] = [
        Phase::Load,
        Phase::Forward,
        Phase::Backward,
        Phase::Exchange,
        Phase::Update,
        Phase::Snapshot,
        Phase::Write,
        Phase::Commit,
        Phase::Prune,
    ];

    /// Whether only stage 0 goes through this phase.
    pub fn is_of_stage_0(self) -> bool {
        matches!(self, Phase::Sweep | Phase::Commit | Phase::Prune)
    }

    /// Whether this phase can't occur again after a later phase.
    fn comes_once(self) -> bool {
        matches!(self, Phase::Load | Phase::LastSave | Phase::Finish)
    }

    /// Returns the phase that the main thread's name shows. Linux keeps 15 bytes of a name.
    fn of_main(name: &str) -> Option<Phase> {
        Some(match name {
            "EXCHANGE" => Phase::Exchange,
            "UPDATE" => Phase::Update,
            "SNAPSHOT" => Phase::Snapshot,
            "hashing the wei" => Phase::Finish,
            "commit" => Phase::LastSave,
            _ if name.starts_with("loading") => Phase::Load,
            _ if name.starts_with("write ") => Phase::LastSave,
            _ if name.starts_with("F ") => Phase::Forward,
            _ if name.starts_with("B ") || name.starts_with("W ") => Phase::Backward,
            _ => return None,
        })
    }

    /// Returns the phase that the checkpoint thread's name shows.
    fn of_saver(name: &str) -> Option<Phase> {
        Some(match name {
            "commit" => Phase::Commit,
            "prune" => Phase::Prune,
            _ if name.starts_with("write ") => Phase::Write,
            _ => return None,
        })
    }
}

/// The longest delay between the observation of a phase and the stop.
const LONGEST_DELAY: Duration = Duration::from_millis(4);

/// Returns a number between 0 and 1, from the clock.
fn random() -> f64 {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    f64::from(clock.subsec_micros() % 1000) / 1000.0
}

/// Stops `pid` in `phase`. Returns whether the process is stopped in that phase. The result is false if `patience`
/// passes first, if the process has ended, or if the phase can't occur any more.
pub fn stop_in(pid: u32, phase: Phase, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    let mut sightings = 0;
    while Instant::now() < deadline && !is_gone(pid) && !is_past(pid, phase) {
        if is_in(pid, phase) {
            // the delay varies the point within the phase; every second attempt has no delay, to catch a phase that is
            // shorter than the delay
            if sightings % 2 == 0 && !phase.comes_once() {
                std::thread::sleep(LONGEST_DELAY.mul_f64(random()));
            }
            sightings += 1;
            stop(pid);
            if is_in(pid, phase) {
                return true;
            }
            send(pid, libc::SIGCONT);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    false
}

/// Stops `pid` in any phase, and waits until all its threads have stopped.
pub fn stop(pid: u32) {
    send(pid, libc::SIGSTOP);
    let stands = |tid: u32| stat(pid, tid).is_none_or(|stat| matches!(stat, 'T' | 't' | 'Z' | 'X'));
    while !threads(pid).into_iter().all(stands) {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Sends a signal to a process that the test started. The process may have ended.
pub fn send(pid: u32, signal: i32) {
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::from_named_raw(signal).unwrap());
}

fn is_in(pid: u32, phase: Phase) -> bool {
    match phase {
        Phase::Write | Phase::Commit | Phase::Prune => {
            let saves = |tid: &u32| *tid != pid && Phase::of_saver(&name(pid, *tid)) == Some(phase);
            threads(pid).iter().any(saves)
        }
        _ => Phase::of_main(&name(pid, pid)) == Some(phase),
    }
}

fn is_past(pid: u32, phase: Phase) -> bool {
    phase.comes_once() && Phase::of_main(&name(pid, pid)).is_some_and(|now| now > phase)
}

fn threads(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_string_lossy().parse().ok()).collect()
}

/// Returns a thread's name. The name is empty if the thread has ended.
fn name(pid: u32, tid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Returns a thread's state as the letter that `ps` shows.
fn stat(pid: u32, tid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}
