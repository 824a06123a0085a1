//! The directed edges that a plan needs.

use std::fmt;

use serde::{Deserialize, Serialize};
use stagecoach_pipeline::Placement;

/// What travels over an edge. A boundary is named by the chunk before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EdgeKind {
    /// Activations from chunk `boundary` to `boundary + 1`.
    Forward {
        /// The chunk that sends.
        boundary: usize,
    },
    /// Gradients from chunk `boundary + 1` to `boundary`.
    Backward {
        /// The chunk that receives.
        boundary: usize,
    },
    /// A tied weight's two gradients, between the ranks of the first and the last chunk.
    Tied,
}

/// One directed edge between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Edge {
    /// The rank that sends.
    pub from: usize,
    /// The rank that receives.
    pub to: usize,
    /// What travels.
    pub kind: EdgeKind,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Edge { from, to, kind } = self;
        match kind {
            EdgeKind::Forward { boundary } => {
                write!(f, "activations of chunk {boundary} from stage {from} to stage {to}")
            }
            EdgeKind::Backward { boundary } => {
                write!(f, "gradients for chunk {boundary} from stage {from} to stage {to}")
            }
            EdgeKind::Tied => write!(f, "the tied embedding's gradient from stage {from} to stage {to}"),
        }
    }
}

/// All edges of a placement, in a fixed order. Chunks on one rank need none.
pub fn edges(placement: &Placement, tied: bool) -> Vec<Edge> {
    let mut edges = Vec::new();
    let mut both = |a: usize, b: usize, forward: EdgeKind, backward: EdgeKind| {
        if a != b {
            edges.push(Edge { from: a, to: b, kind: forward });
            edges.push(Edge { from: b, to: a, kind: backward });
        }
    };
    let chunks = placement.chunks();
    for boundary in 0..chunks.saturating_sub(1) {
        let (a, b) = (placement.rank_of(boundary), placement.rank_of(boundary + 1));
        both(a, b, EdgeKind::Forward { boundary }, EdgeKind::Backward { boundary });
    }
    if tied && chunks > 0 {
        both(placement.rank_of(0), placement.rank_of(chunks - 1), EdgeKind::Tied, EdgeKind::Tied);
    }
    edges
}
