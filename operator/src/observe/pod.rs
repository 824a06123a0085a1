//! A pod of an attempt, as far as it matters here.

use std::net::IpAddr;
use std::time::Instant;

use serde_json::Value;
use stagecoach_api::contract::CONTAINER_NAME;
use stagecoach_lifecycle::{Member, MemberState};

use super::PodObject;
use super::member::{Trouble, member, trouble};
use super::version;

/// A pod of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pod {
    /// As `lifecycle` sees it.
    pub member: Member,
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
    /// None if `object` belongs to no attempt.
    pub(crate) fn of(object: PodObject) -> Option<Pod> {
        Pod::read(&object.into_value())
    }

    /// The same of plain JSON.
    pub(super) fn read(object: &Value) -> Option<Pod> {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let containers = object["spec"]["containers"].as_array();
        let trainer = containers.and_then(|all| all.iter().find(|container| container["name"] == CONTAINER_NAME));
        Some(Pod {
            member: member(object)?,
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
            address: object["status"]["podIP"].as_str().and_then(|address| address.parse().ok()),
            image: trainer.and_then(|trainer| trainer["image"].as_str()).map(str::to_owned),
            trouble: trouble(object),
            leaving: !metadata["deletionTimestamp"].is_null(),
            gone: false,
            missing: None,
            version: version(&text(&metadata["resourceVersion"])),
        })
    }

    /// Whether its trainer has ended.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.member.state, MemberState::Exited(_))
    }

    /// Whether there is nothing to tell about this one that was not so of `other`.
    pub(super) fn is_as(&self, other: &Pod) -> bool {
        Pod { version: 0, ..self.clone() } == Pod { version: 0, ..other.clone() }
    }
}
