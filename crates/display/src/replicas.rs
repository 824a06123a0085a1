//! Describes the number of replicas with which a job trains.

use std::fmt;

use stagecoach_api::contract::Mesh;

/// The replicas of a job that has several replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The number of replicas that train. The number is 0 while too few replicas are ready.
    pub training: u32,
    /// The number of all replicas.
    pub all: u32,
}

impl Replicas {
    /// Returns the replicas of an attempt; `None` if the attempt has a single replica. `training` is the number of
    /// replicas that train.
    pub fn of(mesh: Mesh, training: u32) -> Option<Replicas> {
        mesh.if_replicated().map(|mesh| Replicas { training, all: mesh.data_parallel })
    }

    /// Whether the job trains without some of its replicas.
    pub const fn are_missing(self) -> bool {
        self.training > 0 && self.training < self.all
    }

    /// Returns a note that the job trains without some of its replicas; `None` if all replicas train or no replica
    /// trains.
    pub fn missing(self) -> Option<String> {
        self.are_missing().then(|| format!("training with {self} until the missing replicas return"))
    }
}

/// Writes the replicas as `1 of 2 replicas`.
impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} replicas", self.training, self.all)
    }
}

/// Describes what happens until a lost stage is back. `training_replicas` is the number of replicas that train until
/// then; 0 if the other stages wait.
pub const fn meanwhile(training_replicas: u32) -> &'static str {
    if training_replicas > 0 { "the other replicas continue without this replica" } else { "the others wait for it" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_replicas_are_reported() {
        let training_with = |training| Replicas::of(Mesh { stages: 2, data_parallel: 3 }, training).unwrap();
        assert_eq!(
            training_with(2).missing().as_deref(),
            Some("training with 2 of 3 replicas until the missing replicas return")
        );
        assert_eq!((training_with(0).missing(), training_with(3).missing()), (None, None));
        assert_eq!(Replicas::of(Mesh::pipeline(3), 1), None);
    }
}
