//! All that a stage saves, at one moment.

use super::Named;
use super::tensors::{moments, weights};
use crate::execute::Stage;

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

    /// Copies the tensors in: what training waits for.
    pub fn copy_from(&mut self, stage: &Stage) {
        let now = Snapshot::of(stage);
        let pairs = self.weights.iter_mut().zip(&now.weights).chain(self.moments.iter_mut().zip(&now.moments));
        pairs.for_each(|(room, tensor)| room.copy_from(tensor));
    }

    /// Their size.
    pub fn bytes(&self) -> u64 {
        self.weights.iter().chain(&self.moments).map(|tensor| tensor.bytes().len() as u64).sum()
    }
}
