//! The executor of a rank's program. A program is a list of pipeline actions, which `stagecoach_pipeline` generates and
//! verifies.

use std::collections::HashMap;
use std::time::Instant;

use stagecoach_group::{Activity, Member, StepOutcome, Verdict};
use stagecoach_kernels::device::{DeviceClock, Timestamp};
use stagecoach_model::HeadLoss;
use stagecoach_pipeline::{Action, Placement, WorkItem};
use stagecoach_transport::{LinkError, Links};
use tch::Tensor;

use super::end_of_step::host_values;
use super::gradients::AccumulatorGroup;
use super::{
    SavedActivations, Stage, StageGpu, StepControl, StepError, StepInputs, StepOutput, StepProbe, StepTimer,
    StopRequest,
};

/// An executor of programs on a stage.
pub struct Executor<'a, 'p> {
    /// The stage that runs the programs.
    pub stage: &'a mut Stage,
    /// The links to other stages.
    pub links: &'a mut Links,
    /// The membership in the group, which carries the votes and the verdicts.
    pub member: &'a Member,
    /// The handle of the current activity, which heartbeats report.
    pub activity: &'a Activity,
    /// The mapping of chunks to stages. Its ranks are the numbers of the stages, like torch's ranks within one
    /// pipeline.
    pub placement: &'a Placement,
    /// The control of the step.
    pub control: &'a mut dyn StepControl,
    /// The observers of the step's computations.
    pub probes: Vec<&'p mut (dyn StepProbe + 'p)>,
}

/// The state of one program's execution.
#[derive(Debug)]
pub(super) struct StepState {
    pub(super) saved: HashMap<WorkItem, SavedActivations>,
    /// The outputs that no SEND and no later chunk on this rank has consumed yet, keyed by the work item that consumes
    /// them.
    pub(super) activations: HashMap<WorkItem, Tensor>,
    /// The input gradients that no SEND and no earlier chunk on this rank has consumed yet, keyed by the work item that
    /// consumes them.
    pub(super) gradients: HashMap<WorkItem, Tensor>,
    /// The sums of the losses, one `f64[]` for each block of consecutive microbatches, on the stage's device.
    pub(super) losses: Vec<Tensor>,
    /// The losses of the tokens of each microbatch, if the step measures the loss of each source
    /// ([`StepInputs::rows`]).
    pub(super) token_losses: Vec<(usize, Vec<Tensor>)>,
    verdict: Option<Verdict>,
    decided_at: Option<Instant>,
    broken_link: Option<String>,
    pub(super) timer: StepTimer,
    /// The chunks with a REDUCE in progress, each with its start time, in order of start.
    pub(super) reductions: Vec<(usize, Timestamp)>,
}

impl StepState {
    fn new(origin: Instant, clock: Option<DeviceClock>) -> StepState {
        StepState {
            saved: HashMap::new(),
            activations: HashMap::new(),
            gradients: HashMap::new(),
            losses: Vec::new(),
            token_losses: Vec::new(),
            verdict: None,
            decided_at: None,
            broken_link: None,
            timer: StepTimer::new(origin, clock),
            reductions: Vec::new(),
        }
    }

