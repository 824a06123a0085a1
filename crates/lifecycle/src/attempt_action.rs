//! The actions that the caller carries out.

use std::collections::{BTreeMap, BTreeSet};

use stagecoach_api::contract::Mesh;

/// An action on an attempt. Actions are idempotent: `decide` requests an action again until its effect is observed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AttemptAction {
    /// Create the attempt's missing instances.
    StartAttempt {
        /// The number of the attempt.
        number: u64,
        /// The stages and replicas of the attempt.
        mesh: Mesh,
        /// The number of instances to create, from rank 0.
        instances: u32,
    },
    /// Create every instance in `incarnations` that does not exist.
    ReplaceStages {
        /// The number of the attempt.
        attempt: u64,
        /// The incarnation (the number of the stage's instance) to create, by rank.
        incarnations: BTreeMap<u32, u32>,
    },
    /// Remove an attempt's instances whose incarnation is lower than the one given for their rank. Such an instance may
    /// still exist because its node or its process does not respond, so the caller kills it. Afterwards the caller
    /// observes the instances as Terminating or not at all.
    RemoveReplaced {
        /// The number of the attempt.
        attempt: u64,
        /// The lowest incarnations to keep, by rank. Ranks that are not listed keep all their instances.
        incarnations: BTreeMap<u32, u32>,
    },
    /// Create every spare in `numbers` that does not exist. A spare waits to replace a lost stage.
    StartSpares {
        /// The number of the attempt.
        attempt: u64,
        /// The numbers of the spares.
        numbers: BTreeSet<u32>,
    },
    /// Remove these spares of an attempt. The caller kills a live spare, because a spare has nothing to save. For a
    /// complete job, the numbers include promoted spares. Afterwards the caller observes the spares as Terminating or
    /// not at all.
    RemoveSpares {
        /// The number of the attempt.
        attempt: u64,
        /// The numbers of the spares.
        numbers: BTreeSet<u32>,
    },
    /// Terminate an attempt's instances and spares (SIGTERM, or pod deletion) and remove exited ones. Afterwards the
    /// caller observes them as Terminating or not at all.
    DeleteInstances {
        /// The number of the attempt.
        attempt: u64,
        /// Grace period, in seconds.
        grace_seconds: u64,
        /// Grace period of the instances that are not ready, in seconds.
        unready_grace_seconds: u64,
    },
    /// Kill with SIGKILL an attempt's instances and spares whose grace period is over. For pods, the kubelet does this.
    KillInstances {
        /// The number of the attempt.
        attempt: u64,
    },
}

impl AttemptAction {
    /// Whether the action creates instances of stages.
    pub fn starts_stages(&self) -> bool {
        matches!(self, AttemptAction::StartAttempt { .. } | AttemptAction::ReplaceStages { .. })
    }
}
