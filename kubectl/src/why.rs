//! `kubectl stagecoach why`.

use std::io::Write;

use clap::Args;
use jiff::Timestamp;
use stagecoach_api::contract::{SPARE_TOOK_PLACE, promoted_spare};
use stagecoach_api::job::{
    Condition, FloatString, JobPhase, RecoveryStatus, condition_reason as reason, condition_type as kind,
};
use stagecoach_api::{PipelineJobStatus, visible};
use stagecoach_display::{FailureSummary, LogTail, Replicas, Successor, duration, time};
use stagecoach_lifecycle::{AttemptFailure, JobOutcome, JobState, UnixMillis};

use crate::cluster::{self, Event};
use crate::job::StoredJob;
use crate::kubectl::Kubectl;

/// The number of events that the report shows.
const EVENTS: usize = 8;

/// A job's last failure.
#[derive(Debug, Args)]
pub(crate) struct WhyCommand {
    /// The job.
    job: String,
}

impl WhyCommand {
    pub(crate) fn run(self, kubectl: &Kubectl, out: &mut dyn Write) -> anyhow::Result<()> {
        let job = cluster::job(kubectl, &self.job)?;
        // report the failure even to a user without permission to read events
        let events = cluster::events(kubectl, &job).map_err(|error| format!("{error:#}"));
        writeln!(out, "{}", visible(&tell(&job, &events, now())?))?;
        Ok(())
    }
}

fn now() -> UnixMillis {
    millis(Timestamp::now())
}

fn millis(at: Timestamp) -> UnixMillis {
    UnixMillis::from_signed(at.as_millisecond()).unwrap_or_default()
}

/// Returns the report: the last failure from cause to consequence, the conditions that need attention, and the last
/// events.
///
/// # Errors
/// Returns an error if another version of the operator wrote the status, and the plugin can't parse it.
fn tell(job: &StoredJob, events: &Result<Vec<Event>, String>, now: UnixMillis) -> anyhow::Result<String> {
    let status = job.status()?;
    let state = job.state(&status)?;
    let failure = status.last_failure.as_ref();
    let log = failure.and_then(|failure| {
        let pod = failure.pod.as_deref().unwrap_or("that failed");
        Some(LogTail { name: format!("the log of pod {pod}"), text: failure.log_tail.as_deref()? })
    });
    let last_failure = state.as_ref().and_then(|state| state.last_failure.as_ref());
    let known = events.as_deref().unwrap_or_default();
    let summary = FailureSummary {
        name: job.metadata.name.clone(),
        state: state.as_ref(),
        finished_step: None,
        log: log.ok_or("none: the pod was gone before the operator read it, or wrote nothing"),
        successor: last_failure.and_then(|failure| spare_for(failure, known)),
        max_restarts: job.max_restarts(),
        resumption: state.as_ref().and_then(|state| resumption(&status, state)),
        status_text: status_text(job, &status, state.as_ref()),
        now,
    };
    let mut text = summary.to_string();
    for condition in status.conditions.iter().filter(|condition| wants_attention(condition)) {
        let Condition { kind, status, reason, message, .. } = condition;
        text += &format!("\n  also:   {kind} is {status} ({reason}): {message}");
    }
    match events {
        Ok(events) => {
            let first = events.len().saturating_sub(EVENTS);
            for (index, event) in events[first..].iter().enumerate() {
                let heading = if index == 0 { "events:" } else { "" };
                let at = event.at().map_or_else(|| "an unknown time".into(), |at| time(millis(at)));
                text += &format!("\n  {heading:7} {at}  {}: {}", event.reason, event.message);
            }
        }
        Err(why) => text += &format!("\n  events: they can't be read: {why}"),
    }
    Ok(text)
}

/// Returns the spare that replaced the failed stage, according to the operator's events. An event before the failure is
/// about an earlier failure of the stage.
fn spare_for(failure: &AttemptFailure, events: &[Event]) -> Option<Successor> {
    let stage = failure.stage()?;
    let is_later = |event: &Event| event.at().is_some_and(|at| millis(at) >= failure.failed_at);
    let mut promotions = events.iter().rev().filter(|event| event.reason == SPARE_TOOK_PLACE && is_later(event));
    promotions.find_map(|event| promoted_spare(&event.message, &stage)).map(Successor::Spare)
}

/// Returns a sentence about the duration of the last recovery; `None` until the job trains again or is complete.
fn resumption(status: &PipelineJobStatus, state: &JobState) -> Option<String> {
    let is_over = matches!(status.phase, Some(JobPhase::Running | JobPhase::Complete));
    let recovery = status.last_recovery.as_ref().filter(|recovery| recovery.attempt == state.attempt.number)?;
    let seconds = recovery.seconds.filter(|_| is_over)?;
    Some(format!("The recovery took {} until the first new step: {}.", duration(seconds.0), phases(recovery)))
}

