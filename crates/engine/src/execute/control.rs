//! The objects that a running step calls: its control, and the probes that observe it.

use stagecoach_pipeline::WorkItem;
use stagecoach_transport::LinkError;
use tch::Tensor;

use super::{ChunkOutput, Stage};

/// Whether a step must stop, and how soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRequest {
    /// No stop is requested.
    None,
    /// Stop after this step.
    AfterStep,
    /// Abandon this step: too little time is left to finish it.
    Immediately,
}

/// Controls a running step. The default methods never request a stop, and never wait.
pub trait StepControl {
    /// Returns whether the step must stop. The step calls it between its actions, and when it votes.
    fn stop(&self) -> StopRequest {
        StopRequest::None
    }

    /// Called before the step votes: waits for everything that the vote promises to the group.
    ///
    /// # Errors
    /// If a link fails.
    fn before_vote(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    /// The index in the program of the action before which `when_idle` is called: where the stage is expected to wait.
    fn idle_before(&self) -> Option<usize> {
        None
    }

    /// Called before action `idle_before`, for work that can be done at any time.
    ///
    /// # Errors
    /// If a link fails.
    fn when_idle(&mut self) -> Result<(), LinkError> {
        Ok(())
    }
}

/// The control of a step that runs to its end.
#[derive(Debug)]
pub struct Uncontrolled;

impl StepControl for Uncontrolled {}

/// Observes the computations of a step. Layers may reuse the memory of a tensor after the call that shows it. The
/// default methods do nothing.
pub trait StepProbe {
    /// The forward pass of `item` begins, with targets if the stage has the head.
    fn forward_begins(&mut self, _stage: &Stage, _item: WorkItem, _input: &Tensor, _targets: Option<&Tensor>) {}

    /// The forward pass of `item` has ended.
    fn forward_ends(&mut self, _stage: &Stage, _item: WorkItem, _output: &ChunkOutput) {}

    /// The backward pass of `item` begins, with the gradient of its output unless the chunk has the head.
    fn backward_begins(&mut self, _stage: &Stage, _item: WorkItem, _dy: Option<&Tensor>) {}

    /// The backward pass of `item` has ended, with the gradient of its input unless the chunk has the embedding.
    fn backward_ends(&mut self, _stage: &Stage, _item: WorkItem, _dx: Option<&Tensor>) {}

    /// The stage is about to add the weight gradients of `item` to their accumulators.
    fn accumulation_begins(&mut self, _stage: &Stage, _item: WorkItem) {}

    /// The accumulators have the weight gradients of `item`.
    fn accumulation_ends(&mut self, _stage: &Stage, _item: WorkItem) {}
}
