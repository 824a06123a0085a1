//! The links that a placement of chunks on ranks needs.

use std::fmt;

use serde::{Deserialize, Serialize};
use stagecoach_pipeline::{Edge, Placement, Replica};

/// The kind of tensors that a link carries. A boundary between two chunks (parts of the model) has the number of the
/// earlier chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LinkPayload {
    /// Activations from chunk `boundary` to `boundary + 1`.
    Forward {
        /// The sending chunk.
        boundary: usize,
    },
    /// Gradients from chunk `boundary + 1` to `boundary`.
    Backward {
        /// The receiving chunk.
        boundary: usize,
    },
    /// The gradients of a tied embedding, exchanged between the ranks of the first and the last chunk.
    Tied,
    /// Tensors between replicas of a stage: sums of gradients to the replica that updates a parameter, and the new
    /// weights from this replica.
    Replicas,
    /// Copies of the sender's training state, which the receiver keeps in memory.
    PeerCopy,
    /// The copy of the receiver's training state that the sender has kept in memory and now returns.
    HeldCopy,
    /// The inputs of one forward or backward pass of the sender. The receiver computes the pass again for an audit.
    Audit,
}

impl LinkPayload {
    /// Whether the payload's tensors are on the stage's device. Copies of a stage's state, and the inputs of audited
    /// work, are in host memory.
    pub(super) fn is_on_device(self) -> bool {
        match self {
            LinkPayload::Forward { .. } | LinkPayload::Backward { .. } | LinkPayload::Tied | LinkPayload::Replicas => {
                true
            }
            LinkPayload::PeerCopy | LinkPayload::HeldCopy | LinkPayload::Audit => false,
        }
    }

    /// Returns the number of elements in each part of a tensor; `None` if the link sends the tensor as a whole.
    pub(super) fn part_elements(self) -> Option<i64> {
        match self {
            LinkPayload::Forward { .. } | LinkPayload::Backward { .. } => None,
            LinkPayload::Tied
            | LinkPayload::Replicas
            | LinkPayload::PeerCopy
            | LinkPayload::HeldCopy
            | LinkPayload::Audit => Some(STATE_PART_ELEMENTS),
        }
    }
}

/// The number of elements in one part of a tensor. A part of f32 elements has 2 MiB.
pub(super) const STATE_PART_ELEMENTS: i64 = 1 << 19;

/// The identifier of a directed link between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LinkId {
    /// The rank that sends.
    pub from: usize,
    /// The rank that receives.
    pub to: usize,
    /// The kind of tensors.
    pub payload: LinkPayload,
}

impl LinkId {
    /// Returns the link of a pipeline edge; `None` if the placement does not contain both chunks of the edge.
    pub fn of(placement: &Placement, edge: Edge) -> Option<LinkId> {
        let (from, to) = (placement.get_rank(edge.from)?, placement.get_rank(edge.to)?);
        let payload = if edge.from < edge.to {
            LinkPayload::Forward { boundary: edge.from }
        } else {
            LinkPayload::Backward { boundary: edge.to }
        };
        Some(LinkId { from, to, payload })
    }

    /// Returns the link on which a rank sends copies of its state to the rank that holds them.
    pub fn state_copy(rank: usize, ring: PeerRing) -> LinkId {
        LinkId { from: rank, to: ring.holder(rank), payload: LinkPayload::PeerCopy }
    }

    /// Returns the link on which the copy of the state of `rank` returns to `rank`.
    pub fn held_copy(rank: usize, ring: PeerRing) -> LinkId {
        LinkId { from: ring.holder(rank), to: rank, payload: LinkPayload::HeldCopy }
    }

    /// Returns the link on which a rank sends the inputs of its passes to the next rank for an audit. The last of the
    /// `ranks` ranks sends to rank 0.
    pub fn audit(rank: usize, ranks: usize) -> LinkId {
        LinkId { from: rank, to: (rank + 1) % ranks, payload: LinkPayload::Audit }
    }

    /// Returns the link from one replica of a stage to another.
    pub fn replicas(from: usize, to: usize) -> LinkId {
        LinkId { from, to, payload: LinkPayload::Replicas }
    }