    /// Adds a microbatch's loss to the sum of the microbatch's block.
    pub(super) fn add_loss(&mut self, loss: HeadLoss, item: WorkItem, inputs: &StepInputs) {
        let HeadLoss { sum: loss, token_losses } = loss;
        if inputs.rows.len() > item.microbatch {
            self.token_losses.push((item.microbatch, token_losses));
        }
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

impl Executor<'_, '_> {
    /// Executes `program` on `inputs`. In a training step, a broken link or an immediate stop makes this stage vote
    /// that the step is unfinished. The output then contains the group's verdict on this step.
    ///
    /// # Errors
    /// If the group fails or ends the attempt, an action's input is missing, or a link breaks in an evaluation or after
    /// the vote.
    pub fn run(&mut self, program: &[Action], inputs: &StepInputs) -> Result<StepOutput, StepError> {
        if inputs.step.is_some() {
            self.stage.zero_grad();
        }
        let mut state = StepState::new(inputs.origin, self.stage.gpu.as_ref().map(StageGpu::clock));
        for (index, &action) in program.iter().enumerate() {
            let is_decided = state.verdict.is_some();
            if inputs.step.is_some() && !is_decided && self.control.stop() == StopRequest::Immediately {
                state.verdict = Some(self.abort_step(inputs)?);
                break;
            }
            let is_longest_wait = self.control.idle_before() == Some(index);
            let idle_work = if is_longest_wait { self.control.when_idle().map_err(StepError::from) } else { Ok(()) };
            match idle_work.and_then(|()| self.execute(action, program, inputs, &mut state)) {
                // the stage at the other end of the link has abandoned the step or has died, and the group detects the
                // cause
                Err(StepError::Link(LinkError::Broken(why))) if inputs.step.is_some() && !is_decided => {
                    self.links.check_device()?;
                    state.verdict = Some(self.abort_step(inputs)?);
                    state.broken_link = Some(why);
                    break;
                }
                executed => executed?,
            }
        }
        self.stage.hold_activity(self.activity);
        let StepState { verdict, decided_at, losses, broken_link, timer, .. } = state;
        // the losses of a training step are in the vote
        let losses = if inputs.step.is_none() { host_values(&losses) } else { Vec::new() };
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
                self.observe(|probe, stage| probe.accumulation_begins(stage, item));
                self.stage.gradients.store.accumulate(item);
            }
            Action::Reduce(chunk) => {
                state.reductions.push((chunk, self.stage.timestamp()));
                self.begin_reduction(chunk, inputs.blocks)?;
            }
            Action::ReduceTied => {
                self.finish_reductions(inputs, state)?;
                state.timer.begin(self.stage.timestamp());
                self.reduce_tied()?;
            }
            Action::Exchange => {
                self.finish_reductions(inputs, state)?;
                state.timer.begin(self.stage.timestamp());
                state.verdict =
                    Some(self.exchange(program, inputs, &state.losses, &state.token_losses, &mut state.timer)?);
                state.decided_at = Some(Instant::now());
            }
            Action::Update => {
                let Some(verdict) = &state.verdict else {
                    return Err(self.invalid(action, "no EXCHANGE before it"));
                };
                match &verdict.outcome {
                    StepOutcome::Apply { clip } => {
                        self.stage.set_activity(self.activity, "UPDATE", None);
                        self.stage.wait_for_copies()?;
                        self.stage.optimizer.step(&self.stage.parameters, inputs.learning_rate, *clip);
                    }
                    StepOutcome::Skip | StepOutcome::Discard => {}
                    StepOutcome::Abort { kind, reason } => {
                        return Err(StepError::Aborted { kind: *kind, reason: reason.clone() });
                    }
                }
            }
            Action::Gather(chunk) => {
                if let Some(StepOutcome::Apply { .. }) = state.verdict.as_ref().map(|verdict| &verdict.outcome) {
                    self.begin_gather(chunk)?;
                }
            }
            // SNAPSHOT does no work. After this action, the caller may copy the weights for a checkpoint.
            Action::Snapshot => {}
        }
        if let (true, Some(item)) = (action.completes_weight_gradient(), action.item()) {
            self.observe(|probe, stage| probe.accumulation_ends(stage, item));
            self.stage.gradients.sums.finish_block_after(AccumulatorGroup::Chunk(item.chunk), item, inputs.blocks);
        }
        // EXCHANGE has already ended its span, because the vote contains the span. A REDUCE or GATHER ends when a
        // computation needs its result.
        if action.is_timed() && action != Action::Exchange && !action.is_between_replicas() {
            state.timer.end(self.stage.timestamp());
        }
        Ok(())
    }

    /// Reports an event on this stage to every probe.
    pub(super) fn observe(&mut self, event: impl Fn(&mut dyn StepProbe, &Stage)) {
        self.probes.iter_mut().for_each(|probe| event(*probe, self.stage));
    }

    pub(super) fn invalid(&self, action: Action, why: &str) -> StepError {
        StepError::InvalidProgram { stage: self.stage.index, action, why: why.to_owned() }
    }
}
