//! The fields of a pod that the operator uses.

use std::net::IpAddr;
use std::time::Instant;

use stagecoach_api::contract::{CONTAINER_NAME, StagePhase};
use stagecoach_api::job::ProgressStatus;
use stagecoach_lifecycle::{InstanceId, InstanceState, SpareInstance, StageInstance, UnixMillis};

use super::PartialPod;
use super::pod_exit::{ends_by_itself, failed_init_container, last_progress};
use super::pod_state::{BlockingReason, blocking_reason, conditions, role, state};
use super::polled_pod::PolledPod;
use super::{now, parse_resource_version};
use crate::build::{self, PodRole};

/// A pod of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObservedPod {
    /// The role for which the pod was created.
    pub role: PodRole,
    /// The stage to which the group (the connected stages of the attempt) has promoted this spare, if the stage is
    /// known. The pod cache does not store this field, because the spare's responses at `/status` report the stage.
    pub taken: Option<InstanceId>,
    /// The number of the pod's attempt.
    pub attempt: u64,
    /// The state of the pod.
    pub state: InstanceState,
    /// The time at which the pod entered this state.
    pub since: UnixMillis,
    /// The last progress of a trainer that has exited. Only the leader of a group reports this progress.
    pub last_progress: Option<ProgressStatus>,
    /// The types and statuses of the pod's conditions.
    pub conditions: Vec<(String, String)>,
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// The pod's termination grace period, in seconds.
    pub grace_seconds: Option<u64>,
    /// The node of the pod, once the pod is scheduled.
    pub node: Option<String>,
    /// The pod's IP address, once the pod has one.
    pub address: Option<IpAddr>,
    /// The image of the trainer container.
    pub image: Option<String>,
    /// Whether the pod's containers have ended. The kubelet then ends the sidecars among the init containers, so that
    /// the pod needs no deletion to end.
    pub ends_by_itself: bool,
    /// The container whose log shows why the pod failed.
    pub log_container: String,
    /// The reason why the pod can't start, if the pod's status has one.
    pub blocking_reason: Option<BlockingReason>,
    /// Whether the pod has a deletionTimestamp.
    pub terminating: bool,
    /// Whether the pod was deleted. The cache keeps a deleted pod only for its exit.
    pub deleted: bool,
    /// The time since which the pod is absent from lists while the watch has not delivered its deletion.
    pub(super) missing_since: Option<Instant>,
    /// The resourceVersion of the object.
    pub(super) version: u64,
}

impl ObservedPod {
    /// Returns the pod of an attempt of the job with the UID `job`; `None` if `object` is no such pod. Any client can
    /// write labels, so the function also checks that the job is the pod's controller.
    pub(crate) fn from_partial(object: &PartialPod, job: &str) -> Option<ObservedPod> {
        let PartialPod { metadata, spec, status } = object;
        if !build::is_controlled_by(metadata, job) {
            return None;
        }
        let trainer = spec.containers.iter().find(|container| container.name == CONTAINER_NAME);
        let ((role, attempt), (state, since)) = (role(object)?, state(object));
        Some(ObservedPod {
            role,
            taken: None,
            attempt,
            state,
            since,
            last_progress: last_progress(object),
            conditions: conditions(object),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            grace_seconds: spec.termination_grace_period_seconds,
            node: spec.node_name.clone(),
            address: status.pod_ip.as_deref().and_then(|address| address.parse().ok()),
            image: trainer.and_then(|trainer| trainer.image.clone()),
            ends_by_itself: ends_by_itself(object),
            log_container: failed_init_container(object).map_or(CONTAINER_NAME, |(name, _)| name).to_owned(),
            blocking_reason: blocking_reason(object),
            terminating: metadata.deletion_timestamp.is_some(),
            deleted: false,
            missing_since: None,
            version: parse_resource_version(metadata.resource_version.as_deref()),
        })
    }

    /// Whether the pod's trainer has exited.
    pub(crate) fn has_exited(&self) -> bool {
        matches!(self.state, InstanceState::Exited(_))
    }

    /// Keeps the time since which the pod is pending. `before` is the cached pod. The API does not show when a
    /// scheduling gate was removed, so the time counts from the first observation without a gate. After a restart of
    /// the operator, the time counts from the first observation after the restart.
    pub(super) fn keep_pending_since(&mut self, before: Option<&ObservedPod>) {
        if self.state == InstanceState::Pending {
            self.since = before.filter(|before| before.state == self.state).map_or_else(now, |before| before.since);
        }
    }

    /// Whether `self` and `other`, two observations of a pod, lead to the same decision. The comparison ignores
    /// resourceVersions. It also ignores conditions and nodes, which the operator needs only after a failure.
    pub(super) fn decides_like(&self, other: &ObservedPod) -> bool {
        let compared =
            |pod: &ObservedPod| ObservedPod { version: 0, conditions: Vec::new(), node: None, ..pod.clone() };
        compared(self) == compared(other)
    }

    /// Whether the pod's trainer may run and answer requests.
    pub(crate) fn may_answer(&self) -> bool {
        matches!(self.state, InstanceState::Starting | InstanceState::Ready | InstanceState::Terminating)
    }

    /// Returns the stage of the pod; `None` for a spare that the group has not promoted.
    pub(crate) fn instance_id(&self) -> Option<InstanceId> {
        match self.role {
            PodRole::Stage(instance) => Some(instance),
            PodRole::Spare(_) => self.taken,
        }
    }

