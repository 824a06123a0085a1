//! Reads the end of the log of a failed stage in the background, so that a node that does not answer delays no restart.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use stagecoach_api::visible;
use stagecoach_lifecycle::AttemptFailure;

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

/// The log tail of a job's last failure.
#[derive(Clone, Debug)]
struct PendingLogTail {
    attempt: u64,
    /// The UID of the pod.
    pod: String,
    is_read: bool,
    text: Option<String>,
}

/// The log tails, by job UID.
#[derive(Debug)]
pub(crate) struct LogTails {
    jobs: Arc<PerJob<PendingLogTail>>,
    triggers: Arc<Triggers>,
}

impl LogTails {
    /// Creates an empty collection. `triggers` starts a reconcile after a log was read.
    pub(crate) fn new(triggers: Arc<Triggers>) -> LogTails {
        LogTails { jobs: Arc::default(), triggers }
    }

    /// Starts to read the log of the stage that caused `failure`, if the stage's pod exists.
    pub(crate) fn read(&self, job: &JobReference, logs: Api<Pod>, pods: &ObservedPods, failure: &AttemptFailure) {
        let Some(pod) = pods.pod_that_failed(failure).filter(|pod| !pod.deleted) else { return };
        let tail = PendingLogTail { attempt: failure.attempt, pod: pod.uid.clone(), is_read: false, text: None };
        // an earlier reconcile may have started this read already: each reconcile treats the failure as new until the
        // status records the failure
        let is_same = |before: &PendingLogTail| before.attempt == tail.attempt && before.pod == tail.pod;
        if self.jobs.lock().get(&job.uid).is_some_and(is_same) {
            return;
        }
        self.jobs.lock().insert(job.uid.clone(), tail.clone());
        let (jobs, triggers, job) = (Arc::clone(&self.jobs), Arc::clone(&self.triggers), job.clone());
        let (name, container) = (pod.name.clone(), pod.log_container.clone());
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
            jobs.lock().insert(job.uid.clone(), PendingLogTail { is_read: true, text, ..tail });
            triggers.trigger(&job);
        });
    }

    /// Returns the log tail of an attempt's failure; `None` before the log is read, or if it is empty or can't be read.
    pub(crate) fn get(&self, job: &str, attempt: u64) -> Option<String> {
        self.jobs.lock().get(job).filter(|tail| tail.attempt == attempt)?.text.clone()
    }

    /// Whether the log of the pod with this UID is being read. Deleting the pod would delete its log.
    pub(crate) fn is_reading(&self, job: &str, pod: &str) -> bool {
        self.jobs.lock().get(job).is_some_and(|tail| tail.pod == pod && !tail.is_read)
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
}
