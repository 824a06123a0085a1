//! The collective messages of a group (broadcasts and all-gathers), apart from the votes on steps.

use serde::Serialize;
use serde::de::DeserializeOwned;
use stagecoach_engine::StageError;
use stagecoach_group::Member;

use crate::train::leave::LeaveReason;

/// The topics of collective messages. The group orders the messages of each topic separately.
pub(in crate::train) mod topic {
    /// The leader's announcements of steps, which it broadcasts one step ahead.
    pub(in crate::train) const STEP: u32 = 1;
    /// The held-out loss.
    pub(in crate::train) const EVALUATION: u32 = 2;
    /// The results of a save, from the main thread or the checkpoint thread.
    pub(in crate::train) const SAVE: u32 = 3;
    /// The results of loading a checkpoint.
    pub(in crate::train) const LOAD: u32 = 4;
    /// The hashes of the final weights.
    pub(in crate::train) const FINISH: u32 = 5;
    /// The copies of the stages' state in memory.
    pub(in crate::train) const MEMORY: u32 = 7;
    /// The reasons why links do not use a faster transport, such as shared memory.
    pub(in crate::train) const CARRIERS: u32 = 8;
    /// The results of audited work.
    pub(in crate::train) const AUDIT: u32 = 9;
    /// The environments of all members.
    pub(in crate::train) const ENVIRONMENT: u32 = 6;
    /// The hashes of the frozen weights.
    pub(in crate::train) const FROZEN: u32 = 10;
}

/// Sends `own` to all members of the group, and returns the values of all members, by group rank.
pub(in crate::train) fn all_gather<T: Serialize + DeserializeOwned>(
    member: &Member,
    topic: u32,
    own: &T,
) -> Result<Vec<T>, LeaveReason> {
    let bytes = serde_json::to_vec(own).map_err(|e| StageError::invalid(e.to_string()))?;
    let all = member.all_gather(topic, bytes)?;
    let read = all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>();
    Ok(read.map_err(|e| {
        StageError::invalid(format!(
            "a stage's report can't be read ({e}): all stages must run the same version of Stagecoach"
        ))
    })?)
}
