//! Executes a rank's list of pipeline actions: the same list that `stagecoach_pipeline` verifies, simulates and draws.

use std::collections::HashMap;
use std::time::Instant;

use stagecoach_group::{Activity, BlockLosses, Member, StepOutcome, StepVote, Verdict};
use stagecoach_pipeline::{Action, Placement, WorkItem};
use tch::{Kind, Tensor};

use super::gradient_sums::ParameterGroup;
use super::{
    ChunkOutput, LossInputs, SavedActivations, Stage, StepError, StepInputs, StepMeasurements, StepOutput, StepTimer,
    StopRequest, is_timed,
};
use crate::links::{LinkError, LinkId, Links};
use crate::model::WeightGradient;
use crate::sys::peak_resident_bytes;

/// Executes programs on a stage.
#[derive(Debug)]
pub struct Executor<'a> {
    /// The stage.
    pub stage: &'a mut Stage,
    /// Links to other stages.
    pub links: &'a mut Links,
    /// Membership in the group: votes and decisions.
    pub member: &'a Member,
    /// Receives the current activity, which heartbeats report.
    pub activity: &'a Activity,
    /// Mapping of chunks to ranks.
    pub placement: &'a Placement,
}

/// State of one program's execution.
#[derive(Debug)]
struct StepState {
    saved: HashMap<WorkItem, SavedActivations>,
    /// Outputs not yet consumed by a SEND or by the next chunk on this rank, keyed by the consuming work item.
    activations: HashMap<WorkItem, Tensor>,
    /// Input gradients not yet consumed by a SEND or by the previous chunk on this rank, keyed by the consuming work
    /// item.
    gradients: HashMap<WorkItem, Tensor>,
    /// Sums by block, `f64[]`, on the stage's device.
    losses: Vec<Tensor>,
    verdict: Option<Verdict>,
    decided_at: Option<Instant>,
    broken_link: Option<String>,
    timer: StepTimer,
    /// The chunks whose gradients are being reduced, and since when, in the order in which that began.
    reductions: Vec<(usize, Instant)>,
}

impl StepState {
    /// Adds a microbatch's loss to its block.
    fn add_loss(&mut self, loss: Tensor, item: WorkItem, inputs: &StepInputs) {
        let sum = match self.losses.pop() {
            None => loss + inputs.loss_so_far,
            Some(before) if inputs.blocks.is_first_of_block(item.microbatch) => {
                self.losses.push(before);
                loss
            }
            Some(sum) => sum + loss,
        };
        self.losses.push(sum);
    }
}

/// Copies scalar tensors to the host, which waits for the GPU.
fn copy_to_host<'t>(scalars: impl IntoIterator<Item = &'t Tensor>) -> Vec<f64> {
    let scalars: Vec<Tensor> = scalars.into_iter().map(|scalar| scalar.view([-1])).collect();
    if scalars.is_empty() {
        return Vec::new();
    }
    let all = Tensor::cat(&scalars, 0);
    let mut read = vec![0.0; all.numel()];
    all.copy_data(&mut read, all.numel());
    read
}

