//! The observed state of a job: its pods, from the cache or a list, and the `/status` of the stage that leads and of spares.

mod instance;
mod log_tails;
mod object;
mod owned_objects;
mod pod;
mod pod_cache;
mod status_poller;

use std::collections::BTreeMap;

use kube::api::{Api, ListParams};
use stagecoach_api::contract::{FailureKind, StageStatus};
use stagecoach_api::job::TrainerType;
use stagecoach_lifecycle::{
    Attempt, AttemptFailure, CreationRefusal, InstanceId, InstanceState, LostInstance, Observed, ObservedProgress,
    Policy, UnixMillis,
};

pub(crate) use instance::BlockingReason;
pub(crate) use log_tails::LogTails;
pub(crate) use object::PartialPod;
pub(crate) use owned_objects::{KnownObject, OwnedKind, OwnedObject, OwnedObjects};
pub(crate) use pod::ObservedPod;
pub(crate) use pod_cache::PodCache;
pub(crate) use status_poller::{PolledStatus, StatusPoller};

use crate::build;
use crate::job::ObservedJob;

/// The observed state of a job at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobSnapshot {
    /// The existing pods of the job, and deleted ones whose exit is known.
    pub pods: Vec<ObservedPod>,
    /// The last `/status` of the stage that leads the current attempt's group; None before the first response.
    pub leader_status: Option<PolledStatus>,
    /// Whether that stage runs, should answer, and does not.
    pub leader_is_silent: bool,
    /// Whether a pod that was made as a spare may soon say what it is now, and has said nothing yet.
    pub awaits_spare_status: bool,
}

impl JobSnapshot {
    /// Whether a pod is absent from the list and the watch has not yet delivered its exit.
    pub(crate) fn awaits_pod_exit(&self) -> bool {
        self.pods.iter().any(|pod| pod.missing_since.is_some())
    }

    /// The pods of an attempt.
    pub(crate) fn pods_of_attempt(&self, attempt: u64) -> impl Iterator<Item = &ObservedPod> {
        self.pods.iter().filter(move |pod| pod.attempt == attempt)
    }

    /// The pod of the stage that caused `failure`, if it is known.
    pub(crate) fn pod_that_failed(&self, failure: &AttemptFailure) -> Option<&ObservedPod> {
        let instance = failure.instance_id()?;
        self.pods_of_attempt(failure.attempt).find(|pod| pod.instance_id() == Some(instance))
    }

