use std::fmt;

use crate::action::Action;
use crate::program::ActionLocation;

/// The action at which each blocked rank waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedActions(pub Vec<ActionLocation>);

impl fmt::Display for BlockedActions {
    /// Eight ranks are enough to show the cycle.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, location) in self.0.iter().take(8).enumerate() {
            write!(f, "{}{location}", if index > 0 { ", " } else { "" })?;
        }
        if self.0.len() > 8 { write!(f, " and {} more", self.0.len() - 8) } else { Ok(()) }
    }
}

/// Reason to reject programs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// No chunk or no microbatch.
    #[error("a pipeline needs at least one chunk and one microbatch, got {chunks} and {microbatches}")]
    Empty {
        /// Chunks of the placement.
        chunks: usize,
        /// Microbatches of the step.
        microbatches: usize,
    },
    /// The number of lists is not the number of ranks.
    #[error("the placement has {expected} ranks but there are {found} lists of actions: give one per rank")]
    RankCountMismatch {
        /// Ranks of the placement.
        expected: usize,
        /// Lists in the programs.
        found: usize,
    },
    /// An in-flight limit for another number of ranks.
    #[error("the in-flight limit lists {given} ranks but there are {ranks}: give one number per rank")]
    LimitCountMismatch {
        /// Ranks in the limits.
        given: usize,
        /// Lists in the programs.
        ranks: usize,
    },
    /// A chunk or microbatch that does not exist.
    #[error(
        "{location}: there are {chunks} chunks and {microbatches} microbatches, both counted from 0: correct its numbers"
    )]
    OutOfRange {
        /// The action.
        location: ActionLocation,
        /// Chunks of the placement.
        chunks: usize,
        /// Microbatches of the step.
        microbatches: usize,
    },
    /// An action of another rank's chunk.
    #[error("{location}: that chunk is on rank {owner}: move the action there")]
    WrongRank {
        /// The action.
        location: ActionLocation,
        /// The rank that holds the chunk.
        owner: usize,
    },
    /// An action that may not appear in this kind of list.
    #[error("{location}: {allowed}: remove it")]
    NotAllowed {
        /// The action.
        location: ActionLocation,
        /// The allowed value.
        allowed: &'static str,
    },
    /// A send or receive between chunks that need none.
    #[error(
        "{location}: no message is needed, because the neighbouring chunk is on the same rank or doesn't exist: remove it"
    )]
    NoMessage {
        /// The action.
        location: ActionLocation,
    },
    /// An action appears twice.
    #[error("{location}: its work is already done by {first} at position {position}: remove one of the two")]
    Duplicate {
        /// The second one.
        location: ActionLocation,
        /// The first one; B does the work of I and W.
        first: Action,
        /// Position of the first one.
        position: usize,
    },
    /// A dependency comes later on the same rank, or never.
    #[error("{location}: it needs {needs} earlier on the same rank: add that, or move this after it")]
    MissingDependency {
        /// The action.
        location: ActionLocation,
        /// The dependency.
        needs: Action,
    },
    /// Losses or weight gradients out of microbatch order: their sums would depend on the schedule.
    #[error(
        "{location}: {what} of chunk {} are added in microbatch order, and microbatch {expected} is due: swap the two",
        .location.action.item().map_or(0, |item| item.chunk)
    )]
    OutOfOrder {
        /// The action.
        location: ActionLocation,
        /// The losses or the weight gradients.
        what: &'static str,
        /// The expected microbatch.
        expected: usize,
    },
    /// An action after the step's EXCHANGE.
    #[error("{location}: only UPDATE, GATHER and SNAPSHOT may follow EXCHANGE: move it before")]
    AfterExchange {
        /// The action.
        location: ActionLocation,
    },
    /// A required action is missing.
    #[error("rank {rank}: {action} is missing (the list ends at position {position}): add it")]
    Missing {
        /// The rank.
        rank: usize,
        /// The list's length.
        position: usize,
        /// The missing action.
        action: Action,
    },
    /// The n-th receive from a rank does not match that rank's n-th send.
    #[error(
        "{send} pairs with {recv}, but messages from one rank to another arrive in order: list both in the same order"
    )]
    MessageOrderMismatch {
        /// The sender's action.
        send: ActionLocation,
        /// The receiver's action in the same place of their order.
        recv: ActionLocation,
    },
    /// Deadlock.
    #[error(
        "deadlock: the ranks wait for each other at {blocked}: move what they wait for ahead, or, where a SEND waits, \
         allow more messages in flight"
    )]
    Deadlock {
        /// The action at which each rank waits.
        blocked: BlockedActions,
    },
    /// In-flight limit exceeded.
    #[error(
        "{location}: it makes {held} microbatches in flight on this rank, and memory allows {limit}: run a backward before it"
    )]
    TooManyInFlight {
        /// The forward that exceeds the limit.
        location: ActionLocation,
        /// Work items held after it.
        held: usize,
        /// Work items allowed.
        limit: usize,
    },
}

impl Violation {
    /// The action to check first; `None` if the violation has no location.
    pub fn location(&self) -> Option<ActionLocation> {
        match self {
            Violation::Empty { .. } | Violation::RankCountMismatch { .. } | Violation::LimitCountMismatch { .. } => {
                None
            }
            Violation::Missing { rank, position, action } => {
                Some(ActionLocation { rank: *rank, position: *position, action: *action })
            }
            Violation::OutOfRange { location, .. }
            | Violation::WrongRank { location, .. }
            | Violation::NotAllowed { location, .. }
            | Violation::NoMessage { location }
            | Violation::Duplicate { location, .. }
            | Violation::MissingDependency { location, .. }
            | Violation::OutOfOrder { location, .. }
            | Violation::AfterExchange { location }
            | Violation::TooManyInFlight { location, .. } => Some(*location),
            Violation::MessageOrderMismatch { send, .. } => Some(*send),
            Violation::Deadlock { blocked } => blocked.0.first().copied(),
        }
    }
}
