//! Defines the time and memory of the actions of a step. F is a forward pass, B a full backward pass, and I and W are
//! the two parts of a split backward pass: the gradient of the input and the gradients of the weights.

/// The number of messages that may wait on a link (the connection between two neighbouring chunks) before a further
/// SEND blocks. Links enforce this limit, and the verifier assumes it.
pub const SENDS_IN_FLIGHT: usize = 2;

/// The costs of one chunk (a group of consecutive layers) per microbatch.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct ChunkCosts {
    /// The seconds of F.
    pub forward_seconds: f64,
    /// The seconds of I. B takes the sum of this time and `backward_weight_seconds`.
    pub backward_input_seconds: f64,
    /// The seconds of W.
    pub backward_weight_seconds: f64,
    /// The bytes that are kept from F until B or I.
    pub activation_bytes: u64,
    /// The bytes that are kept from I until W.
    pub weight_gradient_bytes: u64,
    /// The bytes of weights, gradient accumulators and optimizer moments, with all their copies.
    pub static_bytes: u64,
    /// The maximal number of further bytes that one action holds while it runs.
    pub temporary_bytes: u64,
}

impl ChunkCosts {
    /// Returns the seconds of F, I and W together.
    pub(crate) fn compute_seconds(&self) -> f64 {
        self.forward_seconds + self.backward_input_seconds + self.backward_weight_seconds
    }
}

/// The costs of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// The costs of each chunk. Chunks beyond the list cost nothing.
    pub chunks: Vec<ChunkCosts>,
    /// The seconds of transfer per message. A transfer starts when both sides are ready and all earlier messages
    /// between the two chunks have arrived.
    pub link_seconds: f64,
    /// The seconds of EXCHANGE, a barrier of all ranks, after the last rank has reached the barrier.
    pub exchange_seconds: f64,
    /// The seconds of UPDATE.
    pub update_seconds: f64,
    /// For each chunk, the seconds that the replicas of the pipeline take to reduce the chunk's gradients. Chunks
    /// beyond the list take 0 seconds. A rank runs one reduction after another.
    pub reduce_seconds: Vec<f64>,
    /// The seconds to gather the weights of each chunk, with the same rules as `reduce_seconds`.
    pub gather_seconds: Vec<f64>,
    /// The number of messages that may wait on a link, as in [`Limits`](crate::Limits).
    pub sends_in_flight: usize,
}

impl Costs {
    /// Returns uniform costs. In every chunk, the forward pass takes one second. The backward pass takes half a second
    /// for the input and half a second for the weights. Everything else takes no time. The activations of a microbatch
    /// take one byte, and so do the inputs of W, so that peak bytes count work items.
    pub fn uniform(chunks: usize) -> Self {
        let chunk = ChunkCosts {
            forward_seconds: 1.0,
            backward_input_seconds: 0.5,
            backward_weight_seconds: 0.5,
            activation_bytes: 1,
            weight_gradient_bytes: 1,
            static_bytes: 0,
            temporary_bytes: 0,
        };
        Costs {
            chunks: vec![chunk; chunks],
            link_seconds: 0.0,
            exchange_seconds: 0.0,
            update_seconds: 0.0,
            reduce_seconds: Vec::new(),
            gather_seconds: Vec::new(),
            sends_in_flight: SENDS_IN_FLIGHT,
        }
    }

    /// Multiplies the time of every computation of `chunk`.
    pub(crate) fn scale(&mut self, chunk: usize, factor: f64) {
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            chunk.forward_seconds *= factor;
            chunk.backward_input_seconds *= factor;
            chunk.backward_weight_seconds *= factor;
        }
    }

    pub(crate) fn chunk(&self, chunk: usize) -> ChunkCosts {
        self.chunks.get(chunk).copied().unwrap_or_default()
    }
}
