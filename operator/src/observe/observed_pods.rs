//! The observations on which the decision about a job is based: the job's pods, from the cache or a list, and the
//! `/status` of the leader and of spares.

use std::collections::BTreeMap;

use kube::api::{Api, ListParams};
use stagecoach_api::contract::{FailureKind, StageStatus};
use stagecoach_api::job::TrainerType;
use stagecoach_lifecycle::{
    Attempt, AttemptFailure, CreationRefusal, FailurePolicy, InstanceId, InstanceState, LostInstance, Observed,
    ObservedProgress, UnixMillis,
};

use super::{ObservedPod, PartialPod, PodCache, PolledStatus, StageStatusPoller, now, parse_resource_version};
use crate::build;
use crate::job::ParsedJob;

/// The pods of a job, as observed at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ObservedPods {
    /// The existing pods of the job, and deleted pods whose exit is known.
    pub all: Vec<ObservedPod>,
    /// The time at which the pods were observed.
    pub observed_at: UnixMillis,
    /// The last `/status` of the leader, the stage that commits the checkpoints of the attempt's group (the connected
    /// stages); `None` before the first response.
    pub leader_status: Option<PolledStatus>,
    /// Whether the leader runs but does not answer requests.
    pub leader_is_silent: bool,
    /// Whether the first response of a pod that was created as a spare is missing and may arrive soon. The group may
    /// have promoted this spare.
    pub awaits_spare_status: bool,
}

impl ObservedPods {
    fn new(all: Vec<ObservedPod>) -> ObservedPods {
        ObservedPods {
            all,
            observed_at: now(),
            leader_status: None,
            leader_is_silent: false,
            awaits_spare_status: false,
        }
    }

    /// Returns the pods from the pod cache; `None` if the cache lacks the exit of a pod, so that a list is necessary.
    pub(crate) fn from_cache(job: &ParsedJob, pod_cache: &PodCache) -> Option<ObservedPods> {
        pod_cache.get(&job.reference.uid, job.state.attempt.number).map(ObservedPods::new)
    }

    /// Returns the observation of a new job, which has no `status.record` and no pods. Returns `None` if the job has a
    /// `status.record`, or if the cache can't prove that the job has no pods.
    pub(crate) fn of_new_job(job: &ParsedJob, pod_cache: &PodCache) -> Option<ObservedPods> {
        let is_new = job.status.record.is_none() && pod_cache.has_none(&job.reference);
        is_new.then(|| ObservedPods::new(Vec::new()))
    }

    /// Lists the pods of `job`.
    ///
    /// # Errors
    /// Returns the error of the API server.
    pub(crate) async fn from_list(
        job: &ParsedJob,
        api: &Api<PartialPod>,
        pod_cache: &PodCache,
    ) -> kube::Result<ObservedPods> {
        // no resourceVersion: a consistent read from etcd, not from the API server's cache
        let listed = api.list(&ListParams::default().labels(&build::pod_label_selector(&job.reference))).await?;
        let version = parse_resource_version(listed.metadata.resource_version.as_deref());
        let listed = listed.items.iter().filter_map(|pod| ObservedPod::from_partial(pod, &job.reference.uid)).collect();
        let pods = pod_cache.replace_with_list(&job.reference, job.state.attempt.number, version, listed);
        Ok(ObservedPods::new(pods))
    }

    /// Whether a pod is absent from the list and the watch has not delivered the pod's exit yet.
    pub(crate) fn awaits_pod_exit(&self) -> bool {
        self.all.iter().any(|pod| pod.missing_since.is_some())
    }

    /// Returns the pods of an attempt.
    pub(crate) fn of_attempt(&self, attempt: u64) -> impl Iterator<Item = &ObservedPod> {
        self.all.iter().filter(move |pod| pod.attempt == attempt)
    }

    /// Returns the pod of the stage that caused `failure`, if the pod is known.
    pub(crate) fn pod_that_failed(&self, failure: &AttemptFailure) -> Option<&ObservedPod> {
        let instance = failure.instance_id()?;
        self.of_attempt(failure.attempt).find(|pod| pod.instance_id() == Some(instance))
    }

