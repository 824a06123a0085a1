//! The content of one pod's responses at `/status`.

use std::time::{Duration, Instant};

use stagecoach_api::contract::{StagePhase, StageStatus};
use stagecoach_api::job::ProgressStatus;
use stagecoach_lifecycle::{InstanceId, UnixMillis};

use super::now;
use crate::clock::remaining;

/// The minimum time between two reconciles that only progress triggers, and between two status writes that change only
/// progress.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

/// The longest wait for the first response of a ready spare. After this time, the operator decides, although the group
/// (the connected stages) may have promoted the spare to a stage.
const FIRST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The last response of a pod.
#[derive(Clone, Debug)]
pub(crate) struct PolledStatus {
    /// The response.
    pub status: StageStatus,
    /// The time at which the content of the response last changed.
    pub changed_at: UnixMillis,
    /// The time at which the response was received.
    pub polled_at: UnixMillis,
    /// Whether the pod answered the last request.
    pub is_reachable: bool,
}

impl PolledStatus {
    /// Whether the pod prepares data or waits for its peers.
    pub(crate) fn is_preparing(&self) -> bool {
        matches!(self.status.phase, StagePhase::Preparing | StagePhase::Forming)
    }

    /// Whether the pod trains.
    pub(crate) fn is_training(&self) -> bool {
        self.status.phase == StagePhase::Training
    }

    /// Whether a status that differs from `last` only in the progress or the message triggers a reconcile. `last` is
    /// the status that triggered the last reconcile. The first progress triggers a reconcile at once. Other changes
    /// trigger one reconcile per interval.
    pub(super) fn is_due(&self, last: &PolledStatus) -> bool {
        let has_progress = |polled: &PolledStatus| polled.status.progress != ProgressStatus::default();
        let is_interval_over = remaining(last.polled_at, PROGRESS_INTERVAL, self.polled_at).is_none();
        let is_first = !has_progress(last) && has_progress(self);
        self.is_reachable && self.status != last.status && (is_interval_over || is_first)
    }
}

/// The facts about a pod that its responses have reported.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolledPod {
    /// The pod's last response; `None` before the first response.
    pub last: Option<PolledStatus>,
    /// The pod's stage, and the time of the first response that named the stage. Later responses do not change this
    /// value. `None` for a spare that the group has not promoted.
    pub stage: Option<(InstanceId, UnixMillis)>,
    /// The time at which the polls of the pod began; `None` until then.
    pub(super) polled_since: Option<Instant>,
    /// Whether the first request was answered or has failed.
    pub(super) was_asked: bool,
}

impl PolledPod {
    /// Whether a first response may arrive soon. `is_ready` is the pod's readiness according to the kubelet.
    pub(crate) fn is_awaited(&self, is_ready: bool) -> bool {
        let may_answer = |since: Instant| !self.was_asked || is_ready && since.elapsed() < FIRST_RESPONSE_TIMEOUT;
        self.last.is_none() && self.polled_since.is_some_and(may_answer)
    }

    /// Stores the response to a request; `None` stands for a request without a response. Returns whether the outcome is
    /// news. News is the outcome of the first request, a pod that starts or stops answering, or a status that differs
    /// in more than the progress and the message.
    pub(super) fn receive(&mut self, response: Option<StageStatus>) -> bool {
        let is_first = !std::mem::replace(&mut self.was_asked, true);
        if let Some(&StageStatus { spare: None, stage, incarnation, .. }) = response.as_ref() {
            self.stage.get_or_insert_with(|| (InstanceId { rank: stage, incarnation }, now()));
        }
        let before = self.last.take();
        let is_news = match (&before, &response) {
            (None, response) => response.is_some(),
            (Some(before), None) => before.is_reachable,
            (Some(before), Some(status)) => !before.is_reachable || status.is_news_after(&before.status),
        };
        self.last = match response {
            None => before.map(|before| PolledStatus { is_reachable: false, ..before }),
            Some(status) => {
                let same = before.filter(|before| before.status == status);
                let changed_at = same.map_or_else(now, |before| before.changed_at);
                Some(PolledStatus { status, changed_at, polled_at: now(), is_reachable: true })
            }
        };
        is_news || is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(spare: Option<u32>, stage: u32, incarnation: u32) -> Option<StageStatus> {
        Some(StageStatus { spare, stage, incarnation, ..StageStatus::default() })
    }

    #[test]
    fn the_stage_of_a_spare_is_known_from_the_first_response_that_names_it() {
        let mut pod = PolledPod::default();
        assert!(pod.receive(says(Some(0), 0, 0)), "the first answer is news");
        assert_eq!(pod.stage, None);
        assert!(!pod.receive(says(Some(0), 0, 0)));
        assert!(pod.receive(says(None, 2, 1)));
        let (instance, since) = pod.stage.unwrap();
        assert_eq!(instance, InstanceId { rank: 2, incarnation: 1 });
        pod.receive(says(None, 2, 1).map(|status| StageStatus { phase: StagePhase::Training, ..status }));
        assert!(pod.receive(None), "it does not answer any more");
        assert_eq!(pod.stage, Some((instance, since)));
    }

    #[test]
    fn a_pod_without_a_response_is_awaited_until_the_first_request_and_longer_if_it_is_ready() {
        let mut pod = PolledPod::default();
        assert!(!pod.is_awaited(true), "the pod is not polled");
        pod.polled_since = Some(Instant::now());
        assert!(pod.is_awaited(false));
        assert!(pod.receive(None), "the failure of the first request is news");
        assert!(!pod.receive(None));
        assert!(!pod.is_awaited(false));
        assert!(pod.is_awaited(true));
        pod.polled_since = Instant::now().checked_sub(2 * FIRST_RESPONSE_TIMEOUT);
        assert!(!pod.is_awaited(true));
        pod.polled_since = Some(Instant::now());
        pod.receive(says(Some(0), 0, 0));
        assert!(!pod.is_awaited(true));
    }
}
