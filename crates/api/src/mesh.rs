//! The processes of an attempt, each with its stage and replica, like torch's `DeviceMesh` with the dimensions `dp` and
//! `pp`.

use serde::{Deserialize, Serialize};

/// The largest number of stages of a job.
pub const MAX_STAGES: u32 = 256;
/// The largest number of spares of a job.
pub(crate) const MAX_SPARES: u32 = 8;

/// The processes of an attempt: `data_parallel` replicas of the pipeline with `stages` stages each. Ranks are counted
/// replica by replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mesh {
    /// The number of stages of each replica.
    pub stages: u32,
    /// The number of replicas.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub data_parallel: u32,
}

/// The default mesh has one replica without stages.
impl Default for Mesh {
    fn default() -> Mesh {
        Mesh::pipeline(0)
    }
}

impl Mesh {
    /// Returns the mesh of one replica with `stages` stages.
    pub const fn pipeline(stages: u32) -> Mesh {
        Mesh { stages, data_parallel: 1 }
    }

    /// Returns the number of processes, torch's `WORLD_SIZE`.
    pub const fn ranks(self) -> u32 {
        self.stages.saturating_mul(self.data_parallel)
    }

    /// Returns the stage of a rank within its replica.
    pub const fn stage(self, rank: u32) -> u32 {
        if self.data_parallel == 1 { rank } else { rank % self.stages }
    }

    /// Returns the replica of a rank. `None` if there is only one replica.
    pub const fn replica(self, rank: u32) -> Option<u32> {
        if self.data_parallel == 1 { None } else { Some(rank / self.stages) }
    }

    /// Returns the name of a rank: `stage 1`, or `stage 1 of replica 0` if there are several replicas.
    pub fn name(self, rank: u32) -> String {
        format!("stage {}", self.number(rank))
    }

    /// Returns [`Mesh::name`] without the word "stage", for lists: `1`, or `1 of replica 0`.
    pub fn number(self, rank: u32) -> String {
        match self.replica(rank) {
            None => rank.to_string(),
            Some(replica) => format!("{} of replica {replica}", self.stage(rank)),
        }
    }

    /// Returns the number of complete replicas that the present ranks can form. `is_there` returns whether a rank is
    /// present. A rank can run its stage in any replica, so the stage with the fewest present ranks determines the
    /// result.
    pub fn complete_replicas(self, is_there: impl Fn(u32) -> bool) -> u32 {
        let ranks_of = |stage: u32| (stage..self.ranks()).step_by(self.stages as usize);
        (0..self.stages).map(|stage| ranks_of(stage).filter(|&rank| is_there(rank)).count() as u32).min().unwrap_or(0)
    }

    /// Returns this mesh if it has several replicas, or else `None`.
    pub fn if_replicated(self) -> Option<Mesh> {
        Some(self).filter(|mesh| mesh.data_parallel > 1)
    }
}

impl std::fmt::Display for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Mesh { stages, data_parallel } = self;
        let stages_of_each = if *stages == 1 { "1 stage".to_owned() } else { format!("{stages} stages") };
        match data_parallel {
            1 => write!(f, "{stages_of_each}"),
            replicas => write!(f, "{replicas} replicas of {stages_of_each}"),
        }
    }
}

const fn one() -> u32 {
    1
}

// serde passes the number by reference
#[allow(clippy::trivially_copy_pass_by_ref)]
const fn is_one(number: &u32) -> bool {
    *number == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_counted_replica_by_replica() {
        let mesh = Mesh { stages: 3, data_parallel: 2 };
        assert_eq!((mesh.ranks(), mesh.stage(4), mesh.replica(4)), (6, 1, Some(1)));
        assert_eq!((mesh.name(4), mesh.to_string()), ("stage 1 of replica 1".into(), "2 replicas of 3 stages".into()));
        let mesh = Mesh::pipeline(3);
        assert_eq!((mesh.ranks(), mesh.stage(2), mesh.replica(2)), (3, 2, None));
        assert_eq!((mesh.name(2), mesh.to_string()), ("stage 2".into(), "3 stages".into()));
    }

    #[test]
    fn a_replica_is_complete_with_a_rank_of_each_stage() {
        let mesh = Mesh { stages: 2, data_parallel: 3 };
        let without = |missing: &[u32]| mesh.complete_replicas(|rank| !missing.contains(&rank));
        assert_eq!([without(&[]), without(&[1]), without(&[1, 2]), without(&[0, 2, 4])], [3, 2, 2, 0]);
        assert_eq!(Mesh::default().complete_replicas(|_| true), 0);
    }

    #[test]
    fn one_replica_is_written_as_it_was_before_there_were_several() {
        let json = |mesh: Mesh| serde_json::to_string(&mesh).unwrap();
        assert_eq!(json(Mesh::pipeline(2)), r#"{"stages":2}"#);
        assert_eq!(json(Mesh { stages: 2, data_parallel: 3 }), r#"{"stages":2,"dataParallel":3}"#);
        assert_eq!(serde_json::from_str::<Mesh>(r#"{"stages":2}"#).unwrap(), Mesh::pipeline(2));
    }
}