impl Executor<'_> {
    /// Executes `program` on `inputs`.
    ///
    /// # Errors
    /// When a link or the group fails, the group aborts the job, or an action's input is missing.
    pub fn run(&mut self, program: &[Action], inputs: &StepInputs) -> Result<StepOutput, StepError> {
        if inputs.step.is_some() {
            self.stage.zero_grad();
        }
        let mut state = StepState {
            saved: HashMap::new(),
            activations: HashMap::new(),
            gradients: HashMap::new(),
            losses: Vec::new(),
            verdict: None,
            decided_at: None,
            broken_link: None,
            timer: StepTimer::new(inputs.origin),
            reductions: Vec::new(),
        };
        for (index, &action) in program.iter().enumerate() {
            let is_over = state.verdict.is_some();
            if inputs.step.is_some() && !is_over && (inputs.control.stop)() == StopRequest::Immediately {
                state.verdict = Some(self.give_up(inputs)?);
                break;
            }
            let is_idle = inputs.control.idle_before == Some(index);
            let used = if is_idle { (inputs.control.when_idle)().map_err(StepError::from) } else { Ok(()) };
            match used.and_then(|()| self.execute(action, program, inputs, &mut state)) {
                // somebody gave the step up, or died: the group knows
                Err(StepError::Link(LinkError::Broken(why))) if inputs.step.is_some() && !is_over => {
                    state.verdict = Some(self.give_up(inputs)?);
                    state.broken_link = Some(why);
                    break;
                }
                executed => executed?,
            }
        }
        let StepState { verdict, decided_at, losses, broken_link, timer, .. } = state;
        // those of a step are in the vote
        let losses = if inputs.step.is_none() { copy_to_host(&losses) } else { Vec::new() };
        Ok(StepOutput { verdict, decided_at, losses, broken_link, spans: timer.spans(program) })
    }

    fn execute(
        &mut self,
        action: Action,
        program: &[Action],
        inputs: &StepInputs,
        state: &mut StepState,
    ) -> Result<(), StepError> {
        match action {
            Action::RecvForward(item) | Action::RecvBackward(item) => self.post_receive(action, item, inputs)?,
            Action::SendForward(item) => self.send(action, item, &mut state.activations)?,
            Action::SendBackward(item) => self.send(action, item, &mut state.gradients)?,
            Action::Forward(item) => self.forward(action, item, inputs, state)?,
            Action::FullBackward(item) | Action::BackwardInput(item) => self.backward(action, item, state)?,
            Action::BackwardWeight(item) => {
                self.begin(action, item, &mut state.timer);
                self.stage.record_accumulators(item);
                self.stage.weight_grad_store.accumulate(item);
            }
            Action::Reduce(chunk) => {
                state.reductions.push((chunk, Instant::now()));
                self.begin_reduction(chunk, inputs.blocks)?;
            }
            Action::ReduceTied => {
                self.finish_reductions(inputs, state)?;
                state.timer.begin();
                self.reduce_tied()?;
            }
            Action::Exchange => {
                self.finish_reductions(inputs, state)?;
                state.timer.begin();
                state.verdict = Some(self.exchange(program, inputs, &state.losses, &mut state.timer)?);
                state.decided_at = Some(Instant::now());
            }
            Action::Update => match state.verdict.as_ref().map(|verdict| &verdict.outcome) {
                Some(StepOutcome::Apply { clip }) => {
                    self.activity.set("UPDATE", None);
                    self.stage.optimizer.step(&self.stage.parameters, inputs.learning_rate, *clip);
                }
                Some(StepOutcome::Skip | StepOutcome::Drop) => {}
                Some(StepOutcome::Abort { reason }) => return Err(StepError::Aborted(reason.clone())),
                None => return Err(self.invalid(action, "no EXCHANGE before it")),
            },
            Action::Gather(chunk) => {
                if let Some(StepOutcome::Apply { .. }) = state.verdict.as_ref().map(|verdict| &verdict.outcome) {
                    self.begin_gather(chunk)?;
                }
            }
            // Nothing to execute: after it, the caller may copy the weights for a checkpoint.
            Action::Snapshot => {}
        }
        if let (true, Some(item)) = (action.completes_weight_gradient(), action.item()) {
            self.stage.record_weight_gradients(item);
            self.stage.gradient_sums.add(ParameterGroup::Chunk(item.chunk), item, inputs.blocks);
        }
        // EXCHANGE has ended its span itself, as the vote carries it; what replicas exchange ends when somebody needs it
        if is_timed(action) && action != Action::Exchange && !action.is_between_replicas() {
            state.timer.end();
        }
        Ok(())
    }

    /// A computation begins: its input is there.
    fn begin(&self, computation: Action, item: WorkItem, timer: &mut StepTimer) {
        self.activity.set(format!("{} {}", computation.computation_type(), item.microbatch), None);
        timer.begin();
    }

    fn invalid(&self, action: Action, why: &str) -> StepError {
        StepError::InvalidProgram { rank: self.stage.rank, action, why: why.to_owned() }
    }

    /// The link of a send or receive.
    fn link(&self, action: Action) -> Result<LinkId, StepError> {
        let link = action.edge().and_then(|edge| LinkId::of(self.placement, edge));
        let link = link.map(|link| link.in_replica(self.stage.replica, self.placement.ranks()));
        link.ok_or_else(|| self.invalid(action, "there is no chunk at the other end"))
    }

    fn post_receive(&mut self, receive: Action, item: WorkItem, inputs: &StepInputs) -> Result<(), StepError> {
        let layout = &inputs.layouts[item.microbatch];
        let shape = [(layout.rows * layout.length) as i64, self.stage.hidden_size];
        let link = self.link(receive)?;
        if let Some(receiver) = self.links.receivers.get_mut(&link) {
            receiver.post(item.microbatch, &shape, self.stage.kind);
        }
        Ok(())
    }

    /// Sends the tensor that `results` holds for the consumer of `send`.
    fn send(&self, send: Action, item: WorkItem, results: &mut HashMap<WorkItem, Tensor>) -> Result<(), StepError> {
        let tensor = send.consumer(self.placement).and_then(|consumer| results.remove(&consumer));
        let tensor = tensor.ok_or_else(|| self.invalid(send, "its computation has not run"))?;
        let link = self.link(send)?;
        let sender = self.links.senders.get(&link).ok_or_else(|| no_link(link))?;
        self.activity.set(format!("buffer space for {}", message(send, item)), Some(link.to));
        Ok(sender.send(item.microbatch, tensor)?)
    }

    /// Returns the input of `computation`: from this rank if its producer ran here, otherwise received.
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
        self.activity.set(message(receive, item), Some(link.from));
        let receiver = self.links.receivers.get_mut(&link).ok_or_else(|| no_link(link))?;
        Ok(receiver.wait(item.microbatch)?)
    }

    fn forward(
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
        self.stage.record_input(item, &input, targets);
        let stage = &*self.stage;
        stage.set_dumped_microbatch(item.microbatch);
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
        self.stage.record_output(item, &output);
        match (output, action.consumer(self.placement)) {
            (ChunkOutput::Loss(loss), _) => {
                state.add_loss(loss, item, inputs);
                if inputs.step.is_some() {
                    self.stage.gradient_sums.add(ParameterGroup::Head, item, inputs.blocks);
                }
            }
            (ChunkOutput::Activations(y), Some(consumer)) => drop(state.activations.insert(consumer, y)),
            (ChunkOutput::Activations(_), None) => {}
        }
        Ok(())
    }

    fn backward(&mut self, action: Action, item: WorkItem, state: &mut StepState) -> Result<(), StepError> {
        let dy = if self.placement.is_last(item.chunk) {
            None
        } else {
            let local = state.gradients.remove(&item);
            Some(self.receive_input(action, item, local)?)
        };
        self.begin(action, item, &mut state.timer);
        self.stage.record_output_gradient(item, dy.as_ref());
        if let Action::FullBackward(_) = action {
            self.stage.record_accumulators(item);
        }
        let saved = state.saved.remove(&item).ok_or_else(|| self.invalid(action, "its F has not run"))?;
        self.stage.set_dumped_microbatch(item.microbatch);
        let Stage { chunks, weight_grad_store, .. } = &mut *self.stage;
        let chunk = &chunks[&item.chunk];
        let dx = match action {
            // the schedule accumulates them later
            Action::BackwardInput(_) => {
                chunk.backward(saved, dy, &mut |gradient| weight_grad_store.push(item, gradient))
            }
            _ => chunk.backward(saved, dy, &mut WeightGradient::accumulate),
        };
        self.stage.record_input_gradient(item, dx.as_ref());
        if let (Some(dx), Some(consumer)) = (dx, action.consumer(self.placement)) {
            state.gradients.insert(consumer, dx);
        }
        Ok(())
    }

    /// Waits until the gradients of all chunks are reduced.
    fn finish_reductions(&mut self, inputs: &StepInputs, state: &mut StepState) -> Result<(), StepError> {
        for (chunk, began) in std::mem::take(&mut state.reductions) {
            let arrived = self.finish_reduction(chunk, inputs.blocks)?;
            state.timer.record(Action::Reduce(chunk), began, arrived);
        }
        Ok(())
    }

    /// Sums the embedding's and the head's gradient of a tied weight on both ranks.
    fn reduce_tied(&mut self) -> Result<(), StepError> {
        let (rank, replica, stages) = (self.stage.rank, self.stage.replica, self.placement.ranks());
        let is_own = self.stage.tied_embedding.as_ref().is_some_and(|tied| self.stage.owns(tied.parameter));
        let Some(tied) = self.stage.tied_embedding.as_mut().filter(|_| is_own) else { return Ok(()) };
        let own_gradient = &self.stage.parameters[tied.parameter].gradient;
        if let Some(peer) = tied.peer_rank {
            self.activity.set("REDUCE_TIED", Some(replica.rank(peer, stages)));
            let link = |from, to| LinkId::tied(from, to).in_replica(replica, stages);
            let (to_peer, from_peer) = (link(rank, peer), link(peer, rank));
            let receiver = self.links.receivers.get_mut(&from_peer).ok_or_else(|| no_link(from_peer))?;
            receiver.post(0, &own_gradient.size(), Kind::Float);
            let sender = self.links.senders.get(&to_peer).ok_or_else(|| no_link(to_peer))?;
            // copied, because the link may still be reading it when the sum is written in place
            sender.send(0, own_gradient.copy())?;
            tied.other_gradient = receiver.wait(0)?;
        }
        let _ = own_gradient.shallow_clone().g_add_(&tied.other_gradient);
        Ok(())
    }

    /// Sends this rank's norms and vote, and waits for the group's decision.
    fn exchange(
        &mut self,
        program: &[Action],
        inputs: &StepInputs,
        losses: &[Tensor],
        timer: &mut StepTimer,
    ) -> Result<Verdict, StepError> {
        let (parameters, squared_norms) = self.stage.squared_norms();
        // the one time in a step that the host waits for a GPU
        let mut losses_and_norms = copy_to_host(losses.iter().chain([&squared_norms]));
        let squared_norms = losses_and_norms.split_off(losses.len());
        let has_head = self.stage.chunks.values().any(|chunk| chunk.head.is_some());
        let losses = has_head.then(|| BlockLosses {
            blocks: inputs.blocks.all().count() as u32,
            target_count: inputs.target_count,
            sums: (inputs.blocks.first() as u32..).zip(losses_and_norms).collect(),
        });
        let all_finite = squared_norms.iter().all(|square| square.is_finite());
        let squared_norms = parameters.into_iter().zip(squared_norms).collect();
        // the norms and losses are here, so the device is done with what they depend on
        self.links.check()?;
        timer.end();
        let measurements = StepMeasurements {
            bytes_sent: self.links.bytes_sent() as f64,
            peak_bytes: peak_resident_bytes() as f64,
            // the recorded timeline is that of the first replica: the others do nothing else, and are many
            spans: if self.stage.replica.index == 0 { timer.spans(program) } else { Vec::new() },
        };
        let measurements = measurements.to_vec();
        (inputs.control.before_vote)()?;
        let step = inputs.step.unwrap_or_default();
        let vote = StepVote { step, losses, squared_norms, all_finite, measurements, ..inputs.vote.clone() };
        self.vote(vote, inputs)
    }

    /// Gives the step up. Whoever waits for this stage's tensors learns it from the links, which are closed.
    fn give_up(&mut self, inputs: &StepInputs) -> Result<Verdict, StepError> {
        self.links.close();
        let vote = StepVote { step: inputs.step.unwrap_or_default(), unfinished: true, ..inputs.vote.clone() };
        self.vote(vote, inputs)
    }

    /// Votes, with what is asked of the step by now, and waits for the group's decision.
    fn vote(&self, vote: StepVote, inputs: &StepInputs) -> Result<Verdict, StepError> {
        self.activity.set("EXCHANGE", None);
        Ok(self.member.vote(StepVote { stop_requested: (inputs.control.stop)() != StopRequest::None, ..vote })?)
    }
}

/// What heartbeats say of a send or receive.
fn message(action: Action, item: WorkItem) -> String {
    format!("{} of microbatch {}", action.computation_type(), item.microbatch)
}

pub(super) fn no_link(link: LinkId) -> LinkError {
    LinkError::Broken(format!("no link for {link}"))
}
