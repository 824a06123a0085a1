//! Small clusters to explore. Each function takes the faults that may happen in the cluster.

use stagecoach_api::contract::Mesh;

use super::cluster_state::Faults;
use super::steps::ClusterModel;

pub(super) const NONE: Faults =
    Faults { crashes: 0, stale_reads: 0, failures: 0, partitions: 0, spec_changes: 0, status_losses: 0, evictions: 0 };

pub(super) const fn two_stages(faults: Faults) -> ClusterModel {
    ClusterModel {
        mesh: Mesh::pipeline(2),
        replaces_stages: false,
        spares: 0,
        min_data_parallel: u32::MAX,
        is_queued: false,
        is_elastic: false,
        faults,
        disabled_guard: None,
    }
}

/// The cluster of `two_stages`, with replacement of lost stages.
pub(super) const fn replacing(faults: Faults) -> ClusterModel {
    ClusterModel { replaces_stages: true, ..two_stages(faults) }
}

/// The cluster of `replacing`, with a spare beside the stages.
pub(super) const fn with_spare(faults: Faults) -> ClusterModel {
    ClusterModel { spares: 1, ..replacing(faults) }
}

/// The cluster of `replacing`, with a queue that admits the job.
pub(super) const fn queued(faults: Faults) -> ClusterModel {
    ClusterModel { is_queued: true, ..replacing(faults) }
}

/// Two replicas with one stage each. One replica is enough for a group.
pub(super) const fn one_of_two_replicas(faults: Faults) -> ClusterModel {
    ClusterModel { mesh: Mesh { stages: 1, data_parallel: 2 }, min_data_parallel: 1, ..replacing(faults) }
}

/// Two replicas with one stage each, and a queue that first admits one replica.
pub(super) const fn elastic(faults: Faults) -> ClusterModel {
    ClusterModel { is_queued: true, is_elastic: true, ..one_of_two_replicas(faults) }
}
