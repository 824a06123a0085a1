//! Describes data parallelism: several replicas of one pipeline.

/// One of several replicas of a pipeline. The stages of a replica have consecutive ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The index of this replica, from 0.
    pub index: usize,
    /// The number of replicas.
    pub count: usize,
}

impl Replica {
    /// The only replica of a pipeline.
    pub const ONLY: Replica = Replica { index: 0, count: 1 };

    /// Returns the rank of `stage` in this replica. Each replica has `stages` stages.
    pub fn rank(self, stage: usize, stages: usize) -> usize {
        self.index * stages + stage
    }

    /// Returns the indices of the other replicas.
    pub fn others(self) -> impl Iterator<Item = usize> {
        (0..self.count).filter(move |&index| index != self.index)
    }
}

/// The links between the replicas of a stage. Replicas on one node use the links of that node, such as NVLink. Replicas
/// on different nodes use the network. Both kinds of links work at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaLinks {
    /// The number of ranks on a node. The ranks of a node are consecutive.
    pub ranks_per_node: usize,
    /// The bytes per second from one rank to all other ranks of its node together.
    pub node_bytes_per_second: f64,
    /// The bytes per second from one rank to all ranks of other nodes together.
    pub network_bytes_per_second: f64,
}

impl ReplicaLinks {
    /// Returns the seconds of a reduce-scatter or an all-gather of `bytes` bytes over the replicas of a stage. Each
    /// replica has `stages` stages. The rank of each replica sends `bytes / replicas` bytes to every other replica and
    /// receives as many.
    pub fn seconds(&self, stages: usize, replicas: usize, bytes: f64) -> f64 {
        let replicas = replicas.max(1);
        let on_node = (self.ranks_per_node / stages.max(1)).clamp(1, replicas);
        let share = bytes / replicas as f64;
        let inside = (on_node - 1) as f64 * share / self.node_bytes_per_second;
        let between = (replicas - on_node) as f64 * share / self.network_bytes_per_second;
        inside.max(between)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_of_one_node_do_not_use_the_network() {
        let links = ReplicaLinks { ranks_per_node: 8, node_bytes_per_second: 100.0, network_bytes_per_second: 10.0 };
        assert_eq!(links.seconds(8, 1, 1e3), 0.0, "one replica sends nothing");
        assert_eq!(links.seconds(2, 4, 1e3), 3.0 * 250.0 / 100.0);
        // a node holds one whole replica
        assert_eq!(links.seconds(8, 4, 1e3), 3.0 * 250.0 / 10.0);
        // four of the eight replicas are on the node, and the network takes longer
        assert_eq!(links.seconds(2, 8, 1e3), 4.0 * 125.0 / 10.0);
        assert_eq!(links.seconds(16, 2, 1e3), 500.0 / 10.0, "no two of a stage are on a node");
    }
}
