//! Verifies programs before a step runs: order within each rank, pairing of messages, absence of deadlock, memory.
//!
//! Model of the executor: a RECV posts without blocking, and the action that needs the message waits; a SEND waits only
//! while `sends_in_flight` earlier messages of its edge have not left, which they do at the latest when their receive
//! is posted; EXCHANGE waits for all ranks and REDUCE_TIED for the other rank. The result does not depend on the order
//! in which ranks run, so one simulated execution that completes shows that all executions do.
//!
//! REDUCE and GATHER send and post without blocking too. REDUCE_TIED and EXCHANGE wait for the REDUCE of every chunk of
//! their rank, and a chunk's first F waits for its GATHER of the step before. A replica therefore sends the data that
//! other replicas wait for without waiting for data of the same kind itself, and no cyclic wait between replicas is
//! possible. A rule for each rank's list ensures that all replicas send in one order.

mod order;
mod pairing;
mod violation;

pub use violation::{BlockedActions, Violation};

pub(crate) use order::{ProgramKind, check_ranks};

use crate::activation_memory::{self, Held};
use crate::costs::{Costs, SENDS_IN_FLIGHT};
use crate::discrete_event;
use crate::program::{ActionLocation, Programs};

/// Limits of the executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages that may wait on one directed edge before its SEND blocks, at least 1; [`SENDS_IN_FLIGHT`] by default.
    pub sends_in_flight: usize,
    /// For each rank, the number of work items that may be between their F and their B or W; `None` for no limit.
    pub max_in_flight: Option<Vec<usize>>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { sends_in_flight: SENDS_IN_FLIGHT, max_in_flight: None }
    }
}

/// Result of verification.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// For each rank, the peak number of work items between their F and their B or W.
    pub peak_in_flight: Vec<usize>,
}

/// Verifies a training step: every work item has one F and one B (or an I, then a W) on the rank of its chunk, after
/// its dependencies; sends and receives pair in order; there is no deadlock; activations stay within the limit; loss
/// and weight gradients come in microbatch order; then EXCHANGE, UPDATE and SNAPSHOT, once each. With replicas every
/// chunk has a REDUCE behind its last weight gradient and before REDUCE_TIED and EXCHANGE, the last chunk of a rank
/// first, and a GATHER between UPDATE and SNAPSHOT, the first chunk first.
///
/// # Errors
/// The first violation found; its text names rank, position and action, and what to do.
pub fn verify(programs: &Programs, limits: &Limits) -> Result<VerifyReport, Violation> {
    verify_programs(programs, limits, ProgramKind::Training)
}

/// Verifies an evaluation: one F for every work item with its messages, and nothing else.
///
/// # Errors
/// Like [`verify`].
pub fn verify_evaluation(programs: &Programs, limits: &Limits) -> Result<VerifyReport, Violation> {
    verify_programs(programs, limits, ProgramKind::Evaluation)
}

fn verify_programs(programs: &Programs, limits: &Limits, kind: ProgramKind) -> Result<VerifyReport, Violation> {
    let Programs { placement, microbatches, ranks } = programs;
    check_ranks(placement, *microbatches, ranks, kind)?;
    pairing::check(placement, ranks)?;
    let costs = Costs { sends_in_flight: limits.sends_in_flight, ..Costs::uniform(placement.chunks()) };
    let blocked = discrete_event::run(programs, &costs).blocked;
    if !blocked.is_empty() {
        return Err(Violation::Deadlock { blocked: BlockedActions(blocked) });
    }
    check_in_flight(ranks, limits)?;
    let peak = |actions: &Vec<_>| activation_memory::peak(actions, |_| Held::ONE).total() as usize;
    Ok(VerifyReport { peak_in_flight: ranks.iter().map(peak).collect() })
}

fn check_in_flight(ranks: &[Vec<crate::Action>], limits: &Limits) -> Result<(), Violation> {
    let Some(limits) = &limits.max_in_flight else { return Ok(()) };
    if limits.len() != ranks.len() {
        return Err(Violation::LimitCountMismatch { given: limits.len(), ranks: ranks.len() });
    }
    for (rank, (actions, &limit)) in ranks.iter().zip(limits).enumerate() {
        let mut held = activation_memory::held(actions, |_| Held::ONE).map(Held::total).enumerate();
        if let Some((position, held)) = held.find(|(_, held)| *held > limit as u64) {
            let location = ActionLocation { rank, position, action: actions[position] };
            return Err(Violation::TooManyInFlight { location, held: held as usize, limit });
        }
    }
    Ok(())
}
