use std::fmt;

use crate::action::Action;
use crate::program::ActionLocation;

/// The action at which each blocked rank waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedActions(pub Vec<ActionLocation>);

impl fmt::Display for BlockedActions {
    /// Writes at most eight ranks, which are enough to show the cycle.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, location) in self.0.iter().take(8).enumerate() {
            write!(f, "{}{location}", if index > 0 { ", " } else { "" })?;
        }
        if self.0.len() > 8 { write!(f, " and {} more", self.0.len() - 8) } else { Ok(()) }
    }
}

/// The reason why programs are rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The pipeline has no chunk, or the step has no microbatch.
    #[error("a pipeline needs at least one chunk and one microbatch, got {chunks} and {microbatches}")]
    Empty {
        /// The number of chunks in the placement.
        chunks: usize,
        /// The number of microbatches in the step.
        microbatches: usize,
    },
    /// The number of lists is not the number of ranks.
    #[error("the placement has {expected} ranks but there are {found} lists of actions: give one per rank")]
    RankCountMismatch {
        /// The number of ranks in the placement.
        expected: usize,
        /// The number of lists in the programs.
        found: usize,
    },
    /// The in-flight limit is for another number of ranks.
    #[error("the in-flight limit lists {given} ranks but there are {ranks}: give one number per rank")]
    LimitCountMismatch {
        /// The number of ranks in the limit.
        given: usize,
        /// The number of lists in the programs.
        ranks: usize,
    },
    /// A chunk or microbatch does not exist.
    #[error(
        "{location}: there are {chunks} chunks and {microbatches} microbatches, both counted from 0: correct its \
         numbers"
    )]
    OutOfRange {
        /// The action.
        location: ActionLocation,
        /// The number of chunks in the placement.
        chunks: usize,
        /// The number of microbatches in the step.
        microbatches: usize,
    },
    /// An action belongs to another rank's chunk.
    #[error("{location}: that chunk is on rank {owner}: move the action there")]
    WrongRank {
        /// The action.
        location: ActionLocation,
        /// The rank that holds the chunk.
        owner: usize,
    },
    /// An action is not allowed in this kind of list.
    #[error("{location}: {allowed}: remove it")]
    NotAllowed {
        /// The action.
        location: ActionLocation,
        /// The rule that the action breaks.
        allowed: &'static str,
    },
    /// A send or receive is between chunks that need no message.
    #[error(
        "{location}: no message is needed, because the neighbouring chunk is on the same rank or doesn't exist: \
         remove it"
    )]
    NoMessage {
        /// The action.
        location: ActionLocation,
    },
    /// An action repeats the work of an earlier action.
    #[error("{location}: its work is already done by {first} at position {position}: remove one of the two")]
    Duplicate {
        /// The second action.
        location: ActionLocation,
        /// The first action. B does the work of I and W.
        first: Action,
        /// The position of the first action.
        position: usize,
    },
    /// An action needs another action, which comes later on the same rank or is missing.
    #[error("{location}: the action needs {needs} earlier on the same rank: add {needs}, or move the action after it")]
    MissingDependency {
        /// The action.
        location: ActionLocation,
        /// The action that must come earlier.
        needs: Action,
    },
    /// Losses or weight gradients are out of microbatch order, so that their sums would depend on the schedule.
    #[error(
        "{location}: {what} of chunk {} are added in microbatch order, and microbatch {expected} is due: swap the two",
        .location.action.item().map_or(0, |item| item.chunk)
    )]
    OutOfOrder {
        /// The action.
        location: ActionLocation,
        /// The text `the losses` or `the weight gradients`.
        what: &'static str,
        /// The index of the expected microbatch.
        expected: usize,
    },
    /// An action comes after the step's EXCHANGE.
    #[error("{location}: only UPDATE, GATHER and SNAPSHOT may follow EXCHANGE: move the action before EXCHANGE")]
    AfterExchange {
        /// The action.
        location: ActionLocation,
    },
    /// A required action is missing.
    #[error("rank {rank}: {action} is missing (the list ends at position {position}): add it")]
    Missing {
        /// The rank.
        rank: usize,
        /// The length of the rank's list.
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
        /// The receiver's action at the same position in the order of the messages.
        recv: ActionLocation,
    },
    /// The ranks wait for each other.
    #[error(
        "deadlock: the ranks wait for each other at {blocked}: move what they wait for ahead, or, where a SEND \
         waits, allow more messages in flight"
    )]
    Deadlock {
        /// The action at which each rank waits.
        blocked: BlockedActions,
    },
    /// A rank exceeds its limit of work items in flight.
    #[error(
        "{location}: after this forward, {held} work items are in flight on the rank, and the limit is {limit}: run \
         a backward before it"
    )]
    TooManyInFlight {
        /// The forward that exceeds the limit.
        location: ActionLocation,
        /// The number of work items that are in flight on the rank after this forward.
        held: usize,
        /// The allowed number of work items.
        limit: usize,
    },
}

impl Violation {
    /// Returns the action to check first, or `None` if the violation has no location.
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
