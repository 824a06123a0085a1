//! The actions that the caller carries out.

use std::collections::{BTreeMap, BTreeSet};

use stagecoach_api::contract::Mesh;

/// An action on an attempt. Idempotent: it may be requested again until its effect is observed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AttemptAction {
    /// Create the attempt's missing instances.
    StartAttempt {
        /// The attempt.
        number: u64,
        /// The stages and replicas of the attempt.
        mesh: Mesh,
        /// The number of instances to create, from rank 0.
        instances: u32,
    },
    /// Create the missing ones among these instances of an attempt.
    ReplaceStages {
        /// The attempt.
        attempt: u64,
        /// The incarnations, by rank.
        incarnations: BTreeMap<u32, u32>,
    },
    /// Remove the instances of an attempt whose incarnation is lower than the one given for their rank. The caller
    /// kills an instance that still exists because its node or its process does not answer. Afterwards the instances
    /// are observed as Terminating or not at all.
    RemoveReplaced {
        /// The attempt.
        attempt: u64,
        /// The lowest incarnations to keep, by rank. Ranks that are not listed keep all their instances.
        incarnations: BTreeMap<u32, u32>,
    },
    /// Create the missing ones among these spares of an attempt.
    StartSpares {
        /// The attempt.
        attempt: u64,
        /// The numbers of the spares.
        numbers: BTreeSet<u32>,
    },
    /// Remove these spares of an attempt. The caller kills a live spare, since it has nothing to save. For a complete
    /// job, the numbers include promoted spares. Afterwards the spares are observed as Terminating or not at all.
    RemoveSpares {
        /// The attempt.
        attempt: u64,
        /// The numbers of the spares.
        numbers: BTreeSet<u32>,
    },
    /// Terminate an attempt's instances and spares (SIGTERM, or pod deletion) and remove exited ones. Afterwards they
    /// are observed as Terminating or not at all.
    DeleteInstances {
        /// The attempt.
        attempt: u64,
        /// Grace period, in seconds.
        grace_seconds: u64,
        /// Grace period of the instances that are not ready, in seconds.
        unready_grace_seconds: u64,
    },
    /// Kill an attempt's instances and spares whose grace period is over (SIGKILL; for pods the kubelet does it).
    KillInstances {
        /// The attempt.
        attempt: u64,
    },
}
