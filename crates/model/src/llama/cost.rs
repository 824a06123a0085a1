//! FLOPs and memory of a Llama's modules, for the partition and the plan.

use stagecoach_api::job::Recompute;
use stagecoach_kernels::packed_bytes;
use stagecoach_pipeline::{ModelCost, ModuleCost};

use super::Llama;
use crate::parameter_spec::activation_bytes;
use crate::{Architecture, MicrobatchCost, ModelPart, ParameterBytes, ParameterSpec, head};

/// The number of multiprocessors of an H100 and of an H200, for the plan of a GPU's memory.
const MULTIPROCESSORS: usize = 132;

/// The number of elements per token that a layer holds, in the dtype of activations.
struct LayerElements {
    /// The number of elements that are kept from the forward to the backward pass.
    kept: usize,
    /// The largest number of elements that the forward or the backward pass holds besides the kept elements.
    temporaries: usize,
}

impl Llama {
    /// Counts the tensors that `DecoderLayer` holds. This function must agree with the code of that layer.
    fn layer_elements(&self, recompute: Recompute) -> LayerElements {
        let c = &self.config;
        let (h, intermediate) = (c.hidden_size, c.intermediate_size);
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let (qkv, gate_up) = (q + 2 * kv, 2 * intermediate);
        // the kept tensors are x, qkv, attention, h and gate_up; the forward pass also holds the outputs of both norms,
        // of SwiGLU and of the layer
        let all = 2 * h + qkv + q + gate_up;
        // some families transform queries and keys between the projection and the rotation, before the tensors
        // attention, h and gate_up exist
        let step = self.family().qkv.elements(q, kv);
        let forward = (3 * h + intermediate).max((h + step.forward).saturating_sub(h + q + gate_up));
        // The backward pass holds these tensors besides the kept ones. At SwiGLU: dy, the recomputed output of SwiGLU,
        // and the gradient of this output. At the norm after attention: dy, dnormed, dh and normed. At the end, when
        // gate_up and attention are freed: dy, dnormed, dh, dattention, dqkv, and dnormed, dx and normed of the input's
        // norm.
        let at_swiglu = h + 2 * intermediate;
        let at_norm = 4 * h;
        // At the backward pass of the family's transform: dy, dnormed, dh, dattention, dqkv, and the input of
        // attention, whose memory later tensors hardly reuse.
        let at_step = 3 * h + q + qkv + step.backward;
        let at_end = (6 * h + q + qkv).max(at_step);
        let (kept, temporaries) = match recompute {
            Recompute::None => (all, forward.max(at_swiglu).max(at_norm).max((at_end - q).saturating_sub(gate_up))),
            // the sum includes the tensors that the forward pass frees between kept tensors, because later tensors
            // hardly reuse their memory
            Recompute::Selective => (
                2 * h + q,
                (forward + qkv + gate_up).max(at_swiglu + gate_up).max(at_norm + gate_up).max(at_end - q + qkv)
                    + (qkv + gate_up),
            ),
            // dy stays in memory during the second forward pass
            Recompute::Full => {
                (h, (all - h) + (h + forward).max(at_swiglu).max(at_norm).max((at_end - q).saturating_sub(gate_up)))
            }
        };
        LayerElements { kept, temporaries }
    }

    pub(super) fn model_cost(&self, microbatch: MicrobatchCost) -> ModelCost {
        let element = activation_bytes(microbatch.precision) as usize;
        ModelCost {
            embedding: self.embedding_cost(microbatch, element),
            layers: (0..self.config.num_hidden_layers)
                .map(|layer| self.layer_cost(layer, microbatch, element))
                .collect(),
            head: self.head_cost(microbatch, element),
            boundary_bytes: (element * microbatch.tokens * self.config.hidden_size) as u64,
            ranks: Vec::new(),
        }
    }

