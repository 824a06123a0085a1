//! A pod of the model: the object in the API server and its process.

use stagecoach_api::contract::Mesh;
use stagecoach_lifecycle::*;

use super::cluster_state::{HORIZON_SECONDS, NOW, Name, SPARE};

/// A pod: the object and its process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelPod {
    pub(crate) name: Name,
    /// The stages and replicas of the pod's attempt.
    pub(crate) mesh: Mesh,
    pub(crate) process: ModelProcess,
    /// The stage to which a spare was promoted, and the spare's incarnation as this stage.
    pub(crate) promoted_to: Option<(u32, u32)>,
    /// Whether the API shows the promotion.
    pub(crate) promotion_shows: bool,
    /// The time since which the API shows the pod's state.
    pub(crate) at: UnixMillis,
    /// Whether this stage 0 has taken a fence for its next group.
    pub(crate) fenced: bool,
    /// Whether the process has lost a group and waits for the next.
    pub(crate) is_survivor: bool,
    /// The time of the deletion request. The node terminates the process, unless the node is partitioned.
    pub(crate) deleted_at: Option<UnixMillis>,
    /// The state that the API shows permanently if the node is partitioned, while the process continues to run.
    pub(crate) partitioned: Option<ModelProcess>,
    /// The state that the API shows if the process has ended and the other stages report this, but the node has not
    /// reported it. `None` otherwise.
    pub(crate) unnoticed: Option<ModelProcess>,
}

/// The state of a pod in the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Stage(StageInstance),
    Spare(SpareInstance),
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ModelProcess {
    Pending,
    Starting,
    Ready,
    Ended(i32),
}

impl ModelPod {
    /// Returns the stage of the pod's process, and its incarnation. `None` for a waiting spare.
    pub(crate) fn place(&self) -> Option<(u32, u32)> {
        let Name { rank, incarnation, .. } = self.name;
        if rank == SPARE { self.promoted_to } else { Some((rank, incarnation)) }
    }

    pub(crate) fn is_of(&self, rank: u32) -> bool {
        self.place().is_some_and(|(of, _)| of == rank)
    }

    /// Returns the instance or the spare as the API shows it.
    pub(crate) fn shown(&self) -> Shown {
        let (state, since) = match (self.partitioned.or(self.unnoticed).unwrap_or(self.process), self.deleted_at) {
            (ModelProcess::Ended(code), _) => (InstanceState::Exited(Exit::with_code(code)), self.at),
            (_, Some(since)) => (InstanceState::Terminating, since),
            (ModelProcess::Pending, None) => (InstanceState::Pending, self.at),
            (ModelProcess::Starting, None) => (InstanceState::Starting, self.at),
            (ModelProcess::Ready, None) => (InstanceState::Ready, self.at),
        };
        let Name { attempt, rank, incarnation } = self.name;
        let spare = (rank == SPARE).then_some(incarnation);
        match (self.place().filter(|_| spare.is_none() || self.promotion_shows), spare) {
            (Some((rank, incarnation)), spare) => {
                let pod_conditions = Vec::new();
                Shown::Stage(StageInstance { rank, attempt, incarnation, spare, state, since, pod_conditions })
            }
            // until the API shows the promotion, the spare still seems to wait
            (None, _)
                if self.promoted_to.is_some() && matches!(state, InstanceState::Starting | InstanceState::Ready) =>
            {
                let since = UnixMillis(NOW.0 - HORIZON_SECONDS * 1000);
                Shown::Spare(SpareInstance { number: incarnation, attempt, state: InstanceState::Ready, since })
            }
            (None, _) => Shown::Spare(SpareInstance { number: incarnation, attempt, state, since }),
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.process, ModelProcess::Ended(_))
    }

    pub(crate) fn is_reachable(&self) -> bool {
        self.partitioned.is_none()
    }

    pub(crate) fn enter(&mut self, process: ModelProcess) {
        self.process = process;
        if self.is_reachable() {
            self.at = NOW;
        }
    }
}
