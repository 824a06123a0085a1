//! The messages of a directed edge arrive in the order in which they are sent, so the receives must be posted in that
//! order too.

use super::violation::{ActionLocation, Violation};
use crate::action::{Action, Edge};
use std::collections::BTreeMap;

/// Expects lists that passed `check_ranks`: every send and receive is there once.
pub(super) fn check(ranks: &[Vec<Action>]) -> Result<(), Violation> {
    let mut edges: BTreeMap<Edge, (Vec<ActionLocation>, Vec<ActionLocation>)> = BTreeMap::new();
    for (rank, actions) in ranks.iter().enumerate() {
        for (position, &action) in actions.iter().enumerate() {
            if let Some(edge) = action.edge() {
                let (sends, receives) = edges.entry(edge).or_default();
                let list = if action.is_send() { sends } else { receives };
                list.push(ActionLocation { rank, position, action });
            }
        }
    }
    for (sends, receives) in edges.into_values() {
        let differ = |(send, recv): &(ActionLocation, ActionLocation)| send.action.counterpart() != Some(recv.action);
        if let Some((send, recv)) = sends.into_iter().zip(receives).find(differ) {
            return Err(Violation::MessageOrderMismatch { send, recv });
        }
    }
    Ok(())
}