    /// Returns the cost of a decoder layer, whose activations have `element` bytes each.
    fn layer_cost(&self, layer: usize, microbatch: MicrobatchCost, element: usize) -> ModuleCost {
        let MicrobatchCost { tokens, length, recompute, on_gpu, .. } = microbatch;
        let c = &self.config;
        let (h, intermediate, t) = (c.hidden_size, c.intermediate_size, tokens as f64);
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let (qkv, gate_up) = (h * (q + 2 * kv), 2 * h * intermediate);
        let matrices = (qkv + h * q + gate_up + h * intermediate) as f64;
        // causal attention: a query attends to half of the keys on average, for scores and for values; a multiply-add
        // is 2 FLOPs
        let attention = (length * q) as f64;
        let forward = 2.0 * t * (matrices + attention);
        // FLOPs of the operations that the backward pass recomputes
        let again = match recompute {
            Recompute::None => 0.0,
            Recompute::Selective => 2.0 * t * (qkv + gate_up) as f64,
            Recompute::Full => forward,
        };
        let statistics = 4 * (c.num_attention_heads + 2);
        let LayerElements { kept, temporaries } = self.layer_elements(recompute);
        let parameters = self.parameter_bytes(&self.layer_specs(layer), microbatch);
        ModuleCost {
            name: format!("model.layers.{layer}"),
            forward,
            backward_input: 2.0 * t * (matrices + 2.0 * attention) + again,
            backward_weight: 2.0 * t * matrices,
            parameter_bytes: parameters.total(),
            copied_bytes: parameters.memory_checkpoints,
            activation_bytes: (tokens * (element * kept + statistics)) as u64,
            // the input of each product, and the gradient of its output
            weight_gradient_bytes: (tokens * element * (4 * h + 3 * intermediate + 2 * q + 2 * kv)) as u64,
            temporary_bytes: (tokens * element * temporaries
                + match on_gpu {
                    true => self.gpu_attention_bytes(tokens, length, element),
                    false => packed_bytes(h.max(intermediate), 2 * intermediate, element),
                }) as u64,
        }
    }

    /// Returns the bytes that the backward pass of attention holds on a GPU besides its operands and results. In bf16,
    /// flash attention sums the gradient of queries in fp32 and in a fixed order. The sum has enough parts to occupy
    /// all multiprocessors. With grouped-query attention, flash attention also holds gradients of keys and values for
    /// each query head. In fp32, attention holds the scores, the probabilities and their gradients of all sequences.
    fn gpu_attention_bytes(&self, tokens: usize, length: usize, element: usize) -> usize {
        let c = &self.config;
        let q = c.num_attention_heads * c.head_dim;
        if element == 4 {
            return 3 * 4 * tokens * length * c.num_attention_heads;
        }
        let parts = MULTIPROCESSORS.div_ceil((tokens / length.max(1)).max(1) * c.num_attention_heads);
        let expanded = if c.num_attention_heads == c.num_key_value_heads { 0 } else { 2 * element };
        tokens * q * (4 * parts + expanded)
    }

    fn embedding_cost(&self, microbatch: MicrobatchCost, element: usize) -> ModuleCost {
        let (tokens, h) = (microbatch.tokens, self.config.hidden_size);
        let part = ModelPart { layers: 0..0, has_embedding: true, has_head: false };
        let parameters = self.parameter_bytes(&self.weight_specs(&part), microbatch);
        ModuleCost {
            name: "model.embed_tokens".into(),
            forward: 0.0,
            backward_input: 0.0,
            backward_weight: 0.0,
            parameter_bytes: parameters.total(),
            copied_bytes: parameters.memory_checkpoints,
            activation_bytes: (8 * tokens) as u64,
            weight_gradient_bytes: (tokens * (8 + element * h)) as u64,
            // the gradient of the output, and its copy in fp32
            temporary_bytes: (tokens * h * (element + if element == 4 { 0 } else { 4 })) as u64,
        }
    }

    /// Returns the cost of final norm, head and loss. The head computes its backward pass during its forward pass. The
    /// module keeps the norm's input and the gradient of the norm's output.
    fn head_cost(&self, microbatch: MicrobatchCost, element: usize) -> ModuleCost {
        let (tokens, h, vocab_size) = (microbatch.tokens, self.config.hidden_size, self.config.vocab_size);
        let part = ModelPart { layers: 0..0, has_embedding: false, has_head: true };
        let parameters = self.parameter_bytes(&self.weight_specs(&part), microbatch);
        ModuleCost {
            name: "lm_head".into(),
            forward: 6.0 * tokens as f64 * (h * vocab_size) as f64,
            backward_input: 0.0,
            backward_weight: 0.0,
            parameter_bytes: parameters.total(),
            copied_bytes: parameters.memory_checkpoints,
            activation_bytes: (tokens * (element * 2 * h + 4)) as u64,
            weight_gradient_bytes: 0,
            temporary_bytes: (tokens * h * element
                + head::temporary_bytes(tokens, h, vocab_size, element, microbatch.on_gpu))
                as u64,
        }
    }

    /// Returns the bytes of these parameters, without a tied embedding, which is part of a rank's cost.
    fn parameter_bytes(&self, specs: &[ParameterSpec], microbatch: MicrobatchCost) -> ParameterBytes {
        let MicrobatchCost { precision, copies, .. } = microbatch;
        ParameterBytes::of_module(specs, self.config.tie_word_embeddings, precision, copies)
    }
}
