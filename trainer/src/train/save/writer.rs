//! A save of a checkpoint. Every stage of the group writes its shards, and the leader commits the checkpoint by one
//! rename. Only the group that holds the newest fence can commit. All stages run the same code, on the main thread or
//! in the background, and all stages receive the result.

use std::io;
use std::iter::Sum;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stagecoach_api::job::OnDifference;
use stagecoach_checkpoint::{
    CheckpointError, CheckpointMetadata, Dtype, RetentionPolicy, StageFiles, View, prune, read_manifest,
};
use stagecoach_engine::state_dict::{NamedTensor, Snapshot};
use stagecoach_group::Member;
use stagecoach_model::Architecture;
use stagecoach_planner::{CheckpointLink, JobConfig, Plan, TrainerState};
use stagecoach_telemetry::{BestEvaluation, SaveRecord, TrainingEvent};

use crate::train::collective::{all_gather, topic};
use crate::train::context::{RunningStage, StageContext};
use crate::train::leave::LeaveReason;
use crate::train::save::small_files::small_files;

/// The longest delay between retries of the final save.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The result of one stage. The error is a message.
pub(in crate::train) type StageResult<T> = Result<T, String>;

/// The cost of a save; zero if the checkpoint already existed.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(in crate::train) struct SaveCost {
    /// The number of bytes of the whole checkpoint.
    bytes: u64,
    /// The CPU seconds of all stages.
    cpu_seconds: f64,
}

impl Sum for SaveCost {
    fn sum<I: Iterator<Item = SaveCost>>(parts: I) -> SaveCost {
        parts.fold(SaveCost::default(), |all, part| SaveCost {
            bytes: all.bytes + part.bytes,
            cpu_seconds: all.cpu_seconds + part.cpu_seconds,
        })
    }
}

/// Saves the checkpoints of one stage.
pub(in crate::train) struct CheckpointWriter<'a> {
    context: StageContext<'a>,
    plan: &'a Plan,
    member: &'a Member,
    /// The names and contents of the small files beside the weights; empty except on the leader.
    small_files: Vec<(String, Vec<u8>)>,
    /// The last checkpoint, of this attempt or an earlier one; `None` except on the leader.
    previous: Mutex<Option<CheckpointLink>>,
}

