//! The computations of a step: F (forward), B (full backward), I (backward for the input) and W (backward for the
//! weights). This module also receives their inputs from other stages and sends their results to other stages.

use std::collections::HashMap;

use stagecoach_model::WeightGradient;
use stagecoach_pipeline::{Action, WorkItem};
use stagecoach_transport::LinkId;
use tch::Tensor;

use super::executor::StepState;
use super::gradients::AccumulatorGroup;
use super::{ChunkOutput, Executor, LossInputs, Stage, StepError, StepInputs, StepTimer};

impl Executor<'_, '_> {
    pub(super) fn forward(
        &mut self,
        action: Action,
        item: WorkItem,
        inputs: &StepInputs,
        state: &mut StepState,
    ) -> Result<(), StepError> {
        let input = if self.placement.is_first(item.chunk) {
            inputs.token_ids[item.microbatch].shallow_clone()
        } else {
            let local = state.activations.remove(&item);
            self.receive_input(action, item, local)?
        };
        if let Some((began, arrived)) = self.finish_gather(item.chunk)? {
            state.timer.record(Action::Gather(item.chunk), began, arrived);
        }
        self.begin(action, item, &mut state.timer);
        let targets = inputs.targets.get(item.microbatch);
        self.observe(|probe, stage| probe.forward_begins(stage, item, &input, targets));
        let stage = &*self.stage;
        let ctx = stage.forward_context(&inputs.layouts[item.microbatch]);
        let chunk = &stage.chunks[&item.chunk];
        let output = if inputs.step.is_some() {
            let scale = 1.0 / inputs.target_count as f64;
            let loss_inputs = targets.filter(|_| chunk.head.is_some()).map(|targets| LossInputs { targets, scale });
            let (output, saved) = chunk.forward(input, ctx, loss_inputs);
            state.saved.insert(item, saved);
            output
        } else {
            chunk.evaluate(&input, &ctx, targets)
        };
        self.observe(|probe, stage| probe.forward_ends(stage, item, &output));
        match (output, action.consumer(self.placement)) {
            (ChunkOutput::Loss(loss), _) => {
                state.add_loss(loss, item, inputs);
                if inputs.step.is_some() {
                    self.stage.gradients.sums.finish_block_after(AccumulatorGroup::Head, item, inputs.blocks);
                }
            }
            (ChunkOutput::Activations(y), Some(consumer)) => drop(state.activations.insert(consumer, y)),
            (ChunkOutput::Activations(_), None) => {}
        }
        Ok(())
    }

    pub(super) fn backward(&mut self, action: Action, item: WorkItem, state: &mut StepState) -> Result<(), StepError> {
        let dy = if self.placement.is_last(item.chunk) {
            None
        } else {
            let local = state.gradients.remove(&item);
            Some(self.receive_input(action, item, local)?)
        };
        self.begin(action, item, &mut state.timer);
        self.observe(|probe, stage| probe.backward_begins(stage, item, dy.as_ref()));
        if let Action::FullBackward(_) = action {
            self.observe(|probe, stage| probe.accumulation_begins(stage, item));
        }
        let saved = state.saved.remove(&item).ok_or_else(|| self.invalid(action, "its F has not run"))?;
        let Stage { chunks, gradients, .. } = &mut *self.stage;
        let chunk = &chunks[&item.chunk];
        let dx = match action {
            // the item's W action accumulates these weight gradients later
            Action::BackwardInput(_) => chunk.backward(saved, dy, &mut |gradient| gradients.store.push(item, gradient)),
            _ => chunk.backward(saved, dy, &mut WeightGradient::accumulate),
        };
        self.observe(|probe, stage| probe.backward_ends(stage, item, dx.as_ref()));
        if let (Some(dx), Some(consumer)) = (dx, action.consumer(self.placement)) {
            state.gradients.insert(consumer, dx);
        }
        Ok(())
    }

    pub(super) fn post_receive(
        &mut self,
        receive: Action,
        item: WorkItem,
        inputs: &StepInputs,
    ) -> Result<(), StepError> {
        let layout = &inputs.layouts[item.microbatch];
        let shape = [(layout.rows * layout.length) as i64, self.stage.activations.hidden_size];
        let link = self.link(receive)?;
        if let Some(receiver) = self.links.receivers.get_mut(&link) {
            receiver.post(item.microbatch, &shape, self.stage.activations.kind);
        }
        Ok(())
    }

    /// Takes a tensor out of `results` and sends it to the receiver of `send`, which needs it.
    pub(super) fn send(
        &self,
        send: Action,
        item: WorkItem,
        results: &mut HashMap<WorkItem, Tensor>,
    ) -> Result<(), StepError> {
        let tensor = send.consumer(self.placement).and_then(|consumer| results.remove(&consumer));
        let tensor = tensor.ok_or_else(|| self.invalid(send, "its computation has not run"))?;
        let link = self.link(send)?;
        let sender = self.links.sender(link)?;
        let text = format!("buffer space for {}", self.message(send, item));
        self.stage.set_activity(self.activity, text, Some(link.to));
        Ok(sender.send(item.microbatch, tensor)?)
    }

    /// Returns the input of `computation`: from this rank if the producer ran here, otherwise from a link.
    fn receive_input(
        &mut self,
        computation: Action,
        item: WorkItem,
        local: Option<Tensor>,
    ) -> Result<Tensor, StepError> {
        if let Some(tensor) = local {
            return Ok(tensor);
        }
        let receive = computation.input_receive().ok_or_else(|| self.invalid(computation, "it has no input"))?;
        let link = self.link(receive)?;
        self.stage.set_activity(self.activity, self.message(receive, item), Some(link.from));
        Ok(self.links.receiver(link)?.wait(item.microbatch)?)
    }

    /// Returns the link of a send or receive.
    fn link(&self, action: Action) -> Result<LinkId, StepError> {
        let link = action.edge().and_then(|edge| LinkId::of(self.placement, edge));
        let link = link.map(|link| link.in_replica(self.stage.replica, self.placement.ranks()));
        link.ok_or_else(|| self.invalid(action, "there is no chunk at the other end"))
    }

    /// Records that `computation` begins. The caller has already received the input of the computation.
    pub(super) fn begin(&self, computation: Action, item: WorkItem, timer: &mut StepTimer) {
        let chunk = self.of_chunk(item);
        let text = format!("{} {}{chunk}", computation.computation_type(), item.microbatch);
        timer.begin(self.stage.set_activity(self.activity, text, None));
    }

    /// Returns the text by which heartbeats describe a send or a receive.
    fn message(&self, action: Action, item: WorkItem) -> String {
        format!("{} of microbatch {}{}", action.computation_type(), item.microbatch, self.of_chunk(item))
    }

    /// Returns the text by which heartbeats describe the chunk; empty if the stage has only one chunk.
    fn of_chunk(&self, item: WorkItem) -> String {
        if self.stage.chunks.len() > 1 { format!(" of chunk {}", item.chunk) } else { String::new() }
    }
}