fn phases(recovery: &RecoveryStatus) -> String {
    let phases = &recovery.phases;
    let all: [(&str, Option<FloatString>); 7] = [
        ("noticed", phases.noticed),
        ("decided", phases.decided),
        ("created", phases.created),
        ("started", phases.started),
        ("joined", phases.joined),
        ("loaded", phases.loaded),
        ("first step", phases.first_step),
    ];
    let known = all.into_iter().filter_map(|(name, seconds)| Some(format!("{name} {}", duration(seconds?.0))));
    known.collect::<Vec<_>>().join(", ")
}

/// Returns the replicas of a job; `None` for a job with a single replica.
fn replicas(status: &PipelineJobStatus) -> Option<Replicas> {
    Replicas::of(status.attempt.as_ref()?.mesh(), status.training_replicas.unwrap_or_default())
}

/// Returns a sentence about the state of the job.
fn status_text(job: &StoredJob, status: &PipelineJobStatus, state: Option<&JobState>) -> String {
    let trained = match status.progress.as_ref().map(|progress| (progress.step, progress.steps)) {
        Some((step, Some(steps))) => format!("{step} of {steps} steps are trained"),
        Some((step, None)) => format!("{step} steps are trained"),
        None => "no step is trained yet".into(),
    };
    let checkpoint = match &status.checkpoint {
        Some(checkpoint) => format!("the checkpoint of step {}", checkpoint.step),
        None => "the first step, since there is no checkpoint".into(),
    };
    match (status.phase.unwrap_or_default(), state.and_then(JobState::outcome)) {
        (JobPhase::Failed, Some(JobOutcome::Failed(reason))) => format!(
            "It has failed for good, since {}: {trained}. If you delete the job and create it again with the same \
             name and storage.path, it continues from {checkpoint}.",
            reason.explanation()
        ),
        (JobPhase::Complete, _) => format!("It is finished: {trained}."),
        (JobPhase::Running, _) => match replicas(status).filter(|replicas| replicas.are_missing()) {
            Some(replicas) => format!("It runs with {replicas}: {trained}."),
            None => format!("It runs: {trained}."),
        },
        (phase, _) => {
            let ready = status.ready_stages.unwrap_or_default();
            // `readyStages` counts the stages of all replicas
            let stages = status.attempt.as_ref().map_or(job.spec.stages.unwrap_or(1), |attempt| attempt.mesh().ranks());
            format!("It is {phase}: {trained}, {ready} of {stages} stages are ready; it continues from {checkpoint}.")
        }
    }
}

