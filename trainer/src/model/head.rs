//! The LM head: logits, cross-entropy and their gradients, one block of tokens at a time. The logits of a whole microbatch
//! never exist: with 16 x 512 tokens and a vocabulary of 50,000 they would take 1.6 GB per copy.

use tch::{Kind, Tensor};

use super::{Parameters, names};
use crate::autograd::accumulate_linear;

/// Tokens whose logits exist at the same time. Each block reads and writes the weight's accumulator once: with a
/// vocabulary of 50,000, blocks of 64 tokens cost 63 % more time than a single one, blocks of 1,024 tokens 4 %.
const BLOCK_TOKENS: i64 = 1024;

/// Projects hidden states onto the vocabulary with [`names::HEAD`], or with [`names::EMBEDDING`] if the two are tied.
#[derive(Debug)]
pub struct Head {
    /// Index of the weight in the stage's parameters.
    pub parameter: usize,
}

/// Output of the head for one microbatch in training.
#[derive(Debug)]
pub(crate) struct HeadOutput {
    /// Sum of the cross-entropies of all targets but those with the ignore index, in nats.
    pub(crate) loss: f64,
    /// d(loss x scale) / d(hidden), of the shape of hidden.
    pub(crate) hidden_gradient: Tensor,
}

impl Head {
    /// The head of a stage with these parameters.
    pub(crate) fn new(tied: bool, parameters: &Parameters) -> Head {
        Head { parameter: parameters.index(if tied { names::EMBEDDING } else { names::HEAD }) }
    }

    /// Loss and gradients of `hidden[rows, length, hidden_size]` and `targets[rows * length]` (-100 is the ignore index).
    /// `scale` is 1 / (number of targets in the global batch); the weight's gradient is added to `accumulator`.
    pub(crate) fn forward_backward(
        &self,
        hidden: &Tensor,
        targets: &Tensor,
        scale: f64,
        parameters: &Parameters,
        accumulator: &Tensor,
    ) -> HeadOutput {
        let weight = &parameters[self.parameter].value;
        let hidden_gradient = Tensor::empty_like(hidden);
        let (x, dx) = (flatten(hidden), flatten(&hidden_gradient));
        let mut loss = 0.0;
        for (start, length) in blocks(x.size()[0]) {
            let x = x.narrow(0, start, length);
            let block = LogitsBlock::new(&x, &targets.narrow(0, start, length), weight);
            loss += block.loss();
            let d_logits = block.into_gradient(scale);
            dx.narrow(0, start, length).copy_(&d_logits.matmul(weight));
            accumulate_linear(accumulator, &d_logits, &x);
        }
        HeadOutput { loss, hidden_gradient }
    }

    /// The loss alone: the sum of the cross-entropies, in nats.
    pub(crate) fn loss(&self, hidden: &Tensor, targets: &Tensor, parameters: &Parameters) -> f64 {
        let weight = &parameters[self.parameter].value;
        let x = flatten(hidden);
        let block_loss = |(start, length)| {
            LogitsBlock::new(&x.narrow(0, start, length), &targets.narrow(0, start, length), weight).loss()
        };
        blocks(x.size()[0]).map(block_loss).sum()
    }

    /// The logits of `hidden[.., hidden_size]`, for generation.
    pub(crate) fn logits(&self, hidden: &Tensor, parameters: &Parameters) -> Tensor {
        hidden.linear(&parameters[self.parameter].value, None::<Tensor>)
    }
}

fn flatten(x: &Tensor) -> Tensor {
    let width = x.size().last().copied().unwrap_or(1);
    x.view([-1, width])
}

/// `(start, length)` of each block of `tokens` tokens.
fn blocks(tokens: i64) -> impl Iterator<Item = (i64, i64)> {
    (0..tokens).step_by(BLOCK_TOKENS as usize).map(move |start| (start, BLOCK_TOKENS.min(tokens - start)))
}

/// The logits of one block of tokens.
struct LogitsBlock {
    /// `f32[tokens, vocab]`.
    logits: Tensor,
    /// `f32[tokens, 1]`.
    log_sum_exp: Tensor,
    /// `f32[tokens, 1]`: 0 where the target is the ignore index, else 1.
    target_mask: Tensor,
    /// `i64[tokens, 1]`: the targets, 0 where masked.
    target_ids: Tensor,
}

impl LogitsBlock {
    fn new(x: &Tensor, targets: &Tensor, weight: &Tensor) -> LogitsBlock {
        let logits = x.matmul(&weight.tr()).to_kind(Kind::Float);
        let log_sum_exp = logits.logsumexp([-1], true);
        let target_mask = targets.ge(0).to_kind(Kind::Float).unsqueeze(1);
        LogitsBlock { logits, log_sum_exp, target_mask, target_ids: targets.clamp_min(0).unsqueeze(1) }
    }

    fn loss(&self) -> f64 {
        let target_logits = self.logits.gather(1, &self.target_ids, false);
        ((&self.log_sum_exp - target_logits) * &self.target_mask).sum(Kind::Double).double_value(&[])
    }

    /// The gradient of `loss x scale` with respect to the logits, (softmax - one hot) x scale x mask, in their memory.
    fn into_gradient(mut self, scale: f64) -> Tensor {
        let mut probabilities = self.logits.subtract_(&self.log_sum_exp).exp_();
        let minus_one = Tensor::full_like(&self.log_sum_exp, -1.0);
        let _ = probabilities.scatter_add_(1, &self.target_ids, &minus_one);
        probabilities.g_mul_(&(&self.target_mask * scale))
    }
}
