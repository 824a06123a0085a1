//! The explanation of a job's last failure, from its cause to its consequences. The functions are pure.

use std::fmt;
use std::path::Path;

use stagecoach_display::{FailureSummary, LogTail};
use stagecoach_lifecycle::{AttemptPhase, JobOutcome};

use super::history::History;
use super::launcher_state::Recovery;

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log.as_ref().map(|log| {
            let path = log.path.strip_prefix(&self.folder).map_or(log.path.as_path(), Path::new);
            LogTail { name: path.display().to_string(), text: &log.text }
        });
        let summary = FailureSummary {
            name: self.folder.display().to_string(),
            state: self.state.as_ref(),
            finished_step: self.recovery.and_then(|recovery| recovery.finished_step),
            log: log.ok_or("not available: each run removes the logs of the previous run"),
            successor: self.successor,
            max_restarts: self.max_restarts,
            resumption: self.recovery.as_ref().and_then(Recovery::resumption),
            status_text: self.status_text(),
            now: self.now,
        };
        write!(f, "{summary}")?;
        match &self.audit_difference {
            Some(difference) => write!(f, "\n  also:   {difference}"),
            None => Ok(()),
        }
    }
}

impl History {
    /// Describes the job's status in sentences.
    pub fn status_text(&self) -> String {
        let trained = match (self.trained, self.steps) {
            (Some(trained), Some(steps)) => format!("{trained} of {steps} steps are trained"),
            (Some(trained), None) => format!("{trained} steps are trained"),
            (None, _) => "no step is trained yet".into(),
        };
        if let Some(launcher) = self.running {
            let launcher = launcher.map_or_else(String::new, |pid| format!(" (process {pid})"));
            let missing = self.replicas().filter(|replicas| replicas.are_missing());
            let replicas = missing.map_or_else(String::new, |replicas| format!(" with {replicas}"));
            return format!("It runs{replicas}{launcher}: {trained}.");
        }
        if self.is_finished {
            let reason = self.ended_early.as_ref();
            let early = reason.map_or_else(String::new, |reason| format!(" It ended early: {reason}."));
            return format!("It is finished: {trained}.{early}");
        }
        let next = match self.state.as_ref().and_then(|state| state.checkpoint_step) {
            Some(step) => format!("the next `stagecoach run` continues from the checkpoint of step {step}"),
            None => "the next `stagecoach run` begins at the first step, since there is no checkpoint".into(),
        };
        match self.state.as_ref().map(|state| &state.attempt_phase) {
            Some(AttemptPhase::Finished(JobOutcome::Failed(reason))) => {
                format!("It has failed for good, since {}: {trained}; {next}.", reason.explanation())
            }
            Some(AttemptPhase::Finished(JobOutcome::Complete)) => format!("It is finished: {trained}."),
            Some(AttemptPhase::Running { .. } | AttemptPhase::Draining) => {
                format!("It does not run: its launcher was killed, and the stages with it: {trained}; {next}.")
            }
            Some(AttemptPhase::Idle) | None => format!("It is stopped: {trained}; {next}."),
        }
    }
}

