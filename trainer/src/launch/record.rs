//! What the launcher remembers of a job between runs.

use serde::{Deserialize, Serialize};
use stagecoach_checkpoint::write_atomically;
use stagecoach_lifecycle::{Doing, State, Time};

use super::folder::{Folder, LaunchError};

/// `state.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// Stands in for the UID that an API server would give.
    pub(super) job_uid: String,
    /// The state machine's.
    pub(super) state: State,
}

impl Record {
    /// The record of an earlier run, ready for a new one; else a fresh one. Attempts go on counting; a new run by a person
    /// has the whole budget, and nothing that was given up before is given up still.
    pub(super) fn open(folder: &Folder) -> Record {
        let read = std::fs::read(folder.state()).ok().and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
        let state = |attempt| State { attempt, doing: Doing::Idle, ..State::default() };
        match read {
            Some(Record { job_uid, state: before }) => Record { job_uid, state: state(before.attempt) },
            None => Record { job_uid: unique(), state: State::default() },
        }
    }

    pub(super) fn write(&self, folder: &Folder) -> Result<(), LaunchError> {
        let path = folder.state();
        let failed = |source| LaunchError::Storage { doing: "write", path: path.clone(), source };
        let text = serde_json::to_vec(self).map_err(|e| failed(e.into()))?;
        write_atomically(&path, &text).map_err(|e| failed(std::io::Error::other(e)))
    }
}

/// Now, by the clock that the record is kept in.
pub(super) fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Time(since.as_millis() as u64)
}

/// A name that no other process has had.
pub(super) fn unique() -> String {
    let mut hasher = blake3::Hasher::new();
    let moment = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    hasher.update(&moment.as_nanos().to_le_bytes()).update(&std::process::id().to_le_bytes());
    hasher.update(&std::fs::read("/proc/sys/kernel/random/uuid").unwrap_or_default());
    hasher.finalize().to_hex()[..16].to_owned()
}
