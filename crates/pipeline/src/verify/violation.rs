use crate::action::Action;
use std::fmt;

/// One action of one rank. The position counts from 0 in that rank's list.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// Whose list.
    pub rank: usize,
    /// Where in the list.
    pub position: usize,
    /// What is there.
    pub action: Action,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rank {}, position {})", self.action, self.rank, self.position)
    }
}

/// The action at which each stuck rank waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck(pub Vec<At>);

impl fmt::Display for Stuck {
    /// Eight ranks are enough to see the circle.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, at) in self.0.iter().take(8).enumerate() {
            write!(f, "{}{at}", if index > 0 { ", " } else { "" })?;
        }
        if self.0.len() > 8 { write!(f, " and {} more", self.0.len() - 8) } else { Ok(()) }
    }
}

/// Why programs must not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Nothing to do.
    #[error("a pipeline needs at least one chunk and one microbatch, got {chunks} and {microbatches}")]
    Empty {
        /// Chunks of the placement.
        chunks: usize,
        /// Microbatches of the step.
        microbatches: usize,
    },
    /// More or fewer lists than ranks.
    #[error("the placement has {expected} ranks but there are {found} lists of actions: give one a rank")]
    Ranks {
        /// By the placement.
        expected: usize,
        /// In the programs.
        found: usize,
    },
    /// An in-flight limit for another number of ranks.
    #[error("the in-flight limit lists {given} ranks but there are {ranks}: give one number a rank")]
    Limits {
        /// In the limits.
        given: usize,
        /// In the programs.
        ranks: usize,
    },
    /// A chunk or microbatch that does not exist.
    #[error(
        "{at}: there are {chunks} chunks and {microbatches} microbatches, both counted from 0: correct its numbers"
    )]
    Unknown {
        /// Where.
        at: At,
        /// Chunks of the placement.
        chunks: usize,
        /// Microbatches of the step.
        microbatches: usize,
    },
    /// An action of another rank's chunk.
    #[error("{at}: that chunk is on rank {owner}: move the action there")]
    Foreign {
        /// Where.
        at: At,
        /// The rank that holds the chunk.
        owner: usize,
    },
    /// A kind of action that does not belong into such a list.
    #[error("{at}: {allowed} only: remove it")]
    NotAllowed {
        /// Where.
        at: At,
        /// What may stand there.
        allowed: &'static str,
    },
    /// A send or receive between chunks that need none.
    #[error(
        "{at}: no message travels there, for the neighbouring chunk is on the same rank or doesn't exist: remove it"
    )]
    NoMessage {
        /// Where.
        at: At,
    },
    /// The same work twice.
    #[error("{at}: its work is already done by {first} at position {position}: remove one of the two")]
    Repeated {
        /// The second.
        at: At,
        /// The first; B repeats I and W.
        first: Action,
        /// Where the first is.
        position: usize,
    },
    /// Something it depends on comes later on the same rank, or never.
    #[error("{at}: it needs {needs} earlier on the same rank: add that, or move this behind it")]
    TooEarly {
        /// Where.
        at: At,
        /// What has to come before.
        needs: Action,
    },
    /// Losses or weight gradients out of microbatch order: their sums would depend on the schedule.
    #[error(
        "{at}: {what} of chunk {} are added in microbatch order, and microbatch {expected} is due: exchange the two",
        .at.action.unit().map_or(0, |unit| unit.chunk)
    )]
    OutOfOrder {
        /// Where.
        at: At,
        /// Losses or weight gradients.
        what: &'static str,
        /// The microbatch whose turn it is.
        expected: usize,
    },
    /// After the step's exchange.
    #[error("{at}: only UPDATE and SNAPSHOT may follow EXCHANGE: move it before")]
    AfterExchange {
        /// Where.
        at: At,
    },
    /// An action that has to be there.
    #[error("rank {rank}: {action} is missing (the list ends at position {position}): add it")]
    Missing {
        /// Whose list.
        rank: usize,
        /// The list's length.
        position: usize,
        /// What is missing.
        action: Action,
    },
    /// The n-th send of an edge is received as another microbatch.
    #[error("{send} meets {recv}, for messages between two chunks keep their order: list both in the same order")]
    Mispaired {
        /// The sender's action.
        send: At,
        /// The receiver's action in the same place of the edge's order.
        recv: At,
    },
    /// Ranks that wait for each other for ever.
    #[error(
        "the ranks wait for each other for ever, at {stuck}: move what they wait for ahead, or, where a SEND waits, \
         allow more messages in flight"
    )]
    Deadlock {
        /// Where each waits.
        stuck: Stuck,
    },
    /// Too much held.
    #[error(
        "{at}: it makes {held} microbatches in flight on this rank, and memory allows {cap}: run a backward before it"
    )]
    InFlight {
        /// The forward that is one too many.
        at: At,
        /// Units held after it.
        held: usize,
        /// Units allowed.
        cap: usize,
    },
}

impl Violation {
    /// The action to look at first, where there is one.
    pub fn at(&self) -> Option<At> {
        match self {
            Violation::Empty { .. } | Violation::Ranks { .. } | Violation::Limits { .. } => None,
            Violation::Missing { rank, position, action } => {
                Some(At { rank: *rank, position: *position, action: *action })
            }
            Violation::Unknown { at, .. }
            | Violation::Foreign { at, .. }
            | Violation::NotAllowed { at, .. }
            | Violation::NoMessage { at }
            | Violation::Repeated { at, .. }
            | Violation::TooEarly { at, .. }
            | Violation::OutOfOrder { at, .. }
            | Violation::AfterExchange { at }
            | Violation::InFlight { at, .. } => Some(*at),
            Violation::Mispaired { send, .. } => Some(*send),
            Violation::Deadlock { stuck } => stuck.0.first().copied(),
        }
    }
}
