//! Observes the pods and the other objects of a job. Watches update the caches, and background tasks read `/status` and
//! logs.

mod field_managers;
mod log_tails;
mod observed_pod;
mod observed_pods;
mod owned_objects;
mod partial_pod;
mod pod_cache;
mod pod_exit;
mod pod_state;
mod polled_pod;
mod stage_status_client;
mod stage_status_poller;

use stagecoach_lifecycle::UnixMillis;

pub(crate) use field_managers::{OtherOperators, field_manager, operator_of};
pub(crate) use log_tails::LogTails;
pub(crate) use observed_pod::ObservedPod;
pub(crate) use observed_pods::ObservedPods;
pub(crate) use owned_objects::{ChangedObject, KnownObject, OwnedKind, OwnedObject, OwnedObjects};
pub(crate) use partial_pod::PartialPod;
pub(crate) use pod_cache::PodCache;
pub(crate) use pod_state::BlockingReason;
pub(crate) use polled_pod::{PROGRESS_INTERVAL, PolledStatus};
pub(crate) use stage_status_poller::StageStatusPoller;

/// Returns the current time.
pub(crate) fn now() -> UnixMillis {
    UnixMillis::from_signed(jiff::Timestamp::now().as_millisecond()).unwrap_or_default()
}

/// Parses a resourceVersion, whose value orders the versions of an object. Returns 0 if the resourceVersion is missing
/// or not a number.
pub(crate) fn parse_resource_version(version: Option<&str>) -> u64 {
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}
