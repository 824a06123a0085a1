//! Defines lowered programs and their text form. Programs are verified, simulated, drawn and executed.

use std::fmt::{self, Write};

use crate::action::{Action, ActionError};
use crate::placement::{Placement, PlacementError};

/// One action of one rank, with its position.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ActionLocation {
    /// The rank.
    pub rank: usize,
    /// The position of the action in the rank's list, from 0.
    pub position: usize,
    /// The action at this position.
    pub action: Action,
}

impl fmt::Display for ActionLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rank {}, position {})", self.action, self.rank, self.position)
    }
}

/// The actions of every rank for one step, including communication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// The placement of chunks on ranks.
    pub placement: Placement,
    /// The number of microbatches of a step.
    pub microbatches: usize,
    /// The actions of each rank, in order.
    pub ranks: Vec<Vec<Action>>,
}

/// An error that occurs while the text form of programs is parsed. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramTextError {
    /// The first line is not a header.
    #[error("line 1: expected `placement 0,1,2 microbatches 4`, got `{found}`")]
    Header {
        /// The beginning of the first line.
        found: String,
    },
    /// The first line's placement is invalid.
    #[error("line 1: {0}")]
    Placement(#[from] PlacementError),
    /// A line does not begin with the expected rank.
    #[error("line {line}: expected `rank {rank}: ` and its actions, got `{found}`")]
    Rank {
        /// The number of the line.
        line: usize,
        /// The expected rank.
        rank: usize,
        /// The beginning of the line.
        found: String,
    },
    /// A line has an invalid action. Actions count from 1 after the colon.
    #[error("line {line}, action {position}: {error}")]
    Action {
        /// The number of the line.
        line: usize,
        /// The action's position in the line.
        position: usize,
        /// The error of the action's text.
        error: ActionError,
    },
    /// The text has more or fewer lines of actions than the placement has ranks.
    #[error("the placement has {ranks} ranks but {found} lines of actions follow: write one line per rank")]
    Count {
        /// The number of ranks in the placement.
        ranks: usize,
        /// The number of lines of actions in the text.
        found: usize,
    },
}

impl Programs {
    /// Whether the programs reduce a tied embedding's gradients.
    pub fn tied(&self) -> bool {
        self.ranks.iter().flatten().any(|action| *action == Action::ReduceTied)
    }

    /// Whether the pipeline is one of several replicas.
    pub fn replicated(&self) -> bool {
        self.ranks.iter().flatten().any(|action| action.is_between_replicas())
    }

    /// Adds the actions with which the replicas of a pipeline exchange data. The `REDUCE` of a chunk, which adds up the
    /// replicas' gradients, follows the chunk's last gradient. Its `GATHER`, which distributes the updated weights,
    /// follows the update. All replicas send in the same order, whatever their numbers of microbatches are. The last
    /// chunk is reduced first, because its gradients are complete first. The first chunk is gathered first, because the
    /// next step reads its weights first.
    #[must_use]
    pub fn replicate(mut self) -> Programs {
        for (rank, actions) in self.ranks.iter_mut().enumerate() {
            let chunks: Vec<usize> = self.placement.chunks_of(rank).collect();
            let mut from = 0;
            for &chunk in chunks.iter().rev() {
                let is_last_gradient = |action: &Action| {
                    action.completes_weight_gradient() && action.item().is_some_and(|item| item.chunk == chunk)
                };
                let complete = actions.iter().rposition(is_last_gradient).map_or(actions.len(), |last| last + 1);
                // REDUCE follows the send of the gradient to the previous chunk, because another rank waits for that
                // gradient
                let sends = actions[complete..].iter().take_while(|action| action.is_send()).count();
                let at = from.max(complete + sends);
                actions.insert(at, Action::Reduce(chunk));
                from = at + 1;
            }
            let update = actions.iter().position(|action| *action == Action::Update);
            let at = update.map_or(actions.len(), |update| update + 1);
            actions.splice(at..at, chunks.into_iter().map(Action::Gather));
        }
        self
    }

    /// Returns the text form: the placement and the number of microbatches in the first line, then one line per rank.
    pub fn to_text(&self) -> String {
        let placement: Vec<String> = self.placement.as_slice().iter().map(usize::to_string).collect();
        let mut text = format!("placement {} microbatches {}\n", placement.join(","), self.microbatches);
        for (rank, actions) in self.ranks.iter().enumerate() {
            // Writing into a String cannot fail.
            let _ = write!(text, "rank {rank}:");
            for action in actions {
                let _ = write!(text, " {action}");
            }
            text.push('\n');
        }
        text
    }

    /// Parses the text form. This function checks only the syntax. [`verify`](crate::verify()) checks the programs'
    /// behaviour.
    ///
    /// # Errors
    /// Returns an error if the syntax is invalid. The error names the line, and the action if the action is invalid.
    pub fn from_text(text: &str) -> Result<Programs, ProgramTextError> {
        let mut lines = text.lines();
        let header = lines.next().unwrap_or_default();
        let (placement, microbatches) =
            parse_header(header).ok_or_else(|| ProgramTextError::Header { found: excerpt(header) })?;
        let placement = Placement::new(placement)?;
        let ranks = lines.enumerate().map(|(rank, line)| parse_rank(rank, line)).collect::<Result<Vec<_>, _>>()?;
        if ranks.len() != placement.ranks() {
            return Err(ProgramTextError::Count { ranks: placement.ranks(), found: ranks.len() });
        }
        Ok(Programs { placement, microbatches, ranks })
    }
}

fn parse_header(line: &str) -> Option<(Vec<usize>, usize)> {
    let (placement, microbatches) = line.strip_prefix("placement ")?.split_once(" microbatches ")?;
    let placement = placement.split(',').map(|rank| rank.parse().ok()).collect::<Option<_>>()?;
    Some((placement, microbatches.trim_end().parse().ok()?))
}

fn parse_rank(rank: usize, line: &str) -> Result<Vec<Action>, ProgramTextError> {
    let number = rank + 2;
    let actions = line.strip_prefix(&format!("rank {rank}:")).ok_or_else(|| ProgramTextError::Rank {
        line: number,
        rank,
        found: excerpt(line),
    })?;
    let parse = |(index, text): (usize, &str)| {
        text.parse().map_err(|error| ProgramTextError::Action { line: number, position: index + 1, error })
    };
    actions.split_whitespace().enumerate().map(parse).collect()
}

fn excerpt(line: &str) -> String {
    line.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_text_is_refused_by_line() {
        let good = "placement 0,1 microbatches 1\nrank 0: 0F0\nrank 1: 1F0\n";
        assert_eq!(Programs::from_text(good).unwrap().to_text(), good);
        for (text, expected) in [
            ("", "line 1: expected `placement"),
            ("placement 0,x microbatches 1", "line 1: expected `placement"),
            ("placement 0,2 microbatches 1", "line 1: rank 1 holds no chunk"),
            ("placement 0 microbatches 1\n0F0", "line 2: expected `rank 0: `"),
            ("placement 0,1 microbatches 1\nrank 1: 0F0", "line 2: expected `rank 0: `"),
            ("placement 0 microbatches 1\nrank 0: 0F0 0Q0", "line 2, action 2: `0Q0` is not an action"),
            ("placement 0,1 microbatches 1\nrank 0: 0F0", "2 ranks but 1 lines"),
        ] {
            let error = Programs::from_text(text).unwrap_err().to_string();
            assert!(error.starts_with(expected) || error.contains(expected), "{error}");
        }
    }
}
