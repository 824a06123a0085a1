//! The advance of time, and the equality of states. States are equal if no decision distinguishes them.

use stagecoach_lifecycle::*;

use super::cluster_state::{ClusterState, Faults, HORIZON_SECONDS, JobObject, NOW, StaleCache};
use super::model_pod::{ModelPod, ModelProcess};

impl ClusterState {
    /// Replaces this state by one representative of all states that no decision distinguishes from it.
    pub(crate) fn canonicalise(&mut self) {
        let number = self.job.recorded.attempt.number;
        let oldest = UnixMillis(NOW.0 - HORIZON_SECONDS * 1000);
        for pod in self.pods.iter_mut().filter(|pod| !pod.is_alive()) {
            (pod.fenced, pod.is_survivor) = (false, false);
            if pod.is_reachable() {
                pod.deleted_at = pod.deleted_at.map(|_| oldest);
            }
        }
        self.volume.holder = self.volume.holder.filter(|name| self.pod(*name).is_some_and(ModelPod::is_alive));
        self.history.created.retain(|name| name.attempt == number);
        let groups = std::mem::take(&mut self.groups);
        let last = groups.len().saturating_sub(1);
        let is_member = |pod: &ModelPod, at: usize| {
            pod.process == ModelProcess::Ready && groups.iter().rposition(|group| group.has(pod)) == Some(at)
        };
        let is_kept = |at: usize| match at == last {
            true => self.of(groups[at].attempt).any(ModelPod::is_alive),
            false => self.may_lack_replicas() && self.pods.iter().any(|pod| is_member(pod, at)),
        };
        let kept: Vec<bool> = (0..groups.len()).map(is_kept).collect();
        self.groups = groups.into_iter().zip(kept).filter_map(|(group, is_kept)| is_kept.then_some(group)).collect();
        // the end of an older attempt, and the existence of its objects, matter only if a stale read shows that attempt
        // as the newest
        if self.stale_cache.is_none() && self.remaining_faults.status_losses == 0 {
            let dead = |attempt| self.of(attempt).all(|pod| !pod.is_alive() && pod.is_reachable());
            let dead: Vec<_> = (1..number).filter(|attempt| dead(*attempt)).collect();
            self.pods.retain(|pod| !dead.contains(&pod.name.attempt) || pod.deleted_at.is_none());
            for pod in self.pods.iter_mut().filter(|pod| dead.contains(&pod.name.attempt)) {
                (pod.process, pod.unnoticed) = (ModelProcess::Ended(1), None);
                (pod.promoted_to, pod.promotion_shows) = (None, false);
                pod.at = oldest;
            }
        }
        if self.job.recorded.outcome().is_some() {
            let Faults { crashes, stale_reads, .. } = self.remaining_faults;
            self.remaining_faults = Faults { crashes, stale_reads, ..Faults::default() };
        }
    }

    /// Advances time: all recorded times become older.
    pub(crate) fn advance_time(&mut self, time: UnixMillis) {
        let age = |at: &mut UnixMillis| {
            *at = UnixMillis(at.0.saturating_sub(time.0)).max(UnixMillis(NOW.0 - HORIZON_SECONDS * 1000))
        };
        let age_pods = |pods: &mut Vec<ModelPod>| {
            for pod in pods {
                age(&mut pod.at);
                pod.deleted_at.as_mut().into_iter().for_each(age);
            }
        };
        let age_job = |job: &mut JobObject| {
            if let AttemptPhase::Running { not_before, .. } = &mut job.recorded.attempt_phase {
                age(not_before);
            }
            job.recorded.last_failure.iter_mut().for_each(|failure| age(&mut failure.failed_at));
            job.recorded = canonical(job.recorded.clone());
        };
        age_pods(&mut self.pods);
        age_job(&mut self.job);
        match &mut self.stale_cache {
            Some(StaleCache::Pods(pods)) => age_pods(pods),
            Some(StaleCache::Job(job)) => age_job(job),
            None => {}
        }
    }
}

/// Returns a state without the parts on which no decision depends (counters, messages and past times), so that more
/// states are equal.
pub(crate) fn canonical(mut state: JobState) -> JobState {
    if let AttemptPhase::Running { not_before, .. } = &mut state.attempt_phase
        && *not_before <= NOW
    {
        *not_before = UnixMillis(0);
    }
    // a failure that only the other stages have reported is kept, because the exit completes it
    let awaits_exit = |failure: &AttemptFailure| failure.reason == FailureReason::Killed && failure.exit_code.is_none();
    let is_over = state.outcome().is_some();
    let last_failure = state.last_failure.filter(|failure| awaits_exit(failure) && !is_over);
    JobState {
        budget: RestartBudget {
            counted_since_checkpoint: state.budget.counted_since_checkpoint,
            ..RestartBudget::default()
        },
        // the first restart is immediate, and the back-off is the same after every later failure
        failures_without_progress: state.failures_without_progress.min(2),
        max_finished_steps: None,
        last_failure: last_failure.map(|failure| AttemptFailure { message: String::new(), ..failure }),
        started_at: state.started_at.map(|_| UnixMillis(0)),
        ..state
    }
}
