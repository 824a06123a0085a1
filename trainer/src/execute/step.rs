//! The interpreter: runs a rank's list of actions, the very list that was verified, simulated and drawn.

use std::collections::HashMap;

use stagecoach_data::Layout;
use stagecoach_group::{Activity, GroupError, Member, Outcome, StepVote, Verdict};
use stagecoach_pipeline::{Action, Placement, Unit};
use tch::{Kind, Tensor};

use super::chunk::{Goal, Output};
use super::{Saved, Seconds, Stage};
use crate::autograd::accumulate_into;
use crate::links::{Edge, EdgeKind, LinkError, Links};

/// Why a step could not be finished.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A neighbour's link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The group is gone.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The group agreed to stop the job.
    #[error("{0}")]
    Aborted(String),
    /// The program asks for something that is not there: the verifier should have refused it.
    #[error("stage {rank} cannot run {action}: {why}")]
    Program {
        /// This stage.
        rank: usize,
        /// What it was about to run.
        action: Action,
        /// What is missing.
        why: String,
    },
}

/// One step's data, as far as this rank needs it.
#[derive(Debug)]
pub struct Batch<'a> {
    /// Shape and document boundaries of each microbatch: every rank knows them.
    pub layouts: &'a [Layout],
    /// Token ids of each microbatch, `i64[rows, length]`: on the first stage.
    pub inputs: Vec<Tensor>,
    /// Targets of each microbatch, `i64[rows * length]`: on the last stage.
    pub targets: Vec<Tensor>,
    /// Targets that count in the whole batch: on the last stage.
    pub count: u64,
    /// Steps complete after this one; `None` evaluates.
    pub step: Option<u64>,
    /// The learning rate of the step.
    pub learning_rate: f64,
    /// What this rank has to say besides what the step computes.
    pub vote: StepVote,
}

/// What a program led to.
#[derive(Debug)]
pub struct Finished {
    /// The group's verdict, in training.
    pub verdict: Option<Verdict>,
    /// Sum of the cross-entropies seen here, in nats.
    pub loss: f64,
    /// Where the time went.
    pub seconds: Seconds,
}

/// Runs programs on a stage.
#[derive(Debug)]
pub struct Executor<'a> {
    /// The model.
    pub stage: &'a mut Stage,
    /// Its neighbours.
    pub links: &'a mut Links,
    /// The control plane.
    pub member: &'a Member,
    /// Told what happens, for heartbeats.
    pub activity: &'a Activity,
    /// Which rank holds which chunk.
    pub placement: &'a Placement,
}

/// What is in flight within one program.
#[derive(Debug, Default)]
struct Flight {
    saved: HashMap<Unit, Saved>,
    /// Boundary tensors made here: for SEND, or for the next chunk on this rank. Keyed by the consumer's chunk.
    forward: HashMap<Unit, Tensor>,
    backward: HashMap<Unit, Tensor>,
    loss: f64,
    verdict: Option<Verdict>,
}

