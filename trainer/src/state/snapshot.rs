//! All that a stage saves, at one moment.

use std::sync::{Mutex, PoisonError};

use super::Named;
use super::tensors::{moments, weights};
use crate::execute::Stage;

/// Bytes copied at once.
const PIECE: usize = 4 << 20;

/// The tensors that a stage answers for: weights, and the optimizer's moments.
#[derive(Debug)]
pub struct Snapshot {
    /// By Hugging Face's names.
    pub weights: Vec<Named>,
    /// By the same with a suffix.
    pub moments: Vec<Named>,
}

impl Snapshot {
    /// The tensors themselves where they are on the CPU: good until the next update.
    pub fn of(stage: &Stage) -> Snapshot {
        Snapshot { weights: weights(stage), moments: moments(stage) }
    }

    /// Memory of their size, touched, to copy them into at any boundary.
    pub fn room_for(stage: &Stage) -> Snapshot {
        let room = |tensors: Vec<Named>| tensors.iter().map(Named::room).collect();
        Snapshot { weights: room(weights(stage)), moments: room(moments(stage)) }
    }

    /// Copies the tensors in, on as many threads as compute: what training waits for.
    pub fn copy_from(&mut self, stage: &Stage) {
        let now = Snapshot::of(stage);
        let pairs = self.weights.iter_mut().zip(&now.weights).chain(self.moments.iter_mut().zip(&now.moments));
        let pieces: Vec<_> = pairs
            .flat_map(|(room, tensor)| room.bytes_mut().chunks_mut(PIECE).zip(tensor.bytes().chunks(PIECE)))
            .collect();
        // taken a piece at a time, so that none is left alone with the largest tensor
        let pieces = Mutex::new(pieces.into_iter());
        let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        let copy = || {
            while let Some((room, values)) = next() {
                room.copy_from_slice(values);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..tch::get_num_threads() {
                scope.spawn(copy);
            }
            copy();
        });
    }

    /// Their size.
    pub fn bytes(&self) -> u64 {
        self.weights.iter().chain(&self.moments).map(|tensor| tensor.bytes().len() as u64).sum()
    }
}
