//! The fields of a pod that the operator uses.

use std::net::IpAddr;
use std::time::Instant;

use stagecoach_api::contract::CONTAINER_NAME;
use stagecoach_lifecycle::{InstanceState, StageInstance};

use super::PartialPod;
use super::instance::{BlockingReason, blocking_reason, ends_by_itself, failed_init_container, instance};
use super::parse_resource_version;
use crate::build;

/// A pod of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObservedPod {
    /// Its stage, attempt and state.
    pub instance: StageInstance,
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// Its termination grace period, in seconds.
    pub grace_seconds: Option<u64>,
    /// Its IP address, once it has one.
    pub address: Option<IpAddr>,
    /// The image of its trainer container.
    pub image: Option<String>,
    /// Whether its containers have ended; sidecars among the init containers are ended after them.
    pub ends_by_itself: bool,
    /// The container whose log says why it failed.
    pub log_container: String,
    /// Why it can't start, if its status has a reason.
    pub blocking_reason: Option<BlockingReason>,
    /// Whether it has a deletionTimestamp.
    pub terminating: bool,
    /// Whether it was deleted and is kept only for its exit.
    pub deleted: bool,
    /// Since when it is absent from lists while the watch has not delivered its deletion.
    pub(super) missing_since: Option<Instant>,
    /// The resourceVersion of the object.
    pub(super) version: u64,
}

impl ObservedPod {
    /// The pod of an attempt of the job with the UID `job`; None if `object` is not one. Anybody can write labels, so only
    /// a pod whose controller is the job counts.
    pub(crate) fn from_partial(object: &PartialPod, job: &str) -> Option<ObservedPod> {
        let PartialPod { metadata, spec, status } = object;
        if !build::is_controlled_by(metadata, job) {
            return None;
        }
        let trainer = spec.containers.iter().find(|container| container.name == CONTAINER_NAME);
        Some(ObservedPod {
            instance: instance(object)?,
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            grace_seconds: spec.termination_grace_period_seconds,
            address: status.pod_ip.as_deref().and_then(|address| address.parse().ok()),
            image: trainer.and_then(|trainer| trainer.image.clone()),
            ends_by_itself: ends_by_itself(object),
            log_container: failed_init_container(object).map_or(CONTAINER_NAME, |(name, _)| name).to_owned(),
            blocking_reason: blocking_reason(object),
            terminating: metadata.deletion_timestamp.is_some(),
            deleted: false,
            missing_since: None,
            version: parse_resource_version(metadata.resource_version.as_deref().unwrap_or_default()),
        })
    }

    /// Whether its trainer has exited.
    pub(crate) fn has_exited(&self) -> bool {
        matches!(self.instance.state, InstanceState::Exited(_))
    }

    /// Whether both lead to the same decision: all but their resourceVersion is equal, and their conditions, which matter only
    /// when something else has failed.
    pub(super) fn is_no_news(&self, other: &ObservedPod) -> bool {
        let compared = |pod: &ObservedPod| {
            let instance = StageInstance { pod_conditions: Vec::new(), ..pod.instance.clone() };
            ObservedPod { version: 0, instance, ..pod.clone() }
        };
        compared(self) == compared(other)
    }
}
