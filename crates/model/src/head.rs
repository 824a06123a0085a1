//! The LM head: logits, cross-entropy and their gradients, one block of tokens at a time. The logits of a whole
//! microbatch never exist at once: with 16 x 512 tokens and a vocabulary of 50,000, they would take 1.6 GB per copy.

use std::cell::RefCell;

use stagecoach_kernels::{self as kernels, CrossEntropy};
use tch::{Device, Kind, Tensor};

use super::linear::Linear;
use super::{Parameters, names};

/// Returns the number of tokens in a block. Only the logits of one block exist at the same time. Each block reads and
/// writes the weight's accumulator once, so smaller blocks take more time. On a CPU with a vocabulary of 50,000, blocks
/// of 64 tokens take 63 % more time than a single block, and blocks of 1,024 tokens take 4 % more. On a GPU (H200, a
/// width of 2,048), the weight's gradients of 8,192 tokens take 3.6 ms in blocks of 1,024 tokens, 2.2 ms in blocks of
/// 4,096 tokens, and 2.1 ms in a single block.
fn block_tokens(on_gpu: bool) -> i64 {
    if on_gpu { 4096 } else { 1024 }
}

/// Projects hidden states onto the vocabulary with [`names::HEAD`], or with [`names::EMBEDDING`] if head and embedding
/// are tied.
#[derive(Debug)]
pub struct Head {
    linear: Linear,
    /// The accumulator of the weight's gradient; `None` for a frozen weight.
    accumulator: Option<Tensor>,
    /// The memory of a block's logits, `f32[tokens, vocab]`, which the head keeps after the first use. This tensor is
    /// often the largest of the stage. If the head freed this memory, the allocator would not always find room for the
    /// next block between other tensors.
    block: RefCell<Option<Tensor>>,
}

/// Returns the peak bytes that [`Head::forward_backward`] holds besides its input and results, with activations of
/// `element` bytes. These are the logits of a block, the gradients of the logits unless they reuse the logits' memory,
/// the gradient of the block's hidden states, and on the CPU the packed operands of matrix products.
pub(super) fn temporary_bytes(tokens: usize, hidden: usize, vocab: usize, element: usize, on_gpu: bool) -> usize {
    let block = tokens.min(block_tokens(on_gpu) as usize);
    let dlogits = if element == 4 { 0 } else { element };
    let packed = if on_gpu { 0 } else { kernels::packed_bytes(hidden, vocab, element) };
    block * vocab * (4 + dlogits) + block * hidden * element + packed
}

/// The cross-entropies of a microbatch, in nats, on the stage's device.
#[derive(Debug)]
pub struct HeadLoss {
    /// The sum of the cross-entropies, `f64[]`.
    pub sum: Tensor,
    /// The cross-entropies of the tokens of each block, `f64[tokens]`; 0 for a token that does not count.
    pub token_losses: Vec<Tensor>,
}

/// The output of the head for one microbatch in training.
#[derive(Debug)]
pub struct HeadOutput {
    /// The cross-entropies of all targets except those with the ignore index.
    pub loss: HeadLoss,
    /// d(loss x scale) / d(hidden), in the shape of hidden.
    pub hidden_gradient: Tensor,
}

impl Head {
    /// Returns the head of a stage with these parameters. The head adds the weight's gradient to `accumulator` or, if
    /// this is `None`, to the parameter's own accumulator.
    pub fn new(tied: bool, parameters: &Parameters, accumulator: Option<&Tensor>) -> Head {
        let linear = parameters.linear(&[if tied { names::EMBEDDING } else { names::HEAD }.to_owned()]);
        let own = linear.gradients.first().map(|gradient| gradient.accumulator.shallow_clone());
        let accumulator = accumulator.map(Tensor::shallow_clone).or(own);
        Head { linear, accumulator, block: RefCell::default() }
    }

    /// Computes the loss and gradients of `hidden[tokens, hidden_size]` and `targets[tokens]` (-100 is the ignore
    /// index). `scale` is 1 / (number of targets in the global batch). The weight's gradient is accumulated
    /// immediately.
    pub fn forward_backward(&self, hidden: &Tensor, targets: &Tensor, scale: f64) -> HeadOutput {
        let hidden_gradient = hidden.empty_like();
        let mut loss = HeadLoss::zero(hidden.device());
        for (start, length) in blocks(hidden) {
            let x = hidden.narrow(0, start, length);
            let (block_loss, dlogits) = kernels::cross_entropy_with_gradient(
                self.block_logits(&x),
                &targets.narrow(0, start, length),
                scale,
                hidden.kind(),
            );
            loss.add(block_loss);
            hidden_gradient.narrow(0, start, length).copy_(&self.linear.backward(&dlogits));
            if let Some(accumulator) = &self.accumulator {
                kernels::accumulate_linear(accumulator, &dlogits, &x);
            }
        }
        HeadOutput { loss, hidden_gradient }
    }

    /// Computes the loss without gradients.
    pub fn loss(&self, hidden: &Tensor, targets: &Tensor) -> HeadLoss {
        let mut loss = HeadLoss::zero(hidden.device());
        for (start, length) in blocks(hidden) {
            let logits = self.block_logits(&hidden.narrow(0, start, length));
            let block_loss = kernels::cross_entropy(&logits, &targets.narrow(0, start, length));
            loss.add(block_loss);
        }
        loss
    }

    /// Computes the logits of a block, `f32[tokens, vocab]`, in the memory that all blocks share. The logits are valid
    /// until the next call.
    fn block_logits(&self, hidden: &Tensor) -> Tensor {
        let tokens = hidden.size()[0];
        let mut block = self.block.borrow_mut();
        drop(block.take_if(|memory| memory.size()[0] < tokens)); // frees a smaller block before the allocation
        let logits = block.get_or_insert_with(|| self.empty_logits(tokens)).narrow(0, 0, tokens);
        self.linear.forward_to_float(hidden, &logits);
        logits
    }

    /// Computes the logits, `f32[tokens, vocab]`.
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        let logits = self.empty_logits(hidden.size()[0]);
        self.linear.forward_to_float(hidden, &logits);
        logits
    }

    fn empty_logits(&self, tokens: i64) -> Tensor {
        Tensor::empty([tokens, self.linear.weight.size()[0]], (Kind::Float, self.linear.weight.device()))
    }
}

impl HeadLoss {
    fn zero(device: Device) -> HeadLoss {
        HeadLoss { sum: Tensor::zeros([0i64; 0], (Kind::Double, device)), token_losses: Vec::new() }
    }

    fn add(&mut self, block: CrossEntropy) {
        self.sum += block.sum;
        self.token_losses.push(block.row_losses);
    }
}

/// Returns `(start, length)` of each block of tokens.
fn blocks(hidden: &Tensor) -> impl Iterator<Item = (i64, i64)> + use<> {
    let (tokens, block) = (hidden.size()[0], block_tokens(hidden.device().is_cuda()));
    (0..tokens).step_by(block as usize).map(move |start| (start, block.min(tokens - start)))
}
