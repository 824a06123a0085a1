//! One look at a job: its pods, remembered or listed, and what stage 0 says of itself.

mod member;
mod object;
mod pod;
mod poll;
mod watched;

use kube::api::{Api, ListParams};
use stagecoach_api::contract::StageStatus;
use stagecoach_api::job::TrainerType;
use stagecoach_lifecycle::{InstanceState, Observed, ObservedProgress, Policy, UnixMillis};

pub(crate) use member::Trouble;
pub(crate) use object::PodObject;
pub(crate) use pod::Pod;
pub(crate) use poll::{Polled, Polls};
pub(crate) use watched::Watched;

use crate::build;
use crate::job::Job;

/// What was seen of a job at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// The pods of the job that exist, and those that are known to have ended before they went.
    pub pods: Vec<Pod>,
    /// What stage 0 of the current attempt said last; none before it first said anything.
    pub polled: Option<Polled>,
}

impl Look {
    /// Whether the watch is about to say how a pod ended.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.pods.iter().any(|pod| pod.missing.is_some())
    }

    /// The pods of an attempt.
    pub(crate) fn of(&self, attempt: u64) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(move |pod| pod.instance.attempt == attempt)
    }

    /// What the watch has brought of `job`; nothing if that can't be relied on.
    pub(crate) fn remembered(job: &Job, watched: &Watched) -> Option<Look> {
        watched.of(&job.owner.uid, job.state.attempt.number).map(|pods| Look { pods, polled: None })
    }

    /// The first look at `job`, for which nothing was made yet; nothing if that is not certain.
    pub(crate) fn first(job: &Job, watched: &Watched) -> Option<Look> {
        let new = job.status.record.is_none() && watched.begin(&job.owner.uid, &job.owner.namespace);
        new.then(Look::default)
    }

    /// Lists the pods of `job`.
    ///
    /// # Errors
    /// The API server's.
    pub(crate) async fn live(job: &Job, pods: &Api<PodObject>, watched: &Watched) -> kube::Result<Look> {
        // no resourceVersion: the answer is what is, not what a cache remembers
        let listed = pods.list(&ListParams::default().labels(&build::pod_query(&job.owner))).await?;
        let version = version(listed.metadata.resource_version.as_deref().unwrap_or_default());
        let listed = listed.items.iter().filter_map(|pod| Pod::of(pod, &job.owner.uid)).collect();
        let pods = watched.list(&job.owner.uid, job.state.attempt.number, version, listed);
        Ok(Look { pods, polled: None })
    }

    /// Asks stage 0 how far it is, if that is due.
    pub(crate) async fn ask(&mut self, job: &Job, polls: &Polls) {
        if let Some(stage_0) = self.stage_0(job) {
            self.polled = polls.ask(&job.owner.uid, stage_0).await;
        }
    }

    /// The pod that serves `/status`, if its process may be there.
    fn stage_0(&self, job: &Job) -> Option<&Pod> {
        let built_in = job.job.spec.trainer.kind == TrainerType::BuiltIn;
        let running = |pod: &&Pod| {
            let state = &pod.instance.state;
            pod.instance.stage == 0
                && matches!(state, InstanceState::Starting | InstanceState::Ready | InstanceState::Terminating)
        };
        self.of(job.state.attempt.number).find(running).filter(|_| built_in)
    }

    /// The same as `lifecycle` wants it.
    pub(crate) fn observed(&self, job: &Job) -> Observed {
        let instances = self.pods.iter().map(|pod| pod.instance.clone()).collect();
        let state = job.state.clone();
        Observed {
            desired: job.desired(),
            policy: Policy::for_pods(&job.job.spec),
            state,
            instances,
            progress: self.observed_progress(),
        }
    }

    fn observed_progress(&self) -> ObservedProgress {
        let Some(polled) = &self.polled else { return ObservedProgress::default() };
        let StageStatus { checkpoint, progress, .. } = &polled.status;
        ObservedProgress {
            checkpoint_step: checkpoint.as_ref().map(|checkpoint| checkpoint.step),
            finished_steps: Some(progress.step).filter(|step| *step > 0),
            last_preparation_at: Some(polled.changed).filter(|_| polled.is_preparing()),
            // who does not answer may be cut off from the operator alone: its own group watches it
            last_step_at: Some(polled.changed).filter(|_| polled.is_training() && polled.answered),
        }
    }
}

/// The present, as `lifecycle` counts it.
pub(crate) fn now() -> UnixMillis {
    UnixMillis(u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default())
}

/// A resourceVersion as a number, which says which of two states of an object is the newer one; 0 if it is none.
pub(crate) fn version(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}
