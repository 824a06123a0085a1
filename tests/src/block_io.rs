//! Blocks a stage in one of its calls on the volume until the test releases the stage. SIGSTOP would halt all threads
//! of the stage. A block halts only the thread that makes the call, so the stage's heartbeats continue.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use rustix::process::getpid;
use rustix::thread::gettid;

use crate::phases::Phase;
use crate::until;

/// The environment variable with a [`StageFault`](crate::faulty::StageFault) or an [`IoBlock`] as text, or with a mode
/// that applies to all calls: `trace` records the calls, `full` fails every write to a checkpoint, `read-only` fails
/// every call that changes the volume, and `rate=N` limits the reads of all stages together to N bytes a second.
pub const FAULT_VARIABLE: &str = "STAGECOACH_FAULT";

/// The prefix of an [`IoBlock`] as text.
pub(crate) const BLOCK_PREFIX: &str = "block=";
/// The phases in which a stage uses the volume.
const PHASES: [Phase; 7] =
    [Phase::Load, Phase::Sweep, Phase::Write, Phase::Commit, Phase::Prune, Phase::LastSave, Phase::Finish];

// the files through which the test and the stage communicate, in the folder that `RECORDS_VARIABLE` names
const ARMED: &str = "armed";
const HELD: &str = "held";
const RELEASED: &str = "released";

/// The phase in which a stage blocks. The block takes effect after a call of [`arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoBlock {
    /// The stage.
    pub rank: u32,
    /// The phase.
    pub phase: Phase,
}

impl IoBlock {
    /// Returns the block, or `None` if a stage does not use the volume in that phase.
    pub fn new(rank: u32, phase: Phase) -> Option<IoBlock> {
        PHASES.contains(&phase).then_some(IoBlock { rank, phase })
    }

    /// Whether a call belongs to the phase of this block. `target` is the new path of a rename; for other calls, it
    /// equals `path`.
    pub(crate) fn is_at(&self, operation: &str, path: &str, target: &str) -> bool {
        let writes_shard = || operation == "sync" && path.contains("/step-");
        let is_main = || gettid() == getpid();
        match self.phase {
            Phase::Load => operation == "open" && path.starts_with("checkpoints/") && path.ends_with(".safetensors"),
            Phase::Write => writes_shard() && !is_main(),
            Phase::LastSave => writes_shard() && is_main(),
            Phase::Commit => operation == "rename" && target.starts_with("checkpoints/step-"),
            Phase::Prune => operation == "rename" && path.starts_with("checkpoints/"),
            Phase::Sweep => operation == "remove_file" && path.contains(".fenced/"),
            Phase::Finish => operation == "rename" && target == "result.json",
            _ => false,
        }
    }

    /// Blocks the calling thread until the test releases the stage. Does nothing before [`arm`] and after [`release`].
    pub(crate) fn wait(&self, records: &Path) {
        let is_there = |file: &str| records.join(file).exists();
        if is_there(ARMED) && !is_there(RELEASED) {
            fs::write(records.join(HELD), "").unwrap();
            while !is_there(RELEASED) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl fmt::Display for IoBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BLOCK_PREFIX}{}:{:?}", self.rank, self.phase)
    }
}

impl FromStr for IoBlock {
    type Err = String;

    fn from_str(text: &str) -> Result<IoBlock, String> {
        let parse = || {
            let (rank, phase) = text.strip_prefix(BLOCK_PREFIX)?.split_once(':')?;
            let phase = PHASES.into_iter().find(|known| format!("{known:?}") == phase)?;
            Some(IoBlock { rank: rank.parse().ok()?, phase })
        };
        parse().ok_or_else(|| {
            format!("{FAULT_VARIABLE} is {text:?}, expected {BLOCK_PREFIX}RANK:PHASE, a phase of {PHASES:?}")
        })
    }
}

/// Arms the block: after this call, the stage blocks at its [`IoBlock`].
pub fn arm(records: &Path) {
    fs::write(records.join(ARMED), "").unwrap();
}

/// Waits until the stage is blocked.
///
/// # Panics
/// If the stage is not blocked in time, or if `is_there` returns false, which means that the group has ended.
pub fn held(records: &Path, mut is_there: impl FnMut() -> bool) {
    until("the stage to be blocked", || {
        assert!(is_there(), "the group ended before the stage was blocked");
        records.join(HELD).exists().then_some(())
    });
}

/// Releases the blocked stage.
pub fn release(records: &Path) {
    fs::write(records.join(RELEASED), "").unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_reads_back() {
        for phase in PHASES {
            let block = IoBlock::new(1, phase).unwrap();
            assert_eq!(block.to_string().parse(), Ok(block));
        }
        assert_eq!(IoBlock::new(0, Phase::Forward), None);
        assert!("block=0:Forward".parse::<IoBlock>().unwrap_err().contains("LastSave"));
    }
}
