//! Announcements of steps, which stage 0 sends to the other stages one step ahead.

use serde::{Deserialize, Serialize};
use stagecoach_data::MicrobatchLayout;
use stagecoach_engine::StageError;

use crate::train::collective::topic;
use crate::train::context::RunningStage;
use crate::train::leave::LeaveReason;

/// The facts about a step that every stage needs.
#[derive(Serialize, Deserialize)]
pub(in crate::train) struct StepAnnouncement {
    pub(in crate::train) layouts: Vec<MicrobatchLayout>,
    /// Targets that count towards the loss.
    pub(in crate::train) tokens: u64,
    /// Whether there is a checkpoint in memory after it.
    pub(in crate::train) memory_checkpoint: bool,
}

impl StepAnnouncement {
    /// On stage 0, broadcasts the announcement of step `index` (from 0), if there is such a step.
    ///
    /// # Errors
    /// If the group has failed.
    pub(in crate::train) fn send(
        running: &RunningStage,
        index: u64,
        is_checkpoint_due: impl FnOnce(u64) -> bool,
    ) -> Result<(), LeaveReason> {
        match &running.data_loader {
            Some(data_loader) if running.context.is_leader() && index < running.plan.steps => {
                let plan = data_loader.step_plan(index);
                let announcement = StepAnnouncement {
                    layouts: plan.layouts,
                    tokens: plan.target_count,
                    memory_checkpoint: is_checkpoint_due(index + 1),
                };
                let bytes = serde_json::to_vec(&announcement);
                let bytes = bytes.map_err(|e| StageError::invalid(format!("the announcement of a step: {e}")))?;
                Ok(running.member.broadcast(topic::STEP, bytes)?)
            }
            _ => Ok(()),
        }
    }

    /// The announcement of the next step.
    ///
    /// # Errors
    /// If the group has failed, or stage 0 runs another version.
    pub(in crate::train) fn receive(running: &RunningStage) -> Result<StepAnnouncement, LeaveReason> {
        let bytes = running.member.receive_broadcast(topic::STEP)?;
        Ok(serde_json::from_slice(&bytes).map_err(|e| {
            let problem = format!("stage 0's announcement of a step can't be read ({e})");
            StageError::invalid(format!("{problem}: all stages must run one version"))
        })?)
    }
}