    /// Returns the number of the spare; `None` if the pod was created as a stage.
    pub(crate) fn spare(&self) -> Option<u32> {
        match self.role {
            PodRole::Stage(_) => None,
            PodRole::Spare(number) => Some(number),
        }
    }

    /// Applies the responses of a spare to its pod. The responses are newer than the readiness that the kubelet
    /// reports, because readiness probes are seconds apart.
    pub(super) fn apply_polled(&mut self, polled: &PolledPod) {
        let runs = matches!(self.state, InstanceState::Starting | InstanceState::Ready);
        match (polled.stage, &polled.last) {
            (Some((instance, since)), _) => {
                self.taken = Some(instance);
                if runs {
                    self.since = self.since.max(since);
                }
            }
            (None, Some(last)) if runs => {
                let stands_by = last.is_reachable && last.status.phase == StagePhase::StandingBy;
                self.state = if stands_by { InstanceState::Ready } else { InstanceState::Starting };
            }
            (None, _) => {}
        }
    }

    /// Returns the pod as an instance of a stage; `None` for a spare that the group has not promoted.
    pub(super) fn stage_instance(&self) -> Option<StageInstance> {
        let InstanceId { rank, incarnation } = self.instance_id()?;
        let (attempt, spare, since) = (self.attempt, self.spare(), self.since);
        let (state, pod_conditions) = (self.state.clone(), self.conditions.clone());
        Some(StageInstance { rank, attempt, incarnation, spare, state, since, pod_conditions })
    }

    /// Returns the pod as a spare; `None` if the pod was created as a stage or is promoted to a stage. Also returns
    /// `None` for a deleted spare, because no decision needs its exit.
    pub(super) fn spare_instance(&self) -> Option<SpareInstance> {
        let number = self.spare().filter(|_| self.taken.is_none() && !self.deleted)?;
        Some(SpareInstance { number, attempt: self.attempt, state: self.state.clone(), since: self.since })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stagecoach_api::contract::StageStatus;
    use stagecoach_lifecycle::Exit;

    use super::super::PolledStatus;
    use super::*;

    /// Returns a pod that was created as spare 1 and is ready according to the kubelet.
    fn spare() -> ObservedPod {
        let owner = json!({"apiVersion": "stagecoach.dev/v1alpha1", "kind": "PipelineJob", "name": "a", "uid": "job", "controller": true});
        let labels = json!({"stagecoach.dev/spare": "1", "stagecoach.dev/attempt": "7"});
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"});
        let object =
            json!({"metadata": {"labels": labels, "ownerReferences": [owner]}, "status": {"conditions": [ready]}});
        ObservedPod::from_partial(&serde_json::from_value(object).unwrap(), "job").unwrap()
    }

    fn last(phase: StagePhase, is_reachable: bool) -> Option<PolledStatus> {
        let status = StageStatus { phase, spare: Some(1), ..StageStatus::default() };
        Some(PolledStatus { status, changed_at: UnixMillis(0), polled_at: UnixMillis(0), is_reachable })
    }

    #[test]
    fn a_spare_is_ready_if_it_says_that_it_stands_by() {
        let state = |last| {
            let mut pod = spare();
            pod.apply_polled(&PolledPod { last, ..PolledPod::default() });
            assert!(pod.stage_instance().is_none());
            pod.spare_instance().map(|spare| (spare.number, spare.attempt, spare.state)).unwrap()
        };
        assert_eq!(state(None), (1, 7, InstanceState::Ready), "the kubelet's readiness counts until the spare answers");
        assert_eq!(state(last(StagePhase::StandingBy, true)), (1, 7, InstanceState::Ready));
        assert_eq!(state(last(StagePhase::StandingBy, false)), (1, 7, InstanceState::Starting));
        assert_eq!(state(last(StagePhase::Preparing, true)), (1, 7, InstanceState::Starting));
        let mut ended = spare();
        ended.state = InstanceState::Exited(Exit::with_code(1));
        ended.apply_polled(&PolledPod { last: last(StagePhase::StandingBy, false), ..PolledPod::default() });
        assert!(ended.has_exited());
    }

    #[test]
    fn one_that_has_taken_a_place_is_a_stage_since_then() {
        let instance = InstanceId { rank: 2, incarnation: 3 };
        let polled = PolledPod { stage: Some((instance, UnixMillis(u64::MAX))), ..PolledPod::default() };
        let mut pod = spare();
        let began = pod.since;
        pod.apply_polled(&polled);
        assert_eq!((pod.instance_id(), pod.spare_instance()), (Some(instance), None));
        let instance = pod.stage_instance().unwrap();
        assert_eq!((instance.rank, instance.incarnation, instance.spare), (2, 3, Some(1)));
        assert_eq!(instance.since, UnixMillis(u64::MAX));
        // a pod that has ended keeps the time of its end
        let mut ended = ObservedPod { state: InstanceState::Exited(Exit::with_code(1)), ..spare() };
        ended.apply_polled(&polled);
        assert_eq!(ended.stage_instance().unwrap().since, began);
    }

    #[test]
    fn what_is_left_of_a_spare_that_was_deleted_is_none() {
        assert_eq!(ObservedPod { deleted: true, ..spare() }.spare_instance(), None);
    }
}