    /// Returns the nodes of pods that have exited because an audit found their result to be wrong. In an audit, another
    /// stage computes a result again.
    pub(crate) fn nodes_that_computed_wrong(&self) -> impl Iterator<Item = String> + '_ {
        let is_suspected = |pod: &&ObservedPod| match &pod.state {
            InstanceState::Exited(exit) => {
                exit.termination.as_ref().is_some_and(|report| report.kind == FailureKind::WrongResult)
            }
            _ => false,
        };
        self.all.iter().filter(is_suspected).filter_map(|pod| pod.node.clone())
    }

    /// Whether the trainers of all pods have exited.
    pub(crate) fn all_exited(&self) -> bool {
        self.all.iter().all(ObservedPod::has_exited)
    }

    /// Adds the last `/status` of spares and of the stages that may lead the attempt's group. Polls these pods while
    /// their processes may run. Polls a spare only until the group has promoted it.
    pub(crate) fn add_polled(&mut self, job: &ParsedJob, poller: &StageStatusPoller) {
        if job.manifest.spec.trainer.kind != TrainerType::BuiltIn {
            return;
        }
        let (reference, attempt) = (&job.reference, job.state.attempt);
        let mut polled_uids = Vec::new();
        for pod in self.all.iter_mut().filter(|pod| pod.attempt == attempt.number && pod.spare().is_some()) {
            let mut polled = poller.last_polled(reference, pod);
            if polled.stage.is_none() && pod.may_answer() {
                polled = poller.poll(reference, pod);
                polled_uids.push(pod.uid.clone());
                self.awaits_spare_status |= polled.is_awaited(pod.state == InstanceState::Ready);
            }
            // the stage comes from the trainer's response, which may be wrong: ignore a stage that can't exist
            polled.stage =
                polled.stage.filter(|(instance, _)| instance.rank < attempt.mesh.ranks() && instance.incarnation > 0);
            pod.apply_polled(&polled);
        }
        let statuses: Vec<Option<PolledStatus>> = self
            .possible_leaders(job)
            .map(|pod| {
                polled_uids.push(pod.uid.clone());
                poller.poll(reference, pod).last
            })
            .collect();
        if !statuses.is_empty() {
            let fence = |last: &Option<PolledStatus>| last.as_ref().map_or(0, |last| last.status.leader_fence);
            // the leader holds the newest fence, the right to commit checkpoints; before a fence exists, stage 0 of the
            // first replica leads
            self.leader_status = statuses.into_iter().rev().max_by_key(fence).flatten();
            self.leader_is_silent = self.leader_status.as_ref().is_none_or(|polled| !polled.is_reachable);
        }
        self.mark_training_stages_ready();
        poller.end_others(reference, &self.all, &polled_uids);
        // set the time again, so that no polled status is later
        self.observed_at = now();
    }

    /// Marks the stages of a group as ready if the leader of the group reports that the group trains. The function
    /// ignores the kubelet's readiness, because the kubelet may be unreachable or may not have probed the pod yet.
    fn mark_training_stages_ready(&mut self) {
        let leader = self.leader_status.as_ref().filter(|leader| leader.is_reachable && leader.is_training());
        let Some(StageStatus { attempt, lost: None, group: Some(group), .. }) = leader.map(|leader| &leader.status)
        else {
            return;
        };
        let trains = |InstanceId { rank, incarnation }: InstanceId| {
            group.first_step_at > 0 && group.incarnations.get(rank as usize) == Some(&Some(incarnation))
        };
        let is_starting = |pod: &&mut ObservedPod| pod.attempt == *attempt && pod.state == InstanceState::Starting;
        for pod in self.all.iter_mut().filter(is_starting).filter(|pod| pod.instance_id().is_some_and(trains)) {
            pod.state = InstanceState::Ready;
        }
    }

    /// Returns the pods that may lead the group: for each replica that may lead, the newest pod of its stage 0 whose
    /// process may run. The newest pod has replaced the older pods.
    fn possible_leaders(&self, job: &ParsedJob) -> impl Iterator<Item = &ObservedPod> {
        let Attempt { number, mesh, .. } = job.state.attempt;
        // use the mesh of the attempt, because the user may have edited the spec
        let any_may_lead = mesh.data_parallel > 1;
        let mut newest: BTreeMap<u32, (u32, &ObservedPod)> = BTreeMap::new();
        for pod in self.of_attempt(number).filter(|pod| pod.may_answer()) {
            let Some(InstanceId { rank, incarnation }) = pod.instance_id() else { continue };
            let may_lead = rank == 0 || any_may_lead && rank % mesh.stages.max(1) == 0;
            if may_lead && newest.get(&rank).is_none_or(|(known, _)| *known <= incarnation) {
                newest.insert(rank, (incarnation, pod));
            }
        }
        newest.into_values().map(|(_, pod)| pod)
    }

    /// Returns the input of `lifecycle::decide`. `refusal` is the reason why the API server rejects the attempt's pods;
    /// `None` if the API server does not reject them.
    pub(crate) fn decision_input(&self, job: &ParsedJob, refusal: Option<CreationRefusal>) -> Observed {
        let instances = self.all.iter().filter_map(ObservedPod::stage_instance).collect();
        let spares = self.all.iter().filter_map(ObservedPod::spare_instance).collect();
        let state = job.state.clone();
        let mut policy = FailurePolicy::for_pods(&job.manifest.spec);
        // use the grace period of the existing pods, because the user may have edited the spec
        let grace_seconds = self.of_attempt(state.attempt.number).filter_map(|pod| pod.grace_seconds).max();
        policy.grace_seconds = grace_seconds.unwrap_or(policy.grace_seconds);
        policy.spares = job.grant.spares.unwrap_or(policy.spares);
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
            // do not report a leader that only the operator can't reach as a hang: its peers may reach it, and the
            // group itself detects hangs
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
