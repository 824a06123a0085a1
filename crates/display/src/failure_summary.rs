//! Describes a job's last failure from cause to consequence, in sentences.

use std::fmt;

use stagecoach_lifecycle::{AttemptFailure, JobOutcome, JobState, UnixMillis};

use crate::failure::{describe_failure, log_tail};
use crate::format::{duration, time};

/// The last failure of a job. The summary is displayed as sentences: the cause, the consequence, the state of the job,
/// and the remedy.
#[derive(Clone, Debug)]
pub struct FailureSummary<'a> {
    /// The name of the job.
    pub name: String,
    /// The stored state of the job; `None` before the first start.
    pub state: Option<&'a JobState>,
    /// The last step that finished before the failure.
    pub finished_step: Option<u64>,
    /// The end of the failed stage's log, or the reason why there is no log.
    pub log: Result<LogTail<'a>, &'a str>,
    /// The successor of the failed stage; `None` if no successor has started.
    pub successor: Option<Successor>,
    /// `restart.maxRestarts`.
    pub max_restarts: u32,
    /// A sentence on the point from which training continued; `None` until training continues.
    pub resumption: Option<String>,
    /// The state of the job, in a sentence.
    pub status_text: String,
    /// The current time.
    pub now: UnixMillis,
}

/// The end of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTail<'a> {
    /// The source of the log, such as a file or a pod.
    pub name: String,
    /// The text of the log, or its last lines.
    pub text: &'a str,
}

/// The successor of a failed stage, in the same attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor {
    /// A new process or pod of the stage.
    Restarted,
    /// The spare with this number.
    Spare(u32),
}

impl fmt::Display for FailureSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((state, failure)) = self.state.and_then(|state| Some((state, state.last_failure.as_ref()?))) else {
            return write!(f, "{}: no stage of this job has failed. {}", self.name, self.status_text);
        };
        writeln!(f, "{}: {}", self.name, self.what_failed(failure))?;
        writeln!(f, "  reason: {}", describe_failure(failure))?;
        self.write_log(f, failure)?;
        writeln!(f, "  then:   {}", self.consequence(state, failure))?;
        if let Some(resumption) = &self.resumption {
            writeln!(f, "          {resumption}")?;
        }
        writeln!(f, "  now:    {}", self.status_text)?;
        write!(f, "  to do:  {}.", failure.advice())
    }
}

impl FailureSummary<'_> {
    fn what_failed(&self, failure: &AttemptFailure) -> String {
        let subject = failure.stage().unwrap_or_else(|| "the group".into());
        let when = match (failure.step, self.finished_step) {
            (Some(step), _) => format!(" in step {step}"),
            (None, Some(step)) => format!(" after step {step} was finished"),
            (None, None) => String::new(),
        };
        let action = failure.action.as_ref().map_or_else(String::new, |action| format!(", in the action {action}"));
        let ago = duration(self.now.0.saturating_sub(failure.failed_at.0) as f64 / 1000.0);
        format!(
            "{subject} failed first, at {} ({ago} ago), in attempt {}{when}{action}.",
            time(failure.failed_at),
            failure.attempt
        )
    }

    /// Writes the last lines of the failed stage's log.
    fn write_log(&self, f: &mut fmt::Formatter<'_>, failure: &AttemptFailure) -> fmt::Result {
        let log = match &self.log {
            Ok(log) => log,
            Err(why) if failure.rank.is_some() => return writeln!(f, "  log:    {why}"),
            Err(_) => return Ok(()),
        };
        let tail = log_tail(log.text, &failure.message);
        if tail.is_empty() {
            return writeln!(f, "  log:    {} has no further lines", log.name);
        }
        writeln!(f, "  log:    the end of {}:", log.name)?;
        tail.iter().try_for_each(|line| writeln!(f, "          | {line}"))
    }

    /// Describes how the other stages react to the failure.
    fn consequence(&self, state: &JobState, failure: &AttemptFailure) -> String {
        let remaining = state.budget.remaining(self.max_restarts);
        let left = format!("{remaining} of {} restarts are left", self.max_restarts);
        let stage = failure.stage().unwrap_or_else(|| "the lost stage".into());
        let is_replaced = failure.rank.is_some_and(|rank| state.incarnation(rank) > failure.incarnation);
        if let Some(JobOutcome::Failed(reason)) = state.outcome()
            && failure.attempt == state.attempt.number
        {
            return format!("all stages were stopped, and none was started again: {}; {left}.", reason.explanation());
        }
        if failure.attempt < state.attempt.number {
            let next = failure.attempt + 1;
            return format!("all stages were stopped, and started again as attempt {next}; {left}.");
        }
        match (is_replaced, self.successor) {
            (true, Some(Successor::Spare(number))) => {
                format!("the other stages waited, and spare {number} took the place of {stage}; {left}.")
            }
            (true, _) if self.is_starting(state, failure) => {
                format!("the other stages wait, and {stage} is to start again; {left}.")
            }
            (true, _) => format!("the other stages waited, and {stage} was started again; {left}."),
            (false, _) => format!("nothing was started again yet; {left}."),
        }
    }

    /// Whether the failed stage has not been created again yet.
    fn is_starting(&self, state: &JobState, failure: &AttemptFailure) -> bool {
        self.successor.is_none() && failure.rank.is_some_and(|rank| state.ranks_to_create.contains(&rank))
    }
}
