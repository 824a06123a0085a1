//! The exit codes of a stage.

use std::fmt;

/// The reason why a stage exited. The numbers follow sysexits.h and the shell's 128 + signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExitCode {
    /// Trained to the end.
    Done = 0,
    /// Any failure without its own code.
    Failure = 1,
    /// The volume failed, or no checkpoint on it is intact.
    Storage = 74,
    /// A peer or the coordinator was lost. The failure is collateral: another process is the cause.
    PeerLost = 75,
    /// The job or its plan can't work. A restart would not help.
    InvalidConfig = 78,
    /// SIGKILL: out of memory, or the grace period is over.
    Killed = 137,
    /// SIGTERM; a checkpoint is saved.
    Drained = 143,
}

impl ExitCode {
    /// All exit codes.
    pub const ALL: [Self; 7] =
        [Self::Done, Self::Failure, Self::Storage, Self::PeerLost, Self::InvalidConfig, Self::Killed, Self::Drained];

    /// The number given to the operating system.
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// The exit code with this number; `None` for a number that the contract doesn't name.
    pub fn from_i32(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.code() == code)
    }
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self {
            Self::Done => "done",
            Self::Failure => "failed",
            Self::Storage => "storage failed",
            Self::PeerLost => "lost a peer",
            Self::InvalidConfig => "invalid configuration",
            Self::Killed => "killed",
            Self::Drained => "drained",
        };
        write!(f, "{} ({meaning})", self.code())
    }
}