impl<'a> CheckpointWriter<'a> {
    /// Creates the writer of the stage `running`.
    pub(in crate::train) fn new(
        running: &RunningStage<'a>,
        architecture: &dyn Architecture,
    ) -> Result<CheckpointWriter<'a>, LeaveReason> {
        let RunningStage { context, plan, member, saved_step, .. } = *running;
        let is_leader = context.is_leader();
        let saved = Some(saved_step).filter(|step| is_leader && *step > 0);
        let previous = saved.map(|step| read_manifest(context.volume, step)).transpose()?;
        let small_files = match is_leader {
            true => small_files(running, architecture, previous.as_ref())?,
            false => Vec::new(),
        };
        let previous = Mutex::new(previous.as_ref().map(CheckpointLink::to).transpose()?);
        Ok(CheckpointWriter { context, plan, member, small_files, previous })
    }

    /// Saves once and reports the result.
    ///
    /// # Errors
    /// Like [`CheckpointWriter::try_save`].
    pub(in crate::train) fn save(
        &self,
        snapshot: &Snapshot,
        state: &TrainerState,
        on_activity: &dyn Fn(&str),
        record: SaveRecord,
        started: Instant,
    ) -> Result<SaveRecord, LeaveReason> {
        let saved = self.try_save(snapshot, state, on_activity)?;
        Ok(self.report_result(record, started, saved))
    }

    /// Reports the result of a save that began at `started`.
    pub(in crate::train) fn report_result(
        &self,
        mut record: SaveRecord,
        started: Instant,
        saved: StageResult<SaveCost>,
    ) -> SaveRecord {
        record.seconds = started.elapsed().as_secs_f64();
        match saved {
            Ok(SaveCost { bytes, cpu_seconds }) => {
                (record.bytes, record.cpu_seconds) = (bytes, cpu_seconds);
                self.emit(&TrainingEvent::Saved(record.clone()));
            }
            Err(why) => {
                record.error = Some(why);
                self.emit(&TrainingEvent::SaveFailed(record.clone()));
            }
        }
        record
    }

    /// Saves `snapshot` as the checkpoint of `state`. `on_activity` receives the current operation. `Ok(Err(why))` is a
    /// failed save, which does not affect earlier checkpoints.
    ///
    /// # Errors
    /// If the group has failed, or a newer group has acquired the fence.
    pub(in crate::train) fn try_save(
        &self,
        snapshot: &Snapshot,
        state: &TrainerState,
        on_activity: &dyn Fn(&str),
    ) -> Result<StageResult<SaveCost>, LeaveReason> {
        let before = cpu_seconds();
        let (volume, is_leader) = (self.context.volume, self.context.is_leader());
        let save = self.plan.fence.pending_checkpoint(state.step);
        on_activity("save");
        let started_save = if is_leader { save.begin(volume, &self.plan.identity) } else { Ok(true) };
        match leader_result(self.gather_results(started_save)?) {
            Ok(true) => {}
            Ok(false) => return Ok(Ok(SaveCost::default())),
            Err(why) => return Ok(Err(why)),
        }
        let (weights, moments) = (tracked(&snapshot.weights, on_activity), tracked(&snapshot.moments, on_activity));
        // A stage abandons an unfinished save when the group ends: the group can't commit the checkpoint any more, and
        // the stage can't join the next group before the save returns.
        let check_cancelled = || match self.member.wait_for_failure(Duration::ZERO) {
            Some(_) => Err(io::Error::other("the group is over")),
            None => Ok(()),
        };
        let written =
            save.write_stage_cancellable(volume, self.context.group_rank, &weights, &moments, &check_cancelled);
        on_activity("save: others");
        let parts: Vec<StageResult<StageFiles>> = self.gather_results(written)?;
        let files: StageResult<Vec<StageFiles>> = parts.into_iter().collect();
        let committed = match (&files, is_leader) {
            (Ok(files), true) => {
                on_activity("commit");
                save.commit(volume, self.checkpoint_metadata(state), files, &self.small_files).map(|manifest| {
                    *self.previous.lock().unwrap_or_else(PoisonError::into_inner) = CheckpointLink::to(&manifest).ok();
                    manifest.bytes()
                })
            }
            _ => Ok(0),
        };
        on_activity("save: others");
        let each: Vec<StageResult<SaveCost>> =
            self.gather_results(committed.map(|bytes| SaveCost { bytes, cpu_seconds: cpu_seconds() - before }))?;
        let saved = files.and_then(|_| each.into_iter().sum());
        if is_leader {
            on_activity("prune");
            self.remove_obsolete(state.step, state.best_evaluation, saved.is_ok())?;
        }
        Ok(saved)
    }

    /// Saves, and retries until the save succeeds or `deadline` has passed.
    ///
    /// # Errors
    /// Like [`CheckpointWriter::try_save`].
    pub(in crate::train) fn save_until(
        &self,
        snapshot: &Snapshot,
        state: &TrainerState,
        on_activity: &dyn Fn(&str),
        deadline: Instant,
    ) -> Result<StageResult<SaveCost>, LeaveReason> {
        let mut delay = Duration::from_millis(100);
        let mut is_described = false;
        loop {
            let why = match self.try_save(snapshot, state, on_activity)? {
                Err(why) => why,
                saved => return Ok(saved),
            };
            if leader_result(self.gather_results(Ok(Instant::now() + delay < deadline))?) != Ok(true) {
                return Ok(Err(why));
            }
            if self.context.is_leader() {
                if !std::mem::replace(&mut is_described, true) {
                    let message = format!("the checkpoint of step {} failed and is tried again: {why}", state.step);
                    self.note(message);
                }
                std::thread::sleep(delay); // the other stages wait for the leader
            }
            delay = (2 * delay).min(MAX_RETRY_DELAY);
        }
    }

    /// Emits an event, on the leader only.
    pub(in crate::train) fn emit(&self, event: &TrainingEvent) {
        if self.context.is_leader() {
            self.context.monitor.emit(event);
        }
    }

    /// Emits a note, on the leader only.
    pub(in crate::train) fn note(&self, message: String) {
        self.emit(&TrainingEvent::Note { message });
    }

    /// Removes obsolete files to free space for the next save: after a commit, the checkpoints that the retention
    /// policy does not keep; after a failed save, its unfinished files. A failure is reported and otherwise ignored,
    /// but a lost fence ends the stage.
    fn remove_obsolete(&self, step: u64, best: Option<BestEvaluation>, saved: bool) -> Result<(), LeaveReason> {
        let fence = &self.plan.fence;
        let JobConfig { job, training, .. } = self.context.config;
        let spec = &job.spec.checkpoint;
        // an audit may later quarantine the newest checkpoint, and training then resumes from the checkpoint before it
        let may_be_quarantined = training.audit.is_some_and(|audit| audit.on_difference == OnDifference::Restart);
        let keep_last = if may_be_quarantined { spec.keep_last.max(2) } else { spec.keep_last } as usize;
        let best = best.filter(|_| self.context.config.keeps_best()).map(|best| best.step);
        let policy = RetentionPolicy { keep_last, keep_every: spec.keep_every, best };
        let removed = if saved {
            prune(self.context.volume, fence, policy, step).map(|_| ())
        } else {
            fence.remove_unfinished(self.context.volume)
        };
        match removed {
            Err(fenced @ CheckpointError::FencedOff { .. }) => return Err(fenced.into()),
            Err(error) => {
                let message = format!("could not remove obsolete files after the save of step {step}: {error}");
                self.note(message);
            }
            Ok(()) => {}
        }
        Ok(())
    }

    /// Gathers the result of every stage, by rank. A lost fence ends the stage, because a newer group works on this
    /// job.
    fn gather_results<T: Serialize + DeserializeOwned>(
        &self,
        own: Result<T, CheckpointError>,
    ) -> Result<Vec<StageResult<T>>, LeaveReason> {
        let own: StageResult<T> = match own {
            Err(fenced @ CheckpointError::FencedOff { .. }) => return Err(fenced.into()),
            other => other.map_err(|e| e.to_string()),
        };
        all_gather(self.member, topic::SAVE, &own)
    }

    fn checkpoint_metadata(&self, state: &TrainerState) -> CheckpointMetadata {
        let batch = u64::from(self.context.config.training.global_batch_size);
        let mut progress = serde_json::json!(state);
        progress["sequences"] = (state.step * batch).into();
        if let Some(previous) = &*self.previous.lock().unwrap_or_else(PoisonError::into_inner) {
            progress["previous"] = serde_json::json!(previous);
        }
        CheckpointMetadata {
            attempt: self.context.env.attempt,
            identity: self.plan.identity.clone(),
            plan: serde_json::json!({ "schedule": self.plan.schedule, "partition": self.plan.schedule_partition().layers }),
            environment: self.context.environment.clone(),
            progress,
            job: serde_json::json!(self.context.config.job.spec),
        }
    }
}

