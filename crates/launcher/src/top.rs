//! A job's line of `stagecoach top`, from the job's folder.

use std::path::PathBuf;

use stagecoach_display::{Slowest, TopRow};
use stagecoach_lifecycle::{AttemptPhase, JobOutcome, JobState};
use stagecoach_telemetry::StepRecord;

use super::LaunchError;
use super::history::{History, last_record};
use crate::folder::JobFolder;

/// Returns the line of the job in this folder.
///
/// # Errors
/// Returns an error if the folder can't be read.
pub fn top_row(folder: &JobFolder, name: String) -> Result<TopRow, LaunchError> {
    let last = last_record(folder);
    let history = History::without_logs(folder, PathBuf::new(), last.as_ref().map(|record| record.step))?;
    Ok(history.top_row(name, last.as_ref()))
}

impl History {
    fn top_row(&self, name: String, last: Option<&StepRecord>) -> TopRow {
        let state = self.state.as_ref();
        let is_running = self.running.is_some();
        let stages = state.map_or(0, |state| state.attempt.mesh.ranks());
        let starting = state.map_or(0, |state| u32::try_from(state.ranks_to_create.len()).unwrap_or(u32::MAX));
        let replicas = self.replicas().filter(|_| is_running);
        let ready = match replicas.filter(|replicas| replicas.are_missing()) {
            Some(replicas) => stages / replicas.all * replicas.training,
            None => stages.saturating_sub(starting),
        };
        let training = last.filter(|_| is_running);
        let remaining = self.steps.zip(last).map(|(steps, record)| steps.saturating_sub(record.step));
        TopRow {
            name,
            phase: self.phase().into(),
            step: self.trained,
            steps: self.steps,
            loss: last.and_then(|record| record.loss).map(f64::from),
            tokens_per_second: training.map(|record| record.tokens_per_second),
            ready_stages: if is_running { ready } else { 0 },
            stages,
            replicas,
            restarts: state.map_or(0, |state| state.budget.total),
            checkpoint: state.and_then(|state| state.checkpoint_step),
            slowest: training.and_then(|record| slowest(&record.imbalance)),
            eta: training.zip(remaining).map(|(record, steps)| record.seconds * steps as f64),
        }
    }

    /// Returns the word for the job's status. The words are the phases of a job in a cluster, and `Stopped` for a job
    /// that continues with the next run.
    fn phase(&self) -> &'static str {
        match self.state.as_ref().map(|state: &JobState| &state.attempt_phase) {
            Some(AttemptPhase::Draining) if self.running.is_some() => "Draining",
            Some(AttemptPhase::Running { all_created, .. })
                if self.running.is_some() && (*all_created || self.training_replicas > 0) =>
            {
                "Running"
            }
            _ if self.running.is_some() => "Starting",
            _ if self.is_finished => "Complete",
            Some(AttemptPhase::Finished(JobOutcome::Complete)) => "Complete",
            Some(AttemptPhase::Finished(JobOutcome::Failed(_))) => "Failed",
            _ => "Stopped",
        }
    }
}

/// Returns the stage with the longest computation time relative to the mean, or `None` if there is only one stage.
fn slowest(imbalance: &[f64]) -> Option<Slowest> {
    let stages = imbalance.iter().copied().zip(0..).filter(|_| imbalance.len() > 1);
    let (imbalance, stage) = stages.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    Some(Slowest { stage: Some(stage), imbalance })
}

#[cfg(test)]
mod tests {
    use stagecoach_api::contract::Mesh;
    use stagecoach_display::Replicas;
    use stagecoach_lifecycle::{Attempt, JobFailureReason, RestartBudget, UnixMillis};

    use super::*;

    /// Returns the history of a training job while stage 1 of 3 starts.
    fn history() -> History {
        let state = JobState {
            attempt_phase: AttemptPhase::Running { not_before: UnixMillis(0), all_created: true },
            attempt: Attempt { number: 1, mesh: Mesh::pipeline(3), revision: 0, admission: 0, admitted_replicas: None },
            ranks_to_create: [1].into(),
            budget: RestartBudget { total: 2, ..RestartBudget::default() },
            checkpoint_step: Some(40),
            ..JobState::default()
        };
        History {
            folder: PathBuf::new(),
            state: Some(state),
            training_replicas: 1,
            max_restarts: 10,
            steps: Some(100),
            trained: Some(57),
            running: Some(None),
            now: UnixMillis(0),
            ..History::default()
        }
    }

    fn row(history: &History) -> TopRow {
        let record = StepRecord {
            step: 57,
            loss: Some(2.5),
            seconds: 0.5,
            tokens_per_second: 900.0,
            imbalance: vec![0.9, 1.3, 0.8],
            ..StepRecord::default()
        };
        history.top_row("small".into(), Some(&record))
    }

    fn running() -> TopRow {
        TopRow {
            name: "small".into(),
            phase: "Running".into(),
            step: Some(57),
            steps: Some(100),
            loss: Some(2.5),
            tokens_per_second: Some(900.0),
            ready_stages: 2,
            stages: 3,
            replicas: None,
            restarts: 2,
            checkpoint: Some(40),
            slowest: Some(Slowest { stage: Some(1), imbalance: 1.3 }),
            eta: Some(21.5),
        }
    }

    #[test]
    fn a_line_says_how_far_the_job_is() {
        assert_eq!(row(&history()), running());
        assert_eq!(slowest(&[1.0]), None, "one stage is not slower than others");
    }

    #[test]
    fn a_line_says_how_many_replicas_train() {
        // a replacement process starts for the second replica
        let without = History {
            state: history().state.map(|state| JobState {
                attempt_phase: AttemptPhase::Running { not_before: UnixMillis(9), all_created: false },
                attempt: Attempt { mesh: Mesh { stages: 3, data_parallel: 2 }, ..state.attempt },
                ..state
            }),
            ..history()
        };
        let replicas = Some(Replicas { training: 1, all: 2 });
        assert_eq!(row(&without), TopRow { ready_stages: 3, stages: 6, replicas, ..running() });
    }

    #[test]
    fn a_line_has_speeds_only_while_the_job_trains() {
        let stopped = History { running: None, ..history() };
        let quiet = TopRow { tokens_per_second: None, ready_stages: 0, slowest: None, eta: None, ..running() };
        assert_eq!(row(&stopped), TopRow { phase: "Stopped".into(), ..quiet });
        let ended = |outcome| {
            let attempt_phase = AttemptPhase::Finished(outcome);
            History { state: stopped.state.clone().map(|state| JobState { attempt_phase, ..state }), ..stopped.clone() }
        };
        assert_eq!(row(&ended(JobOutcome::Complete)).phase, "Complete");
        assert_eq!(row(&ended(JobOutcome::Failed(JobFailureReason::InvalidConfig))).phase, "Failed");
    }
}