    /// Returns the link in `replica` that corresponds to this link of a single pipeline with `stages` stages.
    #[must_use]
    pub fn in_replica(self, replica: Replica, stages: usize) -> LinkId {
        LinkId { from: replica.rank(self.from, stages), to: replica.rank(self.to, stages), ..self }
    }

    /// Returns the link for the gradient of a tied embedding.
    pub fn tied(from: usize, to: usize) -> LinkId {
        LinkId { from, to, payload: LinkPayload::Tied }
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkId { from, to, payload } = self;
        match payload {
            LinkPayload::Forward { boundary } => {
                write!(f, "activations of chunk {boundary} from stage {from} to stage {to}")
            }
            LinkPayload::Backward { boundary } => {
                write!(f, "gradients for chunk {boundary} from stage {from} to stage {to}")
            }
            LinkPayload::Tied => write!(f, "the tied embedding's gradient from stage {from} to stage {to}"),
            LinkPayload::Replicas => write!(f, "gradients and weights from stage {from} to stage {to}"),
            LinkPayload::PeerCopy => write!(f, "copies of the state of stage {from} for stage {to}"),
            LinkPayload::HeldCopy => write!(f, "the copy that stage {from} holds of the state of stage {to}"),
            LinkPayload::Audit => write!(f, "the work of stage {from} that stage {to} audits"),
        }
    }
}

/// Returns all links of a placement, in a fixed order. Two chunks on the same rank need no link. `tied` adds the links
/// for the gradients of a tied embedding.
pub fn link_ids(placement: &Placement, tied: bool) -> Vec<LinkId> {
    let chunks = placement.chunks();
    let edges =
        (1..chunks).flat_map(|chunk| [Edge { from: chunk - 1, to: chunk }, Edge { from: chunk, to: chunk - 1 }]);
    let mut links: Vec<LinkId> = edges.filter_map(|edge| LinkId::of(placement, edge)).collect();
    if tied && chunks > 0 {
        let (first, last) = (placement.first_rank(), placement.last_rank());
        links.extend([LinkId::tied(first, last), LinkId::tied(last, first)]);
    }
    links.retain(|link| link.from != link.to);
    links
}

/// Returns all links of `replicas` replicas of a pipeline, in a fixed order.
pub fn replicated_link_ids(placement: &Placement, tied: bool, replicas: usize) -> Vec<LinkId> {
    let (stages, of_one) = (placement.ranks(), link_ids(placement, tied));
    let replica = |index| Replica { index, count: replicas };
    let within = (0..replicas).flat_map(|index| of_one.iter().map(move |link| link.in_replica(replica(index), stages)));
    let among = (0..replicas).flat_map(|from| {
        let pairs = replica(from).others().flat_map(move |to| (0..stages).map(move |stage| (to, stage)));
        pairs.map(move |(to, stage)| {
            LinkId::replicas(replica(from).rank(stage, stages), replica(to).rank(stage, stages))
        })
    });
    within.chain(among).collect()
}

/// The assignment of a holder to each rank. The holder keeps copies of the rank's state in memory. The holder is the
/// same stage of the next replica, so that the copies survive the loss of a whole replica. With a single replica, the
/// holder is the next stage. The first replica or stage holds the copies of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRing {
    /// The number of stages of a replica.
    pub stages: usize,
    /// The number of replicas.
    pub replicas: usize,
}

impl PeerRing {
    /// Returns the number of ranks.
    pub fn ranks(self) -> usize {
        self.stages * self.replicas
    }

    /// Returns the rank that holds copies of the state of `rank`.
    pub fn holder(self, rank: usize) -> usize {
        (rank + self.step()) % self.ranks()
    }

    /// Returns the rank of whose state `rank` holds copies.
    pub fn held_by(self, rank: usize) -> usize {
        (rank + self.ranks() - self.step()) % self.ranks()
    }

    fn step(self) -> usize {
        if self.replicas > 1 { self.stages } else { 1 }
    }

    /// Returns the links that carry copies of training state, in a fixed order.
    pub fn link_ids(self) -> Vec<LinkId> {
        (0..self.ranks()).flat_map(|rank| [LinkId::state_copy(rank, self), LinkId::held_copy(rank, self)]).collect()
    }
}
