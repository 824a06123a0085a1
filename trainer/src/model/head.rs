//! The head: logits, cross-entropy and their gradients, a slice of tokens at a time.
//! Full logits are never held: a microbatch of 16 x 512 tokens over 50,000 words would be 1.6 GB a copy.

use tch::{Kind, Tensor};

use super::{Parameters, names};
use crate::autograd::accumulate;

/// Tokens whose logits exist at once. Fewer would read and write the weight's accumulator too often: 64 rows cost 63 %
/// more at 50,000 words, 1,024 rows 4 %.
const SLICE: i64 = 1024;

/// Projects onto the vocabulary with [`names::HEAD`], or with [`names::EMBEDDING`] when the two are tied.
#[derive(Debug)]
pub struct Head {
    /// Index of the weight in the stage's parameters.
    pub parameter: usize,
}

/// What the head makes of one microbatch in training.
#[derive(Debug)]
pub struct HeadOutput {
    /// Sum of the cross-entropies of the targets that count, in nats.
    pub loss: f64,
    /// d(loss x scale) / d(hidden), of hidden's shape.
    pub gradient: Tensor,
}

impl Head {
    /// Over a stage's parameters.
    pub fn new(tied: bool, parameters: &Parameters) -> Head {
        Head { parameter: parameters.index(if tied { names::EMBEDDING } else { names::HEAD }) }
    }

    /// Loss and gradients of `hidden[rows, length, width]` against `targets[rows * length]` (-100 does not count).
    /// `scale` is 1 / N for the N targets of the whole global batch; the weight's gradient is added to `accumulator`.
    pub fn train(
        &self,
        hidden: &Tensor,
        targets: &Tensor,
        scale: f64,
        parameters: &Parameters,
        accumulator: &Tensor,
    ) -> HeadOutput {
        let weight = &parameters[self.parameter].value;
        let gradient = Tensor::empty_like(hidden);
        let (flat, into) = (flatten(hidden), flatten(&gradient));
        let mut loss = 0.0;
        for (start, length) in slices(flat.size()[0]) {
            let (x, target) = (flat.narrow(0, start, length), targets.narrow(0, start, length));
            let mut slice = Slice::new(&x, &target, weight);
            loss += slice.loss();
            let d_logits = slice.gradient(scale);
            into.narrow(0, start, length).copy_(&d_logits.matmul(weight));
            accumulate(accumulator, &d_logits, &x);
        }
        HeadOutput { loss, gradient }
    }

    /// The loss alone, in nats, summed over the targets that count.
    pub fn evaluate(&self, hidden: &Tensor, targets: &Tensor, parameters: &Parameters) -> f64 {
        let weight = &parameters[self.parameter].value;
        let flat = flatten(hidden);
        let slice =
            |(start, length)| Slice::new(&flat.narrow(0, start, length), &targets.narrow(0, start, length), weight);
        slices(flat.size()[0]).map(|at| slice(at).loss()).sum()
    }

    /// Logits of `hidden[.., width]`: generation needs a row at a time.
    pub fn logits(&self, hidden: &Tensor, parameters: &Parameters) -> Tensor {
        hidden.linear(&parameters[self.parameter].value, None::<Tensor>)
    }
}

fn flatten(x: &Tensor) -> Tensor {
    let width = x.size().last().copied().unwrap_or(1);
    x.view([-1, width])
}

/// `(start, length)` of each slice of `n` tokens.
fn slices(n: i64) -> impl Iterator<Item = (i64, i64)> {
    (0..n).step_by(SLICE as usize).map(move |start| (start, SLICE.min(n - start)))
}

/// The logits of a few tokens on their way from loss to gradient.
struct Slice {
    logits: Tensor,
    log_sum: Tensor,
    counts: Tensor,
    index: Tensor,
}

impl Slice {
    fn new(x: &Tensor, targets: &Tensor, weight: &Tensor) -> Slice {
        let logits = x.matmul(&weight.tr()).to_kind(Kind::Float);
        let log_sum = logits.logsumexp([-1], true);
        let counts = targets.ge(0).to_kind(Kind::Float).unsqueeze(1);
        Slice { logits, log_sum, counts, index: targets.clamp_min(0).unsqueeze(1) }
    }

    fn loss(&self) -> f64 {
        let picked = self.logits.gather(1, &self.index, false);
        ((&self.log_sum - picked) * &self.counts).sum(Kind::Double).double_value(&[])
    }

    /// (softmax - one hot) x scale where the target counts, 0 elsewhere; reuses the logits' memory.
    fn gradient(&mut self, scale: f64) -> Tensor {
        let mut probabilities = self.logits.subtract_(&self.log_sum).exp_();
        let minus_one = Tensor::full_like(&self.log_sum, -1.0);
        let _ = probabilities.scatter_add_(1, &self.index, &minus_one);
        probabilities.g_mul_(&(&self.counts * scale))
    }
}