impl Recovery {
    /// Describes the step at which training resumed. Returns `None` until training has resumed.
    pub fn resumption(&self) -> Option<String> {
        let checkpoint = self.first_step?.saturating_sub(1);
        let from = match checkpoint {
            0 => "Training began again at the first step, since there was no checkpoint".to_owned(),
            step => format!("Training resumed from the checkpoint of step {step}"),
        };
        Some(match self.finished_step.map(|finished| finished.saturating_sub(checkpoint)) {
            None => format!("{from}."),
            Some(0) => format!("{from}: no finished step was trained again."),
            Some(1) => format!("{from}: one finished step was trained again."),
            Some(steps) => format!("{from}: {steps} finished steps were trained again."),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stagecoach_api::contract::{FailureKind, Mesh};
    use stagecoach_display::Successor;
    use stagecoach_lifecycle::{
        Attempt, AttemptFailure, FailureReason, JobFailureReason, JobState, RestartBudget, UnixMillis,
    };

    use super::super::history::ProcessLog;
    use super::*;

    const NOW: UnixMillis = UnixMillis(1_790_000_100_000);

    fn killed() -> AttemptFailure {
        AttemptFailure { failed_at: UnixMillis(1_790_000_000_000), ..super::super::report::tests::killed() }
    }

    /// Returns the history of a job that runs after stage 1 was killed and replaced.
    fn history() -> History {
        let state = JobState {
            attempt_phase: AttemptPhase::Running { not_before: UnixMillis(0), all_created: true },
            attempt: Attempt { number: 1, mesh: Mesh::pipeline(3), revision: 0, admission: 0, admitted_replicas: None },
            incarnations: BTreeMap::from([(1, 1)]),
            budget: RestartBudget { total: 1, counted: 1, replaced: 1, counted_since_checkpoint: 1 },
            checkpoint_step: Some(40),
            last_failure: Some(killed()),
            ..JobState::default()
        };
        History {
            folder: "workspace/small".into(),
            recovery: Some(Recovery {
                failed_at: killed().failed_at,
                finished_step: Some(43),
                first_step: Some(41),
                ..Recovery::default()
            }),
            log: Some(ProcessLog { path: "workspace/small/logs/stage-1.log".into(), text: "one\n\ntwo\n".into() }),
            successor: Some(Successor::Restarted),
            training_replicas: 1,
            earlier: Vec::new(),
            max_restarts: 10,
            steps: Some(100),
            trained: Some(57),
            audit_difference: None,
            is_finished: false,
            ended_early: None,
            running: Some(Some(12)),
            now: NOW,
            state: Some(state),
        }
    }

    fn with_state(change: impl FnOnce(&mut JobState)) -> History {
        let mut history = history();
        change(history.state.as_mut().unwrap());
        history
    }

    #[test]
    fn a_replaced_stage_is_reported_from_cause_to_consequence() {
        assert_eq!(
            history().to_string(),
            "workspace/small: stage 1 failed first, at 2026-09-21 14:13:20 UTC (1m 40s ago), in attempt 1 after step 43 was \
             finished.
  reason: Killed, exit code 137 (SIGKILL).
  log:    the end of logs/stage-1.log:
          | one
          | two
  then:   the other stages waited, and stage 1 was started again; 9 of 10 restarts are left.
          Training resumed from the checkpoint of step 40: 3 finished steps were trained again.
  now:    It runs (process 12): 57 of 100 steps are trained.
  to do:  find the sender of the signal: the kernel sends it if the machine or node runs out of memory; if the \
             stage exceeded an ephemeral-storage limit, raise that limit."
        );
        let spare = History { successor: Some(Successor::Spare(2)), log: None, ..history() }.to_string();
        assert!(spare.contains("the other stages waited, and spare 2 took the place of stage 1; 9 of"), "{spare}");
        assert!(spare.contains("log:    not available: each run removes the logs of the previous run"), "{spare}");
    }

    #[test]
    fn a_difference_that_an_audit_has_found_is_reported_besides() {
        let message = "audit of step 7: stage 1 on a and stage 2 on b differ in the output";
        let reported = History { audit_difference: Some(message.into()), ..history() }.to_string();
        assert!(reported.ends_with(&format!("raise that limit.\n  also:   {message}")), "{reported}");
    }

    #[test]
    fn what_followed_depends_on_the_state() {
        let says = |history: History, words: &[&str]| {
            let reported = history.to_string();
            words.iter().for_each(|words| assert!(reported.contains(words), "no {words:?} in {reported}"));
        };
        says(
            with_state(|state| state.attempt.number = 2),
            &["all stages were stopped, and started again as attempt 2"],
        );
        says(with_state(|state| state.incarnations.clear()), &["nothing was started again yet"]);
        let without = with_state(|state| state.attempt.mesh = Mesh { stages: 3, data_parallel: 2 });
        says(without, &["now:    It runs with 1 of 2 replicas (process 12): 57 of 100 steps are trained."]);
        let starting = with_state(|state| state.ranks_to_create = [1].into());
        says(History { successor: None, ..starting }, &["the other stages wait, and stage 1 is to start again"]);
        let failed = with_state(|state| {
            state.attempt_phase = AttemptPhase::Finished(JobOutcome::Failed(JobFailureReason::InvalidConfig));
            state.last_failure = Some(AttemptFailure {
                reason: FailureReason::InvalidConfig,
                kind: Some(FailureKind::InvalidConfig),
                exit_code: Some(78),
                step: Some(7),
                action: Some("1F3".into()),
                message: "the model is too wide".into(),
                ..killed()
            });
        });
        says(
            History { running: None, recovery: None, ..failed },
            &[
                "in step 7, in the action 1F3.",
                "reason: InvalidConfig, exit code 78: the model is too wide",
                "none was started again: a stage found the job invalid; 9 of 10",
                "It has failed for good, since a stage found the job invalid: 57 of 100 steps are trained; the next",
                "to do:  correct the fields of the job that the message names.",
            ],
        );
        let recovery = |finished, first| {
            Some(Recovery {
                failed_at: killed().failed_at,
                finished_step: finished,
                first_step: first,
                ..Recovery::default()
            })
        };
        for (finished, first, reported) in [
            (Some(5), Some(6), "of step 5: no finished step was trained again."),
            (Some(5), Some(5), "of step 4: one finished step was trained again."),
            (None, Some(5), "of step 4."),
            (Some(5), Some(1), "began again at the first step, since there was no checkpoint: 5 finished steps"),
        ] {
            says(History { recovery: recovery(finished, first), ..history() }, &[reported]);
        }
        assert!(!History { recovery: recovery(Some(5), None), ..history() }.to_string().contains("Training"));
    }

    #[test]
    fn a_job_without_a_failure_is_one_sentence_and_how_it_stands() {
        let quiet = |change: fn(&mut JobState)| {
            with_state(|state| {
                state.last_failure = None;
                change(state);
            })
        };
        let begin = "workspace/small: no stage of this job has failed. ";
        assert_eq!(quiet(|_| ()).to_string(), format!("{begin}It runs (process 12): 57 of 100 steps are trained."));
        let ended = |change| History { running: None, ..quiet(change) }.to_string();
        let rest = "57 of 100 steps are trained; the next `stagecoach run` continues from the checkpoint of step 40.";
        assert_eq!(
            ended(|_| ()),
            format!("{begin}It does not run: its launcher was killed, and the stages with it: {rest}")
        );
        assert_eq!(ended(|state| state.attempt_phase = AttemptPhase::Idle), format!("{begin}It is stopped: {rest}"));
        let finished = |state: &mut JobState| state.attempt_phase = AttemptPhase::Finished(JobOutcome::Complete);
        assert_eq!(ended(finished), format!("{begin}It is finished: 57 of 100 steps are trained."));
        let early = History {
            running: None,
            is_finished: true,
            ended_early: Some("the held-out loss has not improved in 5 evaluations since step 40".into()),
            ..quiet(finished)
        };
        assert_eq!(
            early.status_text(),
            "It is finished: 57 of 100 steps are trained. It ended early: the held-out loss has not improved in 5 \
             evaluations since step 40."
        );
        let new = History { state: None, trained: None, running: None, ..history() };
        assert_eq!(
            new.to_string(),
            format!(
                "{begin}It is stopped: no step is trained yet; the next `stagecoach run` begins at the first step, \
                 since there is no checkpoint."
            )
        );
    }
}
