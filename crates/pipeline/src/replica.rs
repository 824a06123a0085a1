//! Data parallelism: a pipeline that is there several times.

/// One of several replicas of a pipeline. The stages of a replica have consecutive ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// This one, from 0.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl Replica {
    /// The only one.
    pub const ONLY: Replica = Replica { index: 0, count: 1 };

    /// The rank of a stage of this replica, of so many stages.
    pub fn rank(self, stage: usize, stages: usize) -> usize {
        self.index * stages + stage
    }

    /// The other replicas, by index.
    pub fn others(self) -> impl Iterator<Item = usize> {
        (0..self.count).filter(move |&index| index != self.index)
    }
}