/// Whether the condition needs the user's attention, according to docs/OPERATIONS.md. The result is false for the
/// condition `Failed`, because the report already describes the failure.
fn wants_attention(condition: &Condition) -> bool {
    let is_false = condition.status == "False";
    match condition.kind.as_str() {
        kind::ACCEPTED
        | kind::CHECKPOINTS_HEALTHY
        | kind::REPRODUCIBLE
        | kind::AUDITS_EQUAL
        | kind::OBJECTS_IN_SYNC => is_false,
        kind::ADMITTED => {
            let waits_for_user = [reason::KUEUE_DISABLED, reason::PRIORITY_CLASS_MISSING, reason::TOO_MANY_POD_SETS];
            is_false && waits_for_user.contains(&condition.reason.as_str())
        }
        kind::SCHEDULED => {
            let is_normal =
                [reason::NOT_WANTED, reason::CREATING, reason::WAITING].contains(&condition.reason.as_str());
            is_false && !is_normal
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use stagecoach_api::contract::Mesh;
    use stagecoach_lifecycle::{Attempt, AttemptPhase, FailureReason, JobFailureReason, RestartBudget};

    use super::*;
    use crate::job::tests::job;

    const NOW: UnixMillis = UnixMillis(1_790_000_100_000);

    /// Returns the state of a job whose stage 1 was killed and replaced.
    fn replaced() -> JobState {
        JobState {
            attempt_phase: AttemptPhase::Running { not_before: UnixMillis(0), all_created: true },
            attempt: Attempt { number: 1, mesh: Mesh::pipeline(3), revision: 0, admission: 0, admitted_replicas: None },
            incarnations: [(1, 1)].into(),
            budget: RestartBudget { total: 1, counted: 1, replaced: 1, counted_since_checkpoint: 1 },
            last_failure: Some(AttemptFailure {
                attempt: 1,
                rank: Some(1),
                mesh: None,
                incarnation: 0,
                reason: FailureReason::Killed,
                exit_code: Some(137),
                kind: None,
                step: None,
                action: None,
                message: "exited with code 137".into(),
                failed_at: UnixMillis(1_790_000_000_000),
                uncounted: false,
            }),
            ..JobState::default()
        }
    }

    fn status(phase: &str, state: &JobState) -> Value {
        json!({
            "phase": phase,
            "readyStages": 3,
            "progress": {"step": 57, "steps": 100},
            "checkpoint": {"step": 40},
            "lastFailure": {"pod": "small-1-1", "reason": "Killed", "logTail": "one\ntwo\n"},
            "lastRecovery": {"attempt": 1, "replaced": true, "seconds": "1.36", "phases": {"noticed": "0", "joined": "0.24"}},
            "record": serde_json::to_string(state).unwrap(),
            "conditions": [
                {"type": "CheckpointsHealthy", "status": "False", "reason": "SavingFails", "message": "the disk is \
                                                                                                       full"},
                {"type": "Scheduled", "status": "False", "reason": "Waiting", "message": "1 of 3 pods"},
            ],
        })
    }

    fn events() -> Vec<Event> {
        let event = |time: &str, reason: &str, message: &str| {
            serde_json::from_value(json!({"eventTime": time, "reason": reason, "message": message})).unwrap()
        };
        vec![
            event("2026-09-21T14:13:20.500000Z", "AttemptFailed", "attempt 1: stage 1: Killed: exited with code 137"),
            event(
                "2026-09-21T14:13:21.000000Z",
                "SpareTookPlace",
                "spare 2 (pod small-spare-2-1) took the place of stage 1",
            ),
        ]
    }

    #[test]
    fn a_replaced_stage_is_reported_from_cause_to_consequence() {
        let reported = tell(&job(status("Running", &replaced())), &Ok(events()), NOW).unwrap();
        assert_eq!(
            reported,
            "small: stage 1 failed first, at 2026-09-21 14:13:20 UTC (1m 40s ago), in attempt 1.
  reason: Killed, exit code 137 (SIGKILL).
  log:    the end of the log of pod small-1-1:
          | one
          | two
  then:   the other stages waited, and spare 2 took the place of stage 1; 9 of 10 restarts are left.
          The recovery took 1.4s until the first new step: noticed 0.0s, joined 0.2s.
  now:    It runs: 57 of 100 steps are trained.
  to do:  find the sender of the signal: the kernel sends it if the machine or node runs out of memory; if the \
             stage exceeded an ephemeral-storage limit, raise that limit.
  also:   CheckpointsHealthy is False (SavingFails): the disk is full
  events: 2026-09-21 14:13:20 UTC  AttemptFailed: attempt 1: stage 1: Killed: exited with code 137
          2026-09-21 14:13:21 UTC  SpareTookPlace: spare 2 (pod small-spare-2-1) took the place of stage 1"
        );
        let reported = tell(&job(status("Running", &replaced())), &Err("forbidden".into()), NOW).unwrap();
        assert!(reported.contains("stage 1 was started again; 9 of 10"), "{reported}");
        assert!(reported.ends_with("\n  events: they can't be read: forbidden"), "{reported}");
        let mut failed_again = replaced();
        failed_again.last_failure.as_mut().unwrap().failed_at = UnixMillis(1_790_000_050_000);
        let reported = tell(&job(status("Running", &failed_again)), &Ok(events()), NOW).unwrap();
        assert!(reported.contains("stage 1 was started again; 9 of 10"), "{reported}");
    }

    #[test]
    fn a_job_that_failed_for_good_names_the_remedy() {
        let attempt_phase = AttemptPhase::Finished(JobOutcome::Failed(JobFailureReason::BudgetExhausted));
        let failed = JobState { attempt_phase, incarnations: [].into(), ..replaced() };
        let reported = tell(&job(status("Failed", &failed)), &Ok(Vec::new()), NOW).unwrap();
        assert!(
            reported.contains("none was started again: restart.maxRestarts is used up; 9 of 10 restarts are left."),
            "{reported}"
        );
        assert!(
            reported.contains(
                "It has failed for good, since restart.maxRestarts is used up: 57 of 100 steps are trained. If you \
                 delete the job and create it again with the same name and storage.path, it continues from the \
                 checkpoint of step 40."
            ),
            "{reported}"
        );
        assert!(!reported.contains("recovery"), "{reported}");
    }

    #[test]
    fn a_job_that_was_not_started_says_what_keeps_it() {
        let conditions =
            json!([{"type": "Accepted", "status": "False", "reason": "InvalidSpec", "message": "no stages"}]);
        let reported = tell(&job(json!({"conditions": conditions})), &Ok(Vec::new()), NOW).unwrap();
        assert_eq!(
            reported,
            "small: no stage of this job has failed. It is Pending: no step is trained yet, 0 of 3 stages are ready; it continues \
             from the first step, since there is no checkpoint.
  also:   Accepted is False (InvalidSpec): no stages"
        );
        let in_queue = |reason: &str| {
            let conditions = json!([{"type": "Admitted", "status": "False", "reason": reason, "message": "no Kueue"}]);
            tell(&job(json!({"conditions": conditions})), &Ok(Vec::new()), NOW).unwrap()
        };
        assert!(in_queue("KueueDisabled").ends_with("\n  also:   Admitted is False (KueueDisabled): no Kueue"));
        assert!(!in_queue("Queued").contains("also:"));
        let attempt = json!({"number": 1, "stages": 3, "dataParallel": 2});
        let status = json!({"phase": "Starting", "attempt": attempt, "readyStages": 4});
        let reported = tell(&job(status), &Ok(Vec::new()), NOW).unwrap();
        assert!(reported.contains("4 of 6 stages are ready"), "{reported}");
        let error = format!("{:#}", tell(&job(json!({"record": {"doing": 7}})), &Ok(Vec::new()), NOW).unwrap_err());
        assert!(error.starts_with("status.record of job small can't be read: it was written by another"), "{error}");
    }
}
