//! Polls `/status` of the stages that may lead a job's group and of the spares in the background, so that a pod that
//! does not answer delays no reconcile. A pod delays its response until it has news: a change of more than its
//! progress. News triggers a reconcile. Progress alone triggers one reconcile per interval. The operator polls the
//! pods, so that the pods need no API permissions.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stagecoach_api::contract::{StageStatus, StatusQuery};

use super::polled_pod::PolledPod;
use super::stage_status_client::StageStatusClient;
use super::{ObservedPod, PolledStatus};
use crate::build::JobReference;
use crate::sync::{AbortOnDrop, PerJob};
use crate::triggers::Triggers;

/// The pauses before the next request: after news, and after the first request without an answer. Each further request
/// without an answer doubles the pause, up to the poll interval.
const PAUSE_AFTER_NEWS: Duration = Duration::from_millis(20);
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The polls of a pod. The responses are kept while the pod exists, even after the polls have ended.
#[derive(Debug, Default)]
struct Polls {
    pod: PolledPod,
    /// The last status that triggered a reconcile.
    last_triggering: Option<PolledStatus>,
    /// The task that polls the pod; `None` while the pod is not polled.
    task: Option<AbortOnDrop>,
}

impl Polls {
    /// Stores the response to a request; `None` stands for a request without a response. Returns whether the outcome is
    /// news, and whether the outcome triggers a reconcile.
    fn receive(&mut self, response: Option<StageStatus>) -> (bool, bool) {
        let is_news = self.pod.receive(response);
        let is_due =
            self.pod.last.as_ref().zip(self.last_triggering.as_ref()).is_some_and(|(last, before)| last.is_due(before));
        let triggers_reconcile = is_news || is_due;
        if triggers_reconcile {
            self.last_triggering.clone_from(&self.pod.last);
        }
        (is_news, triggers_reconcile)
    }
}

/// The polls, by the UIDs of the job and of the pod. The struct is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StageStatusPoller {
    interval: Duration,
    jobs: Arc<PerJob<HashMap<String, Polls>>>,
    triggers: Arc<Triggers>,
}

impl StageStatusPoller {
    /// Creates a poller that polls a pod without news once per `interval`.
    pub(crate) fn new(interval: Duration, triggers: Arc<Triggers>) -> StageStatusPoller {
        StageStatusPoller { interval, jobs: Arc::default(), triggers }
    }

    /// Returns the responses of `pod` so far, and starts to poll the pod.
    pub(crate) fn poll(&self, job: &JobReference, pod: &ObservedPod) -> PolledPod {
        let mut jobs = self.jobs.lock();
        let polls = jobs.entry(job.uid.clone()).or_default().entry(pod.uid.clone()).or_default();
        if let (Some(address), None) = (pod.address, &polls.task) {
            let task = tokio::spawn(self.clone().keep_polling(job.clone(), pod.clone(), address));
            polls.task = Some(AbortOnDrop(task.abort_handle()));
            polls.pod.polled_since.get_or_insert_with(Instant::now);
        }
        polls.pod.clone()
    }

    /// Returns the responses of `pod` so far.
    pub(crate) fn last_polled(&self, job: &JobReference, pod: &ObservedPod) -> PolledPod {
        let jobs = self.jobs.lock();
        jobs.get(&job.uid).and_then(|pods| pods.get(&pod.uid)).map(|polls| polls.pod.clone()).unwrap_or_default()
    }

    /// Ends the polls of all pods of `job` except the pods with the UIDs `polled`. Removes the entries of pods that are
    /// not among the existing `pods`.
    pub(crate) fn end_others(&self, job: &JobReference, pods: &[ObservedPod], polled: &[String]) {
        let mut jobs = self.jobs.lock();
        let Some(all) = jobs.get_mut(&job.uid) else { return };
        all.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
        all.iter_mut().filter(|(uid, _)| !polled.contains(uid)).for_each(|(_, polls)| polls.task = None);
    }

    /// Removes the entries of deleted jobs.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.jobs.retain(is_live);
    }

    /// Polls `pod` until the entry of the pod is removed or the task is aborted.
    async fn keep_polling(self, job: JobReference, pod: ObservedPod, address: IpAddr) {
        let mut client = StageStatusClient::new(address);
        let mut revision = None;
        let mut retry_pause = FIRST_RETRY_PAUSE;
        loop {
            let asked_at = Instant::now();
            let query = StatusQuery { revision, timeout_seconds: self.interval.as_secs_f64() };
            let response = client.fetch(query).await.filter(|status| is_from_pod(status, &job.uid, &pod));
            let is_answered = response.is_some();
            revision = response.as_ref().map(|status| status.revision);
            let (is_news, triggers_reconcile) = {
                let mut jobs = self.jobs.lock();
                let polls = jobs.get_mut(&job.uid).and_then(|pods| pods.get_mut(&pod.uid));
                let Some(polls) = polls else { return };
                polls.receive(response)
            };
            if triggers_reconcile {
                self.triggers.trigger(&job);
            }
            let pause = match (is_answered, is_news) {
                (true, true) => PAUSE_AFTER_NEWS,
                // a delayed response may have used up the interval
                (true, false) => self.interval.saturating_sub(asked_at.elapsed()),
                (false, _) => retry_pause,
            };
            retry_pause = if is_answered { FIRST_RETRY_PAUSE } else { self.interval.min(2 * retry_pause) };
            tokio::time::sleep(pause.min(self.interval)).await;
        }
    }
}

/// Whether the response comes from this pod. The cluster may have assigned the IP address to another pod.
fn is_from_pod(status: &StageStatus, job: &str, pod: &ObservedPod) -> bool {
    status.job_uid == job && status.attempt == pod.attempt && status.pod_uid == pod.uid
}

#[cfg(test)]
mod tests {
    use stagecoach_api::job::ProgressStatus;

    use super::*;

    #[test]
    fn progress_alone_triggers_a_reconcile_at_first_and_then_once_per_interval() {
        let mut polls = Polls::default();
        let mut triggers = |step: u64, seconds: u64| {
            let progress = ProgressStatus { step, ..ProgressStatus::default() };
            let (_, triggers_reconcile) = polls.receive(Some(StageStatus { progress, ..StageStatus::default() }));
            // simulate a response that arrives this many seconds after the response before
            if let Some(last) = polls.last_triggering.as_mut().filter(|_| !triggers_reconcile) {
                last.polled_at.0 -= seconds * 1000;
            }
            triggers_reconcile
        };
        assert!(triggers(0, 0), "the first answer");
        assert!(!triggers(0, 0), "nothing has changed");
        assert!(triggers(1, 0), "the first progress");
        assert!(!triggers(2, 14));
        assert!(!triggers(3, 1));
        assert!(triggers(4, 0), "15 s later");
        assert!(!triggers(4, 15));
        assert!(!triggers(4, 0), "it has not changed since");
        assert!(triggers(5, 0));
        // simulate a clock that was set back by an hour after this response
        polls.last_triggering.as_mut().unwrap().polled_at.0 += 3_600_000;
        let progress = ProgressStatus { step: 6, ..ProgressStatus::default() };
        assert!(polls.receive(Some(StageStatus { progress, ..StageStatus::default() })).1);
    }
}