impl Executor<'_> {
    /// Runs `program` over `batch`.
    pub fn run(&mut self, program: &[Action], batch: &Batch) -> Result<Finished, StepError> {
        let mut seconds = Seconds::start();
        let mut flight = Flight::default();
        if batch.step.is_some() {
            self.stage.zero_gradients();
        }
        for &action in program {
            self.action(action, batch, &mut flight, &mut seconds)?;
        }
        Ok(Finished { verdict: flight.verdict, loss: flight.loss, seconds })
    }

    fn action(
        &mut self,
        action: Action,
        batch: &Batch,
        flight: &mut Flight,
        seconds: &mut Seconds,
    ) -> Result<(), StepError> {
        let missing = |rank: usize, why: &str| StepError::Program { rank, action, why: why.into() };
        let rank = self.stage.rank;
        match action {
            Action::RecvForward(unit) => self.post(unit, batch, EdgeKind::Forward { boundary: unit.chunk - 1 }),
            Action::RecvBackward(unit) => self.post(unit, batch, EdgeKind::Backward { boundary: unit.chunk }),
            Action::SendForward(unit) => {
                let consumer = Unit { chunk: unit.chunk + 1, ..unit };
                let tensor = flight.forward.remove(&consumer).ok_or_else(|| missing(rank, "its F has not run"))?;
                self.send(unit, tensor, EdgeKind::Forward { boundary: unit.chunk })?;
            }
            Action::SendBackward(unit) => {
                let consumer = Unit { chunk: unit.chunk - 1, ..unit };
                let tensor = flight.backward.remove(&consumer).ok_or_else(|| missing(rank, "its B has not run"))?;
                self.send(unit, tensor, EdgeKind::Backward { boundary: unit.chunk - 1 })?;
            }
            Action::Forward(unit) => self.forward(unit, batch, flight, seconds)?,
            Action::Backward(unit) => {
                self.backward(unit, flight, seconds)?;
                self.weights(unit);
            }
            Action::BackwardInput(unit) => self.backward(unit, flight, seconds)?,
            Action::BackwardWeight(unit) => {
                self.doing("W", unit);
                self.weights(unit);
            }
            Action::ReduceTied => self.reduce_tied(seconds)?,
            Action::Exchange => flight.verdict = Some(self.exchange(batch, flight.loss, seconds)?),
            Action::Update => match flight.verdict.as_ref().map(|v| &v.outcome) {
                Some(Outcome::Apply { clip }) => {
                    self.activity.set("UPDATE", None);
                    self.stage.optimizer.update(&self.stage.parameters, batch.learning_rate, *clip);
                }
                Some(Outcome::Skip) => {}
                Some(Outcome::Abort { reason }) => return Err(StepError::Aborted(reason.clone())),
                None => return Err(missing(rank, "no EXCHANGE before it")),
            },
            // The boundary: where a checkpoint copies the weights.
            Action::Snapshot => {}
        }
        Ok(())
    }

    fn doing(&self, what: &str, unit: Unit) {
        self.activity.set(format!("{what} {}", unit.microbatch), None);
    }

    fn edge(&self, kind: EdgeKind) -> Edge {
        let between =
            |a: usize, b: usize| Edge { from: self.placement.rank_of(a), to: self.placement.rank_of(b), kind };
        match kind {
            EdgeKind::Forward { boundary } => between(boundary, boundary + 1),
            EdgeKind::Backward { boundary } => between(boundary + 1, boundary),
            EdgeKind::Tied => between(0, self.placement.chunks() - 1),
        }
    }

    fn post(&mut self, unit: Unit, batch: &Batch, kind: EdgeKind) {
        let layout = &batch.layouts[unit.microbatch];
        let shape = [layout.rows as i64, layout.length as i64, self.stage.hidden];
        if let Some(receiver) = self.links.receivers.get(&self.edge(kind)) {
            receiver.post(unit.microbatch, &shape, Kind::Float);
        }
    }

    fn send(&mut self, unit: Unit, tensor: Tensor, kind: EdgeKind) -> Result<(), StepError> {
        let edge = self.edge(kind);
        let sender = self.links.senders.get(&edge).ok_or_else(|| LinkError::Broken(format!("no link for {edge}")))?;
        // links carry host memory
        Ok(sender.send(unit.microbatch, tensor.to_device(tch::Device::Cpu))?)
    }

    /// The tensor for `unit` over `kind`'s edge: made on this rank, or waited for.
    fn take(
        &mut self,
        unit: Unit,
        kind: EdgeKind,
        local: &mut HashMap<Unit, Tensor>,
        seconds: &mut Seconds,
    ) -> Result<Tensor, StepError> {
        if let Some(tensor) = local.remove(&unit) {
            return Ok(tensor);
        }
        let edge = self.edge(kind);
        let what = if matches!(kind, EdgeKind::Forward { .. }) { "RECV_F" } else { "RECV_B" };
        self.activity.set(format!("{what} of microbatch {}", unit.microbatch), Some(edge.from));
        let receiver =
            self.links.receivers.get_mut(&edge).ok_or_else(|| LinkError::Broken(format!("no link for {edge}")))?;
        Ok(seconds.waiting(|| receiver.wait(unit.microbatch))?.to_device(self.stage.device))
    }

    fn forward(
        &mut self,
        unit: Unit,
        batch: &Batch,
        flight: &mut Flight,
        seconds: &mut Seconds,
    ) -> Result<(), StepError> {
        let Unit { chunk: index, microbatch } = unit;
        let input = match index {
            0 => batch.inputs[microbatch].shallow_clone(),
            _ => self.take(unit, EdgeKind::Forward { boundary: index - 1 }, &mut flight.forward, seconds)?,
        };
        self.doing("F", unit);
        let stage = &mut *self.stage;
        let mask = document_mask(&batch.layouts[microbatch]).map(|mask| mask.to_device(stage.device));
        let chunk = &stage.chunks[&index];
        let output = if batch.step.is_some() {
            let goal = chunk.head.as_ref().map(|head| Goal {
                targets: &batch.targets[microbatch],
                scale: 1.0 / batch.count as f64,
                accumulator: stage.head_accumulator(head),
            });
            let (output, saved) = chunk.forward(input, mask, goal, &stage.parameters, &stage.tape);
            flight.saved.insert(unit, saved);
            output
        } else {
            chunk.evaluate(input, mask.as_ref(), batch.targets.get(microbatch), &stage.parameters, &stage.tape)
        };
        match output {
            Output::Loss(loss) => flight.loss += loss,
            Output::Boundary(y) => {
                flight.forward.insert(Unit { chunk: index + 1, microbatch }, y);
            }
        }
        Ok(())
    }

    fn backward(&mut self, unit: Unit, flight: &mut Flight, seconds: &mut Seconds) -> Result<(), StepError> {
        let Unit { chunk: index, microbatch } = unit;
        let last = index + 1 == self.placement.chunks();
        let dy = match last {
            true => None,
            false => Some(self.take(unit, EdgeKind::Backward { boundary: index }, &mut flight.backward, seconds)?),
        };
        self.doing("B", unit);
        let stage = &mut *self.stage;
        let Some(saved) = flight.saved.remove(&unit) else {
            let why = "its F has not run".into();
            return Err(StepError::Program { rank: stage.rank, action: Action::Backward(unit), why });
        };
        let chunk = &stage.chunks[&index];
        let dx = chunk.backward(saved, dy, unit, &stage.parameters, &stage.tape, &mut stage.queue);
        if let (Some(dx), Some(before)) = (dx, index.checked_sub(1)) {
            flight.backward.insert(Unit { chunk: before, microbatch }, dx);
        }
        Ok(())
    }

    fn weights(&mut self, unit: Unit) {
        let Stage { queue, parameters, .. } = &mut *self.stage;
        queue.run(unit, |parameter| &parameters[parameter].gradient);
    }

    /// Both ends of a tied weight come to hold embedding + head.
    fn reduce_tied(&mut self, seconds: &mut Seconds) -> Result<(), StepError> {
        let rank = self.stage.rank;
        let Some(tied) = &mut self.stage.tied else { return Ok(()) };
        let own = &self.stage.parameters[tied.parameter].gradient;
        if let Some(peer) = tied.peer {
            self.activity.set("REDUCE_TIED", Some(peer));
            let (out, back) = (
                Edge { from: rank, to: peer, kind: EdgeKind::Tied },
                Edge { from: peer, to: rank, kind: EdgeKind::Tied },
            );
            let closed = |edge: Edge| LinkError::Broken(format!("no link for {edge}"));
            let receiver = self.links.receivers.get_mut(&back).ok_or_else(|| closed(back))?;
            receiver.post(0, &own.size(), Kind::Float);
            // a copy: the link may still read it when the sum is written
            self.links.senders.get(&out).ok_or_else(|| closed(out))?.send(0, own.to_device(tch::Device::Cpu).copy())?;
            tied.other = seconds.waiting(|| receiver.wait(0))?.to_device(self.stage.device);
        }
        accumulate_into(own, &tied.other);
        Ok(())
    }

    /// Norms and votes up, the group's verdict down.
    fn exchange(&mut self, batch: &Batch, loss: f64, seconds: &mut Seconds) -> Result<Verdict, StepError> {
        let squared_norms = self.stage.squared_norms();
        let has_head = self.stage.chunks.values().any(|chunk| chunk.head.is_some());
        let loss = has_head.then(|| (loss / batch.count as f64) as f32);
        let finite = squared_norms.iter().all(|(_, square)| square.is_finite());
        let measures = vec![seconds.wall(), seconds.waited(), self.links.bytes_sent() as f64];
        let step = batch.step.unwrap_or_default();
        let vote = StepVote { step, loss, squared_norms, finite, measures, ..batch.vote.clone() };
        self.activity.set("EXCHANGE", None);
        Ok(seconds.waiting(|| self.member.vote(vote))?)
    }
}

/// Where attention may look when rows hold several documents, `bool[rows, 1, length, length]`; `None` when none does.
fn document_mask(layout: &Layout) -> Option<Tensor> {
    if layout.documents.iter().all(Vec::is_empty) {
        return None;
    }
    let ids: Vec<i64> = layout
        .documents
        .iter()
        .flat_map(|starts| (0..layout.length as u32).map(|at| starts.partition_point(|&start| start <= at) as i64))
        .collect();
    let (rows, length) = (layout.rows as i64, layout.length as i64);
    let ids = Tensor::from_slice(&ids).view([rows, length]);
    let same = ids.unsqueeze(2).eq_tensor(&ids.unsqueeze(1));
    let causal = Tensor::ones([length, length], (Kind::Bool, tch::Device::Cpu)).tril(0);
    Some(same.logical_and(&causal).unsqueeze(1))
}
