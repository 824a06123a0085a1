//! What a running stage is at, seen from outside: it names its threads after what they do. A process that has been
//! stopped stands still, so that its phase is known for certain when it is killed or continued.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

use crate::launched::is_gone;

/// The phase of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Reads a checkpoint.
    Load,
    /// Forward of a microbatch.
    Forward,
    /// Backward of a microbatch.
    Backward,
    /// Waits for the group's verdict on a step.
    Exchange,
    /// The optimizer's step.
    Update,
    /// Removes what fenced-off groups left.
    Sweep,
    /// Copies what a save writes behind training.
    Snapshot,
    /// Writes its shards behind training.
    Write,
    /// Writes the manifest and renames the folder into place.
    Commit,
    /// Removes older checkpoints.
    Prune,
    /// The main thread writes or commits: the save at the end of training, or of a graceful stop.
    LastSave,
    /// Trained and saved; about to tell the result.
    Finish,
}

impl Phase {
    /// The phases that occur in every step or save, or at every start.
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

    /// Whether stage 0 alone goes through it.
    pub fn is_of_stage_0(self) -> bool {
        matches!(self, Phase::Sweep | Phase::Commit | Phase::Prune)
    }

    /// Whether it is over for good once another one has begun.
    fn comes_once(self) -> bool {
        matches!(self, Phase::Load | Phase::LastSave | Phase::Finish)
    }

    /// By the main thread's name, of which Linux keeps 15 bytes.
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

    /// By the name of the thread that saves behind training.
    fn of_saver(name: &str) -> Option<Phase> {
        Some(match name {
            "commit" => Phase::Commit,
            "prune" => Phase::Prune,
            _ if name.starts_with("write ") => Phase::Write,
            _ => return None,
        })
    }
}

/// How much later than it is seen a phase is stopped, at most.
const LONGEST_DELAY: Duration = Duration::from_millis(4);

/// Between 0 and 1, by the clock.
fn random() -> f64 {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    f64::from(clock.subsec_micros() % 1000) / 1000.0
}

/// Stops `pid` in `phase`: true if it stands still there; false if it runs on, because `patience` is over, it has
/// ended, or the phase can't come any more.
pub fn stop_in(pid: u32, phase: Phase, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    let mut sightings = 0;
    while Instant::now() < deadline && !is_gone(pid) && !is_past(pid, phase) {
        if is_in(pid, phase) {
            // not always at the phase's beginning; a short one is caught at the next sighting
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

/// Stops `pid` wherever it is, and returns when all its threads stand still.
pub fn stop(pid: u32) {
    send(pid, libc::SIGSTOP);
    let stands = |tid: u32| stat(pid, tid).is_none_or(|stat| matches!(stat, 'T' | 't' | 'Z' | 'X'));
    while !threads(pid).into_iter().all(stands) {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Sends a signal to a process of the test's own that may be gone.
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

/// A thread's name; empty if it is gone.
fn name(pid: u32, tid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// A thread's state, as `ps` shows it.
fn stat(pid: u32, tid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}
