//! Announcements of steps, which the leader sends to the other stages one step ahead.

use std::cell::Cell;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stagecoach_data::{DataError, MicrobatchLayout, StreamPosition};
use stagecoach_engine::StageError;
use stagecoach_group::GroupError;

use crate::train::collective::topic;
use crate::train::context::RunningStage;
use crate::train::leave::LeaveReason;

/// The facts about a step that every stage needs.
#[derive(Serialize, Deserialize)]
pub(in crate::train) struct StepAnnouncement {
    pub(in crate::train) layouts: Vec<MicrobatchLayout>,
    /// The number of targets that count towards the loss.
    pub(in crate::train) tokens: u64,
    /// Whether the stages take a memory checkpoint after the step.
    pub(in crate::train) memory_checkpoint: bool,
    /// The positions of the sources of a streamed corpus after the step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::train) streams: Vec<StreamPosition>,
}

/// The outcome of [`StepAnnouncement::send`] on the leader.
pub(in crate::train) enum Announced {
    /// The leader has announced the step, or there is no such step. The value is the time for which the leader waited
    /// for the data of a streamed corpus.
    Sent(Option<Duration>),
    /// A stop was requested before the data was available.
    Stopping,
    /// The data can't be read.
    NoData(StageError),
}

impl StepAnnouncement {
    /// Broadcasts the announcement of step `index`, counted from 0, as soon as the step's data is available. Only the
    /// leader sends, and only if training has this step. `is_checkpoint_due` gets the number of finished steps, and
    /// returns whether the stages then take a memory checkpoint.
    ///
    /// # Errors
    /// If the group has failed.
    pub(in crate::train) fn send(
        running: &RunningStage,
        index: u64,
        is_checkpoint_due: impl FnOnce(u64) -> bool,
    ) -> Result<Announced, LeaveReason> {
        match &running.data_loader {
            Some(data_loader) if running.context.is_leader() && index < running.plan.steps => {
                let stops = || running.context.monitor.stop_requested_at().is_some();
                let failure = || running.member.wait_for_failure(Duration::ZERO);
                let (activity, read) = (running.member.activity(), Cell::new(0));
                let keep_waiting = |read_so_far| {
                    // a slow source may take longer than the stall timeout, so each part that arrives is an activity
                    if read.replace(read_so_far) != read_so_far {
                        activity.set("DATA", None);
                    }
                    !stops() && failure().is_none()
                };
                let waited = match data_loader.wait_for_step(index, &keep_waiting) {
                    Ok(waited) => waited,
                    Err(DataError::WaitEnded) => match failure() {
                        Some(failure) => return Err(GroupError::GroupFailed(failure.into()).into()),
                        None => return Ok(Announced::Stopping),
                    },
                    Err(error) => return Ok(Announced::NoData(error.into())),
                };
                let plan = data_loader.step_plan(index)?;
                let announcement = StepAnnouncement {
                    layouts: plan.layouts,
                    tokens: plan.target_count,
                    memory_checkpoint: is_checkpoint_due(index + 1),
                    streams: data_loader.streams_after(index),
                };
                let bytes = serde_json::to_vec(&announcement);
                let bytes = bytes.map_err(|e| {
                    StageError::invalid(format!("the announcement of a step can't be written as JSON: {e}"))
                })?;
                running.member.broadcast(topic::STEP, bytes)?;
                Ok(Announced::Sent(waited))
            }
            _ => Ok(Announced::Sent(None)),
        }
    }

    /// Receives the announcement of the next step.
    ///
    /// # Errors
    /// If the group has failed, or the leader runs another version.
    pub(in crate::train) fn receive(running: &RunningStage) -> Result<StepAnnouncement, LeaveReason> {
        let bytes = running.member.receive_broadcast(topic::STEP)?;
        Ok(serde_json::from_slice(&bytes).map_err(|e| {
            let problem = format!("the leader's announcement of a step can't be read ({e})");
            StageError::invalid(format!("{problem}: all stages must run the same version of Stagecoach"))
        })?)
    }
}
