//! A pod of an attempt, as far as it matters here.

use std::net::IpAddr;
use std::time::Instant;

use stagecoach_api::contract::CONTAINER_NAME;
use stagecoach_lifecycle::{InstanceState, StageInstance};

use super::PodObject;
use super::member::{Trouble, instance, trouble};
use super::version;
use crate::build;

/// A pod of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pod {
    /// As `lifecycle` sees it.
    pub instance: StageInstance,
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// Where it is reached, once it has an address.
    pub address: Option<IpAddr>,
    /// What its trainer runs.
    pub image: Option<String>,
    /// What keeps it from running, if the cluster says so.
    pub trouble: Option<Trouble>,
    /// Whether it was asked to leave.
    pub leaving: bool,
    /// Whether it is known from the past alone.
    pub gone: bool,
    /// Since when no list has it although the watch has not said that it went, and how.
    pub(super) missing: Option<Instant>,
    /// The version of the object that this was read from.
    pub(super) version: u64,
}

impl Pod {
    /// The pod of an attempt of the job with the UID `job`. None if `object` is none: labels are anybody's to write, so that
    /// only a pod counts that the job controls.
    pub(crate) fn of(object: &PodObject, job: &str) -> Option<Pod> {
        let PodObject { metadata, spec, status } = object;
        if !build::is_controlled_by(metadata, job) {
            return None;
        }
        let trainer = spec.containers.iter().find(|container| container.name == CONTAINER_NAME);
        Some(Pod {
            instance: instance(object)?,
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            address: status.pod_ip.as_deref().and_then(|address| address.parse().ok()),
            image: trainer.and_then(|trainer| trainer.image.clone()),
            trouble: trouble(object),
            leaving: metadata.deletion_timestamp.is_some(),
            gone: false,
            missing: None,
            version: version(metadata.resource_version.as_deref().unwrap_or_default()),
        })
    }

    /// Whether its trainer has ended.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.instance.state, InstanceState::Exited(_))
    }

    /// Whether there is nothing to tell about this one that was not so of `other`.
    pub(super) fn is_as(&self, other: &Pod) -> bool {
        Pod { version: 0, ..self.clone() } == Pod { version: 0, ..other.clone() }
    }
}
