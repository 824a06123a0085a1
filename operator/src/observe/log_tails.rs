//! Reads the end of the log of a failed stage in the background, so that a node that does not answer delays no restart.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use stagecoach_api::visible;
use stagecoach_lifecycle::{AttemptFailure, InstanceId};

use super::ObservedPods;
use crate::build::JobReference;
use crate::sync::PerJob;
use crate::triggers::Triggers;

/// The limits of the log tail in the status.
const LOG_TAIL_LINES: i64 = 20;
const LOG_TAIL_BYTES: usize = 2048;
/// The limits of the request for the log tail: the bytes, counted from the start of the last `LOG_TAIL_LINES` lines,
/// and the duration. Only the deletion of the failed pod waits for the request, so the duration can be long enough for
/// a busy node.
const REQUEST_BYTES: i64 = 1 << 20;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The log tail of one failure.
#[derive(Debug)]
struct LogTail {
    attempt: u64,
    instance: InstanceId,
    /// The UID of the pod.
    pod: String,
    is_read: bool,
    text: Option<String>,
}

/// The log tails of a job: of its last failure, and of earlier failures whose logs are still being read.
#[derive(Debug, Default)]
struct JobLogTails(Vec<LogTail>);

impl JobLogTails {
    /// Adds the failure of an instance whose pod has the UID `pod`, and removes earlier failures whose logs were read.
    /// Returns `false` if the failure exists already: each reconcile treats a failure as new until the status records
    /// the failure.
    fn begin(&mut self, attempt: u64, instance: InstanceId, pod: &str) -> bool {
        if self.0.iter().any(|tail| (tail.attempt, tail.instance, tail.pod.as_str()) == (attempt, instance, pod)) {
            return false;
        }
        // a log that is still being read keeps its pod from deletion
        self.0.retain(|tail| !tail.is_read);
        self.0.push(LogTail { attempt, instance, pod: pod.to_owned(), is_read: false, text: None });
        true
    }

    /// Stores the result of the read of the log of the pod with the UID `pod`.
    fn end(&mut self, pod: &str, text: Option<String>) {
        if let Some(tail) = self.0.iter_mut().find(|tail| tail.pod == pod) {
            (tail.is_read, tail.text) = (true, text);
        }
    }

    /// Returns the text of the newest log of an instance.
    fn text(&self, attempt: u64, instance: InstanceId) -> Option<String> {
        self.0.iter().rfind(|tail| (tail.attempt, tail.instance) == (attempt, instance))?.text.clone()
    }

    fn is_reading(&self, pod: &str) -> bool {
        self.0.iter().any(|tail| tail.pod == pod && !tail.is_read)
    }
}

/// The log tails, by job UID.
#[derive(Debug)]
pub(crate) struct LogTails {
    jobs: Arc<PerJob<JobLogTails>>,
    triggers: Arc<Triggers>,
}

impl LogTails {
    /// Creates an empty collection. `triggers` starts a reconcile after a log was read.
    pub(crate) fn new(triggers: Arc<Triggers>) -> LogTails {
        LogTails { jobs: Arc::default(), triggers }
    }

    /// Starts to read the log of the stage that caused `failure`, if the stage's pod exists.
    pub(crate) fn read(&self, job: &JobReference, logs: Api<Pod>, pods: &ObservedPods, failure: &AttemptFailure) {
        let Some(instance) = failure.instance_id() else { return };
        let Some(pod) = pods.pod_that_failed(failure).filter(|pod| !pod.deleted) else { return };
        if !self.jobs.lock().entry(job.uid.clone()).or_default().begin(failure.attempt, instance, &pod.uid) {
            return;
        }
        let (jobs, triggers, job) = (Arc::clone(&self.jobs), Arc::clone(&self.triggers), job.clone());
        let (name, uid, container) = (pod.name.clone(), pod.uid.clone(), pod.log_container.clone());
        tokio::spawn(async move {
            let params = LogParams {
                container: Some(container),
                tail_lines: Some(LOG_TAIL_LINES),
                limit_bytes: Some(REQUEST_BYTES),
                ..LogParams::default()
            };
            let log = tokio::time::timeout(REQUEST_TIMEOUT, logs.logs(&name, &params)).await;
            let text = log
                .ok()
                .and_then(Result::ok)
                .filter(|log| !log.is_empty())
                .map(|log| end_of(&visible(&log)).to_owned());
            if let Some(tails) = jobs.lock().get_mut(&job.uid) {
                tails.end(&uid, text);
            }
            triggers.trigger(&job);
        });
    }

    /// Returns the log tail of the stage that caused `failure`; `None` before the log is read, or if it is empty or
    /// can't be read.
    pub(crate) fn get(&self, job: &str, failure: &AttemptFailure) -> Option<String> {
        self.jobs.lock().get(job)?.text(failure.attempt, failure.instance_id()?)
    }

    /// Whether the log of the pod with this UID is being read. Deleting the pod would delete its log.
    pub(crate) fn is_reading(&self, job: &str, pod: &str) -> bool {
        self.jobs.lock().get(job).is_some_and(|tails| tails.is_reading(pod))
    }

    /// Removes the entries of deleted jobs.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.jobs.retain(is_live);
    }
}

/// Returns the end of `log`: at most `LOG_TAIL_BYTES` bytes, without a partial character.
fn end_of(log: &str) -> &str {
    &log[log.ceil_char_boundary(log.len().saturating_sub(LOG_TAIL_BYTES))..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_end() {
        assert_eq!(end_of("short"), "short");
        let long = format!("{}the last words", "é".repeat(3000));
        let end = end_of(&long);
        assert!(end.ends_with("the last words") && end.len() <= LOG_TAIL_BYTES && end.len() > LOG_TAIL_BYTES - 2);
    }

    #[test]
    fn a_log_belongs_to_its_stage_and_keeps_its_pod_until_it_is_read() {
        let stage = |rank| InstanceId { rank, incarnation: 0 };
        let mut tails = JobLogTails::default();
        assert!(tails.begin(1, stage(1), "a") && !tails.begin(1, stage(1), "a"), "a log is read once");
        // another stage fails while the node of the first stage does not answer
        assert!(tails.begin(1, stage(2), "b"));
        tails.end("a", Some("of a".into()));
        assert!(!tails.is_reading("a") && tails.is_reading("b"));
        assert_eq!((tails.text(1, stage(1)).as_deref(), tails.text(1, stage(2))), (Some("of a"), None));
        tails.end("b", Some("of b".into()));
        assert!(!tails.is_reading("b"));
        assert_eq!(tails.text(1, stage(2)).as_deref(), Some("of b"));
        // a stage without a log does not get the log of another stage
        assert_eq!((tails.text(1, stage(0)), tails.text(2, stage(2))), (None, None));
        assert!(tails.begin(2, stage(2), "c"));
        assert_eq!(tails.0.len(), 1, "logs of earlier failures are removed");
    }
}