    /// The nodes of pods that have ended because an audit suspects them.
    pub(crate) fn nodes_that_computed_wrong(&self) -> impl Iterator<Item = String> + '_ {
        let is_suspected = |pod: &&ObservedPod| match &pod.state {
            InstanceState::Exited(exit) => {
                exit.termination.as_ref().is_some_and(|report| report.kind == FailureKind::WrongResult)
            }
            _ => false,
        };
        self.pods.iter().filter(is_suspected).filter_map(|pod| pod.node.clone())
    }

    /// Whether no pod's trainer may run.
    pub(crate) fn all_exited(&self) -> bool {
        self.pods.iter().all(ObservedPod::has_exited)
    }

    /// From the pod cache; None if a list has to tell what became of a pod.
    pub(crate) fn from_cache(job: &ObservedJob, pod_cache: &PodCache) -> Option<JobSnapshot> {
        pod_cache
            .get(&job.reference.uid, job.state.attempt.number)
            .map(|pods| JobSnapshot { pods, ..JobSnapshot::default() })
    }

    /// Of a job without a record, which has no pods; None if that is not certain.
    pub(crate) fn of_new_job(job: &ObservedJob, pod_cache: &PodCache) -> Option<JobSnapshot> {
        let new = job.status.record.is_none() && pod_cache.has_none(&job.reference);
        new.then(JobSnapshot::default)
    }

    /// Lists the pods of `job`.
    ///
    /// # Errors
    /// The API server's.
    pub(crate) async fn from_list(
        job: &ObservedJob,
        pods: &Api<PartialPod>,
        pod_cache: &PodCache,
    ) -> kube::Result<JobSnapshot> {
        // no resourceVersion: a consistent read from etcd, not from the API server's cache
        let listed = pods.list(&ListParams::default().labels(&build::pod_label_selector(&job.reference))).await?;
        let version = parse_resource_version(listed.metadata.resource_version.as_deref().unwrap_or_default());
        let listed = listed.items.iter().filter_map(|pod| ObservedPod::from_partial(pod, &job.reference.uid)).collect();
        let pods = pod_cache.replace_with_list(&job.reference, job.state.attempt.number, version, listed);
        Ok(JobSnapshot { pods, ..JobSnapshot::default() })
    }

    /// Adds what the stages that may lead the attempt's group and its spares say at `/status`. They are polled as long as their
    /// processes may run: a spare until it has taken a place.
    pub(crate) fn poll(&mut self, job: &ObservedJob, status_poller: &StatusPoller) {
        if job.manifest.spec.trainer.kind != TrainerType::BuiltIn {
            return;
        }
        let (reference, attempt) = (&job.reference, job.state.attempt);
        let mut polled = Vec::new();
        for pod in self.pods.iter_mut().filter(|pod| pod.attempt == attempt.number && pod.spare().is_some()) {
            let mut report = status_poller.heard(reference, pod);
            if report.instance.is_none() && pod.may_answer() {
                report = status_poller.poll(reference, pod);
                polled.push(pod.uid.clone());
                self.awaits_spare_status |= report.is_awaited(pod.state == InstanceState::Ready);
            }
            // it is the trainer alone that says so: what can't be is not believed
            report.instance = report
                .instance
                .filter(|(instance, _)| instance.rank < attempt.mesh.ranks() && instance.incarnation > 0);
            pod.apply_report(&report);
        }
        let reports: Vec<Option<PolledStatus>> = self
            .possible_leaders(job)
            .map(|pod| {
                polled.push(pod.uid.clone());
                status_poller.poll(reference, pod).polled
            })
            .collect();
        if !reports.is_empty() {
            let fence = |report: &Option<PolledStatus>| report.as_ref().map_or(0, |polled| polled.status.leader_fence);
            // who has taken the newest fence; before there is one the first stage 0
            self.leader_status = reports.into_iter().rev().max_by_key(fence).flatten();
            self.leader_is_silent = self.leader_status.as_ref().is_none_or(|polled| !polled.is_reachable);
        }
        status_poller.end_others(reference, &self.pods, &polled);
    }

    /// The pods that are stage 0 now, of any replica if the job may lack one, whose processes may run: by replica, and of several of one
    /// the newest, which has taken the place of the others.
    fn possible_leaders(&self, job: &ObservedJob) -> impl Iterator<Item = &ObservedPod> {
        let Attempt { number, mesh, .. } = job.state.attempt;
        // what the attempt began with decides, which an edit of the job does not change
        let any_may_lead = mesh.data_parallel > 1;
        let mut newest: BTreeMap<u32, (u32, &ObservedPod)> = BTreeMap::new();
        for pod in self.pods_of_attempt(number).filter(|pod| pod.may_answer()) {
            let Some(InstanceId { rank, incarnation }) = pod.instance_id() else { continue };
            let may_lead = rank == 0 || any_may_lead && rank % mesh.stages.max(1) == 0;
            if may_lead && newest.get(&rank).is_none_or(|(known, _)| *known <= incarnation) {
                newest.insert(rank, (incarnation, pod));
            }
        }
        newest.into_values().map(|(_, pod)| pod)
    }

    /// The input of `lifecycle::decide`; `refusal` is why the attempt can't be created, if it can't.
    pub(crate) fn observed(&self, job: &ObservedJob, refusal: Option<CreationRefusal>) -> Observed {
        let instances = self.pods.iter().filter_map(ObservedPod::stage_instance).collect();
        let spares = self.pods.iter().filter_map(ObservedPod::spare_instance).collect();
        let state = job.state.clone();
        let mut policy = Policy::for_pods(&job.manifest.spec);
        // the spec may have another one by now
        let grace_seconds = self.pods_of_attempt(state.attempt.number).filter_map(|pod| pod.grace_seconds).max();
        policy.grace_seconds = grace_seconds.unwrap_or(policy.grace_seconds);
        let progress = self.observed_progress();
        Observed { desired: job.desired(), policy, state, instances, spares, refusal, progress }
    }

    fn observed_progress(&self) -> ObservedProgress {
        let is_unreachable = self.leader_is_silent;
        let Some(polled) = &self.leader_status else {
            return ObservedProgress { is_unreachable, ..ObservedProgress::default() };
        };
        let StageStatus { checkpoint, progress, lost, .. } = &polled.status;
        ObservedProgress {
            checkpoint_step: checkpoint.as_ref().map(|checkpoint| checkpoint.step),
            finished_steps: Some(progress.step).filter(|step| *step > 0),
            is_unreachable,
            last_preparation_at: Some(polled.changed_at).filter(|_| polled.is_preparing()),
            // an unreachable stage 0 may be reachable for its peers; the group detects a hang itself
            last_step_at: Some(polled.changed_at).filter(|_| polled.is_training() && polled.is_reachable),
            lost: lost.as_ref().map(|lost| LostInstance {
                rank: lost.stage,
                incarnation: lost.incarnation,
                since: polled.changed_at,
                has_ended: lost.has_ended,
            }),
        }
    }
}

/// The current time.
pub(crate) fn now() -> UnixMillis {
    UnixMillis(u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default())
}

/// A resourceVersion as a number, by which versions of an object are ordered; 0 if it is not a number.
pub(crate) fn parse_resource_version(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}