/// Returns the CPU time of this thread. The time does not include the kernel's writeback of the written pages.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the result of the leader, which has group rank 0.
fn leader_result<T>(parts: Vec<StageResult<T>>) -> StageResult<T> {
    parts.into_iter().next().unwrap_or_else(|| Err("the leader sent no result".into()))
}

/// A tensor that reports an activity when the checkpoint's writer reads its bytes.
struct TrackedTensor<'a> {
    tensor: &'a NamedTensor,
    activity: String,
    on_activity: &'a dyn Fn(&str),
}

/// Returns the tensors by name, in the form that `stagecoach_checkpoint` accepts.
fn tracked<'a>(tensors: &'a [NamedTensor], on_activity: &'a dyn Fn(&str)) -> Vec<(String, TrackedTensor<'a>)> {
    let all = tensors.len();
    let activity = |at: usize| format!("write {} of {all}", at + 1);
    tensors
        .iter()
        .enumerate()
        .map(|(at, tensor)| (tensor.name.clone(), TrackedTensor { tensor, activity: activity(at), on_activity }))
        .collect()
}

impl View for TrackedTensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        (self.on_activity)(&self.activity);
        std::borrow::Cow::Borrowed(self.tensor.bytes())
    }

    fn data_len(&self) -> usize {
        self.tensor.bytes().len()
    }
}
