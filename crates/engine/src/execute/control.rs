//! The objects that a running step calls: its control, and its probes. A step ends with a vote, in which each rank
//! sends its gradient norms and losses to the group.

use stagecoach_pipeline::WorkItem;
use stagecoach_transport::LinkError;
use tch::Tensor;

use super::{ChunkOutput, Stage};

/// A request to stop, and its urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRequest {
    /// No stop is requested.
    None,
    /// Stop after this step.
    AfterStep,
    /// Abandon this step: too little time is left to finish it.
    Immediately,
}

/// The control of a running step. The default methods never request a stop, and never wait.
pub trait StepControl {
    /// Returns the current stop request. The step calls this method between its actions, and when it votes.
    fn stop(&self) -> StopRequest {
        StopRequest::None
    }

    /// Completes the work that other stages may rely on after this rank's vote. The step calls this method before it
    /// votes.
    ///
    /// # Errors
    /// If a link fails.
    fn before_vote(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    /// Returns the index of the action before which the step calls `when_idle`; `None` for no call. The best choice is
    /// an action before which the rank waits long for other ranks.
    fn idle_before(&self) -> Option<usize> {
        None
    }

    /// Does work that can run at any time. The step calls this method before the action `idle_before`.
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

/// An observer of a step's computations. A probe must copy the tensors that it needs later, because layers may reuse
/// their memory after the call. The default methods do nothing.
pub trait StepProbe {
    /// Called before the forward pass of `item`. The targets are given if the stage has the head.
    fn forward_begins(&mut self, _stage: &Stage, _item: WorkItem, _input: &Tensor, _targets: Option<&Tensor>) {}

    /// Called after the forward pass of `item`.
    fn forward_ends(&mut self, _stage: &Stage, _item: WorkItem, _output: &ChunkOutput) {}

    /// Called before the backward pass of `item`. The gradient of the chunk's output is given unless the chunk has the
    /// head.
    fn backward_begins(&mut self, _stage: &Stage, _item: WorkItem, _dy: Option<&Tensor>) {}

    /// Called after the backward pass of `item`. The gradient of the chunk's input is given unless the chunk has the
    /// embedding.
    fn backward_ends(&mut self, _stage: &Stage, _item: WorkItem, _dx: Option<&Tensor>) {}

    /// Called before the stage adds the weight gradients of `item` to their accumulators.
    fn accumulation_begins(&mut self, _stage: &Stage, _item: WorkItem) {}

    /// Called after the stage has added the weight gradients of `item` to their accumulators.
    fn accumulation_ends(&mut self, _stage: &Stage, _item: WorkItem) {}
}
