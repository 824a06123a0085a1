//! A process of the operator.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use stagecoach_cluster::Process;

/// An operator, and its log file. The operator is killed when this value is dropped.
pub struct OperatorProcess {
    pub(super) process: Process,
    pub(super) log: PathBuf,
}

impl OperatorProcess {
    /// Returns the contents of the operator's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns the operator's log file.
    pub fn log_file(&self) -> &Path {
        &self.log
    }

    /// Returns the operator's exit status; `None` while the operator runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Sends a signal to the operator.
    pub fn signal(&self, signal: i32) {
        self.process.signal(signal);
    }
}
