//! The time and memory of the actions of a step.

/// The number of messages that may wait on a link before a further SEND blocks. Links enforce it, and the verifier
/// assumes it.
pub const SENDS_IN_FLIGHT: usize = 2;

/// Costs of one chunk per microbatch.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct ChunkCosts {
    /// Seconds of F.
    pub forward_seconds: f64,
    /// Seconds of I. B takes this and `backward_weight_seconds`.
    pub backward_input_seconds: f64,
    /// Seconds of W.
    pub backward_weight_seconds: f64,
    /// Bytes kept from F until B or I.
    pub activation_bytes: u64,
    /// Bytes kept from I until W.
    pub weight_gradient_bytes: u64,
    /// Bytes of weights, gradient accumulators and optimizer moments, with every copy of them.
    pub static_bytes: u64,
    /// The maximal number of further bytes that one action holds while it runs.
    pub temporary_bytes: u64,
}

impl ChunkCosts {
    /// Seconds of F, I and W.
    pub(crate) fn compute_seconds(&self) -> f64 {
        self.forward_seconds + self.backward_input_seconds + self.backward_weight_seconds
    }
}

/// Costs of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// One entry per chunk; chunks beyond the list cost nothing.
    pub chunks: Vec<ChunkCosts>,
    /// Seconds of transfer per message, which starts when both sides are ready and earlier messages of the edge have
    /// arrived.
    pub link_seconds: f64,
    /// Seconds of EXCHANGE after the last rank has reached it.
    pub exchange_seconds: f64,
    /// Seconds of UPDATE.
    pub update_seconds: f64,
    /// Seconds to reduce a chunk's gradients, by chunk; 0 for chunks beyond the list. The reductions of a rank follow
    /// one another.
    pub reduce_seconds: Vec<f64>,
    /// Seconds to gather a chunk's weights, in the same way.
    pub gather_seconds: Vec<f64>,
    /// See [`Limits`](crate::Limits).
    pub sends_in_flight: usize,
}

impl Costs {
    /// Uniform costs: in every chunk, the forward and the backward take one second each (the backward half a second for
    /// the input and half for the weights), and everything else takes no time. Activations are one byte, and so are the
    /// inputs of W, so peak bytes count work items.
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

    /// Multiplies the time of every action of `chunk`.
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
