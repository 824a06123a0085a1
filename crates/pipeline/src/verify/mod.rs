//! Proves that programs can be executed, before a step runs: each rank's own order, the pairing of messages, that no
//! rank waits for ever, and how much each holds.
//!
//! The executor it argues about: a RECV posts without waiting, and whoever needs the message waits; a SEND waits only
//! while `sends_in_flight` earlier messages of its edge have not been taken by a posted receive; EXCHANGE waits for
//! all ranks and REDUCE_TIED for the other end. Such programs end in the same state in whatever order ranks get to
//! run, so one walk that reaches the end shows that every execution does.

mod order;
mod pairing;
mod violation;

pub use violation::{At, Stuck, Violation};

pub(crate) use order::{Mode, check_ranks};

use crate::program::Programs;
use crate::residency;
use crate::simulate::Costs;
use crate::walk::walk;

/// What the executor allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages that may wait on one directed edge before its SEND does; at least 1.
    pub sends_in_flight: usize,
    /// The most units that each rank may hold activations of, one number a rank; None where memory is no concern.
    pub max_in_flight: Option<Vec<usize>>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { sends_in_flight: 2, max_in_flight: None }
    }
}

/// What is known of programs that were verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The most (chunk, microbatch) units that each rank holds activations of at once.
    pub peak_in_flight: Vec<usize>,
}

/// Proves a training step: every unit has one F and one B (or an I, then a W) on the rank that owns its chunk, after what
/// it depends on; sends and receives pair in order; nothing waits for ever; activations stay within the limit; loss
/// and weight gradients come in microbatch order; then EXCHANGE, UPDATE and SNAPSHOT, once each.
///
/// # Errors
/// The first violation found; its text names rank, position and action, and what to do.
pub fn verify(programs: &Programs, limits: &Limits) -> Result<Proof, Violation> {
    prove(programs, limits, Mode::Training)
}

/// Proves an evaluation: one F for every unit with its messages, and nothing else.
///
/// # Errors
/// As [`verify`].
pub fn verify_evaluation(programs: &Programs, limits: &Limits) -> Result<Proof, Violation> {
    prove(programs, limits, Mode::Evaluation)
}

fn prove(programs: &Programs, limits: &Limits, mode: Mode) -> Result<Proof, Violation> {
    let Programs { placement, microbatches, ranks } = programs;
    check_ranks(placement, *microbatches, ranks, mode)?;
    pairing::check(ranks)?;
    let costs = Costs { sends_in_flight: limits.sends_in_flight, ..Costs::uniform(placement.chunks()) };
    let stuck = walk(programs, &costs).stuck;
    if !stuck.is_empty() {
        return Err(Violation::Deadlock { stuck: Stuck(stuck) });
    }
    within(ranks, limits)?;
    let peak = |actions: &Vec<_>| residency::peak(actions, |_| 1) as usize;
    Ok(Proof { peak_in_flight: ranks.iter().map(peak).collect() })
}

fn within(ranks: &[Vec<crate::Action>], limits: &Limits) -> Result<(), Violation> {
    let Some(caps) = &limits.max_in_flight else { return Ok(()) };
    if caps.len() != ranks.len() {
        return Err(Violation::Limits { given: caps.len(), ranks: ranks.len() });
    }
    for (rank, (actions, &cap)) in ranks.iter().zip(caps).enumerate() {
        let over = |(_, held): &(usize, u64)| *held > cap as u64;
        if let Some((position, held)) = residency::held(actions, |_| 1).enumerate().find(over) {
            let at = At { rank, position, action: actions[position] };
            return Err(Violation::InFlight { at, held: held as usize, cap });
        }
    }
    Ok(())
}
