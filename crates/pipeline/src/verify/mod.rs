//! Verifies programs before a step runs: the order within each rank, the pairing of messages, the absence of deadlock,
//! and the memory.
//!
//! The verifier assumes these rules of the executor. A RECV posts without blocking, and the action that needs the
//! message waits. A SEND waits only while `sends_in_flight` earlier messages wait in the queue of its edge. A message
//! leaves the queue at the latest when its receive is posted. EXCHANGE waits for all ranks, and REDUCE_TIED waits for
//! the other rank that holds the tied embedding. The result does not depend on the order in which ranks run. If one
//! simulated execution completes, all executions therefore complete.
//!
//! REDUCE and GATHER also send and post without blocking. REDUCE_TIED and EXCHANGE wait for the REDUCE of every chunk
//! of their rank. A chunk's first F waits for the GATHER of the previous step. A replica therefore sends data to other
//! replicas before it waits for data of the same kind, so that no cyclic wait between replicas is possible. A rule for
//! each rank's list ensures that all replicas send in the same order.

mod order;
mod pairing;
mod violation;

pub use violation::{BlockedActions, Violation};

pub(crate) use order::{ProgramKind, check_ranks};

use crate::activation_memory::{self, HeldActivations};
use crate::costs::{Costs, SENDS_IN_FLIGHT};
use crate::program::{ActionLocation, Programs};
use crate::simulate;

/// The limits of the executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of messages that may wait on one directed edge before its SEND blocks, at least 1. The default is
    /// [`SENDS_IN_FLIGHT`].
    pub sends_in_flight: usize,
    /// The number of work items that may be in flight on each rank: items whose F has run and whose B or W has not.
    /// `None` means no limit.
    pub max_in_flight: Option<Vec<usize>>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { sends_in_flight: SENDS_IN_FLIGHT, max_in_flight: None }
    }
}

/// Verifies a training step by these rules:
///
/// - Every work item has one F and one B (or an I, then a W) on the rank of its chunk, after its dependencies.
/// - Sends and receives pair in order, and there is no deadlock. Activations stay within the limit.
/// - Loss and weight gradients come in microbatch order. EXCHANGE, UPDATE and SNAPSHOT follow, once each.
/// - With replicas, every chunk has a REDUCE after its last weight gradient and before REDUCE_TIED and EXCHANGE, the
///   last chunk of a rank first. Every chunk also has a GATHER between UPDATE and SNAPSHOT, the first chunk first.
///
/// # Errors
/// Returns the first violation found. Its text names the rank, the position, the action and a remedy.
pub fn verify(programs: &Programs, limits: &Limits) -> Result<(), Violation> {
    verify_programs(programs, limits, ProgramKind::Training)
}

/// Verifies an evaluation: one F for every work item with its messages, and nothing else.
///
/// # Errors
/// Returns the errors of [`verify`].
pub fn verify_evaluation(programs: &Programs, limits: &Limits) -> Result<(), Violation> {
    verify_programs(programs, limits, ProgramKind::Evaluation)
}

fn verify_programs(programs: &Programs, limits: &Limits, kind: ProgramKind) -> Result<(), Violation> {
    let Programs { placement, microbatches, ranks } = programs;
    check_ranks(placement, *microbatches, ranks, kind)?;
    pairing::check(placement, ranks)?;
    let costs = Costs { sends_in_flight: limits.sends_in_flight, ..Costs::uniform(placement.chunks()) };
    let blocked = simulate::run(programs, &costs).blocked;
    if !blocked.is_empty() {
        return Err(Violation::Deadlock { blocked: BlockedActions(blocked) });
    }
    check_in_flight(ranks, limits)
}

fn check_in_flight(ranks: &[Vec<crate::Action>], limits: &Limits) -> Result<(), Violation> {
    let Some(limits) = &limits.max_in_flight else { return Ok(()) };
    if limits.len() != ranks.len() {
        return Err(Violation::LimitCountMismatch { given: limits.len(), ranks: ranks.len() });
    }
    for (rank, (actions, &limit)) in ranks.iter().zip(limits).enumerate() {
        let mut held =
            activation_memory::held(actions, |_| HeldActivations::ONE).map(HeldActivations::total).enumerate();
        if let Some((position, held)) = held.find(|(_, held)| *held > limit as u64) {
            let location = ActionLocation { rank, position, action: actions[position] };
            return Err(Violation::TooManyInFlight { location, held: held as usize, limit });
        }
    }
    Ok(())
}
