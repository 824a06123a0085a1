//! Forward and backward of one chunk for one microbatch. Every layer is its own autograd segment under every
//! partition: its input is a contiguous leaf, and that leaf's gradient is what goes to the layer before it.
//! So where a stage ends makes no difference to any bit.

use tch::Tensor;

use crate::autograd::{Tape, WeightQueue, gradient};
use crate::model::{Embedding, Head, Layer, Parameters, Pass};
use stagecoach_pipeline::Unit;

/// A contiguous part of the model, in memory.
#[derive(Debug)]
pub struct Chunk {
    /// On the first chunk.
    pub embedding: Option<Embedding>,
    /// One autograd segment each; the final norm is the last chunk's last.
    pub layers: Vec<Box<dyn Layer>>,
    /// On the last chunk.
    pub head: Option<Head>,
    /// Keep only the layers' inputs and compute their insides again in backward.
    pub recompute: bool,
}

/// What a chunk's backward needs of its forward.
#[derive(Debug)]
pub struct Saved {
    /// Each layer's input leaf, and its output unless that is computed again.
    segments: Vec<(Tensor, Option<Tensor>)>,
    /// The tokens, on the first chunk.
    ids: Option<Tensor>,
    /// The head's gradient, on the last chunk.
    seed: Option<Tensor>,
    mask: Option<Tensor>,
}

/// What the head needs in training.
#[derive(Debug)]
pub struct Goal<'a> {
    /// `[rows * length]`, -100 where a position does not count.
    pub targets: &'a Tensor,
    /// 1 / N for the N targets of the whole global batch.
    pub scale: f64,
    /// Where the head's weight collects its gradient.
    pub accumulator: &'a Tensor,
}

/// What a chunk's forward leads to.
#[derive(Debug)]
pub enum Output {
    /// `[rows, length, hidden]` for the next chunk.
    Boundary(Tensor),
    /// The sum of the cross-entropies, in nats.
    Loss(f64),
}

impl Chunk {
    /// Forward in training. `input` is token ids for the first chunk, else the boundary tensor.
    pub fn forward(
        &self,
        input: Tensor,
        mask: Option<Tensor>,
        goal: Option<Goal>,
        parameters: &Parameters,
        tape: &Tape,
    ) -> (Output, Saved) {
        let mut saved = Saved { segments: Vec::with_capacity(self.layers.len()), ids: None, seed: None, mask };
        let mut x = match &self.embedding {
            Some(embedding) => {
                let x = embedding.forward(&input, parameters);
                saved.ids = Some(input.view([-1]));
                x
            }
            None => input,
        };
        for layer in &self.layers {
            let pass = Pass { parameters, tape, mask: saved.mask.as_ref() };
            let leaf = leaf(&x);
            let y = match self.recompute {
                false => layer.forward(&leaf, &pass),
                true => tch::no_grad(|| layer.forward(&leaf, &pass)),
            };
            x = y.detach();
            saved.segments.push((leaf, (!self.recompute).then_some(y)));
        }
        let x = x.contiguous();
        match (&self.head, goal) {
            (Some(head), Some(goal)) => {
                let out = head.train(&x, goal.targets, goal.scale, parameters, goal.accumulator);
                saved.seed = Some(out.gradient);
                (Output::Loss(out.loss), saved)
            }
            _ => (Output::Boundary(x), saved),
        }
    }

    /// Forward alone; `targets` for the last chunk.
    pub fn evaluate(
        &self,
        input: Tensor,
        mask: Option<&Tensor>,
        targets: Option<&Tensor>,
        parameters: &Parameters,
        tape: &Tape,
    ) -> Output {
        let x = self.hidden(input, mask, parameters, tape);
        match (&self.head, targets) {
            (Some(head), Some(targets)) => Output::Loss(head.evaluate(&x, targets, parameters)),
            _ => Output::Boundary(x),
        }
    }

    /// The chunk's last hidden state, without a graph.
    pub fn hidden(&self, input: Tensor, mask: Option<&Tensor>, parameters: &Parameters, tape: &Tape) -> Tensor {
        let _no_grad = tch::no_grad_guard();
        let mut x = match &self.embedding {
            Some(embedding) => embedding.forward(&input, parameters),
            None => input,
        };
        for layer in &self.layers {
            x = layer.forward(&x, &Pass { parameters, tape, mask });
        }
        x.contiguous()
    }

    /// Backward of what `saved` remembers, seeded with `dy` (the last chunk has its own seed). Weight gradients go into
    /// `queue` under `unit`; returns the gradient for the chunk before, if there is one.
    pub fn backward(
        &self,
        saved: Saved,
        dy: Option<Tensor>,
        unit: Unit,
        parameters: &Parameters,
        tape: &Tape,
        queue: &mut WeightQueue,
    ) -> Option<Tensor> {
        let Saved { mut segments, ids, seed, mask } = saved;
        let mut dy = seed.or(dy)?;
        for layer in self.layers.iter().rev() {
            let (leaf, output) = segments.pop()?;
            let y = output.unwrap_or_else(|| layer.forward(&leaf, &Pass { parameters, tape, mask: mask.as_ref() }));
            dy = gradient(&y, &dy, &leaf);
            queue.collect(unit, tape);
        }
        let dy = dy.contiguous();
        match (&self.embedding, ids) {
            (Some(embedding), Some(ids)) => {
                let width = dy.size().last().copied().unwrap_or(1);
                queue.push_rows(unit, embedding.parameter, ids, dy.view([-1, width]));
                None
            }
            _ => Some(dy),
        }
    }
}

/// A contiguous leaf: `detach`, not `clone`, or the gradient would flow past it.
fn leaf(x: &Tensor) -> Tensor {
    x.detach().contiguous().set_requires_grad(true)
}
