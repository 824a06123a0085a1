//! Checks the order of messages. The messages from one rank to another arrive in the order of their sends, across all
//! edges, because with NCCL they share one communicator. The receives must therefore be posted in that order. With a
//! connection for each edge, only the order within an edge would matter.

use std::collections::BTreeMap;

use super::violation::Violation;
use crate::action::Action;
use crate::placement::Placement;
use crate::program::ActionLocation;

/// Checks that receives are posted in the order of their sends. The lists must have passed `check_ranks`, so that every
/// send and receive appears once.
pub(super) fn check(placement: &Placement, ranks: &[Vec<Action>]) -> Result<(), Violation> {
    let mut pairs: BTreeMap<_, (Vec<ActionLocation>, Vec<ActionLocation>)> = BTreeMap::new();
    for (rank, actions) in ranks.iter().enumerate() {
        for (position, &action) in actions.iter().enumerate() {
            if let Some(edge) = action.edge() {
                let pair = (placement.get_rank(edge.from), placement.get_rank(edge.to));
                let (sends, receives) = pairs.entry(pair).or_default();
                let list = if action.is_send() { sends } else { receives };
                list.push(ActionLocation { rank, position, action });
            }
        }
    }
    for (sends, receives) in pairs.into_values() {
        let differ = |(send, recv): &(ActionLocation, ActionLocation)| send.action.counterpart() != Some(recv.action);
        if let Some((send, recv)) = sends.into_iter().zip(receives).find(differ) {
            return Err(Violation::MessageOrderMismatch { send, recv });
        }
    }
    Ok(())
}
