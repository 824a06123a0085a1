//! Weight gradients that wait for their turn, by (chunk, microbatch).

use std::collections::BTreeMap;

use stagecoach_pipeline::WorkItem;
use tch::Tensor;

use super::ops::{Owed, Tape, accumulate};

/// Adds a gradient to `accumulators[parameter]`.
#[derive(Debug)]
enum Work {
    /// A matrix or a vector, as the tape left it.
    Owed(Owed),
    /// Rows of an embedding: `accumulator[ids[i]] += rows[i]`.
    Rows { parameter: usize, ids: Tensor, rows: Tensor },
}

/// `accumulator += gradient`, in place.
pub fn accumulate_into(accumulator: &Tensor, gradient: &Tensor) {
    let _ = accumulator.shallow_clone().g_add_(gradient);
}

/// The weight gradients that backward passes owe, run by W actions (or at once by schedules that do not split B).
/// Sums are never merged over microbatches: that would change the order of summation.
#[derive(Debug, Default)]
pub struct WeightQueue {
    work: BTreeMap<WorkItem, Vec<Work>>,
}

impl WeightQueue {
    /// Moves everything on the tape under `item`.
    pub fn collect(&mut self, item: WorkItem, tape: &Tape) {
        let work = self.work.entry(item).or_default();
        work.extend(std::iter::from_fn(|| tape.pop()).map(Work::Owed));
    }

    /// An embedding's gradient: `rows[n, hidden]` for the tokens `ids[n]`.
    pub fn push_rows(&mut self, item: WorkItem, parameter: usize, ids: Tensor, rows: Tensor) {
        self.work.entry(item).or_default().push(Work::Rows { parameter, ids, rows });
    }

    /// Adds all that `item` owes to the fp32 accumulators, in the order in which the backward pass left it.
    pub fn run<'a>(&mut self, item: WorkItem, accumulator: impl Fn(usize) -> &'a Tensor) {
        for work in self.work.remove(&item).unwrap_or_default() {
            match work {
                Work::Owed(Owed { parameter, dy, x: Some(x) }) => accumulate(accumulator(parameter), &dy, &x),
                Work::Owed(Owed { parameter, dy, x: None }) => accumulate_into(accumulator(parameter), &dy),
                Work::Rows { parameter, ids, rows } => {
                    let _ = accumulator(parameter).shallow_clone().index_add_(0, &ids, &rows);
                }
            }
        }
    }
}
