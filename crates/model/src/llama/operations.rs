//! The operations of a Llama's modules on a GPU, in bf16. The planner predicts times from these operations.

use super::Llama;
use crate::{MicrobatchCost, ModelOperations, Operation, OperationKind, Pass};

/// Bytes of one element of an activation in bf16.
const ACTIVATION_BYTES: f64 = 2.0;
/// Bytes that a kernel reads and writes per element when it adds to an fp32 accumulator.
const ACCUMULATION_BYTES: f64 = 8.0;

/// FLOPs of a multiply-add.
const FLOPS_PER_MULTIPLY_ADD: f64 = 2.0;

impl Llama {
    pub(super) fn model_operations(&self, microbatch: MicrobatchCost) -> ModelOperations {
        let (t, h) = (microbatch.tokens as f64, self.config.hidden_size as f64);
        let vocab = self.config.vocab_size as f64;
        let mut head = product("head", t, h, vocab).to_vec();
        head.push(moved("norms", Pass::Forward, (2.0 + 5.0) * ACTIVATION_BYTES * t * h));
        // the kernel writes the logits in fp32, reads them twice, and writes their gradients
        head.push(moved("loss", Pass::Forward, (3.0 * 4.0 + ACTIVATION_BYTES) * t * vocab));
        for operation in &mut head {
            operation.pass = Pass::Forward; // the head computes its gradients in its forward pass
        }
        ModelOperations {
            embedding: vec![
                moved("embedding", Pass::Forward, 2.0 * ACTIVATION_BYTES * t * h),
                moved("embedding", Pass::BackwardWeight, (ACTIVATION_BYTES + ACCUMULATION_BYTES) * t * h),
            ],
            layer: self.layer_operations(t, microbatch.length as f64),
            head,
        }
    }

    fn layer_operations(&self, t: f64, length: f64) -> Vec<Operation> {
        let c = &self.config;
        let (h, intermediate) = (c.hidden_size as f64, c.intermediate_size as f64);
        let heads = [c.num_attention_heads, c.num_key_value_heads].map(|heads| (heads * c.head_dim) as f64);
        let [q, kv] = heads;
        let selective = |operation| Operation { is_selective: true, ..operation };
        let products = [
            product("qkv", t, h, q + 2.0 * kv).map(selective),
            product("output", t, q, h),
            product("gate and up", t, h, 2.0 * intermediate).map(selective),
            product("down", t, intermediate, h),
        ];
        // the two products are the scores and the weighted sums of values; with a causal mask, a query attends to half
        // of the keys on average
        let attention = FLOPS_PER_MULTIPLY_ADD * t * length * q;
        let rotated = 2.0 * ACTIVATION_BYTES * t * (q + kv);
        let mut operations: Vec<Operation> = products.into_iter().flatten().collect();
        operations.extend([
            Operation { kind: OperationKind::Attention, ..computed("attention", Pass::Forward, attention) },
            // the backward pass has five products where the forward pass has two
            Operation {
                kind: OperationKind::AttentionBackward,
                ..computed("attention", Pass::BackwardInput, 2.5 * attention)
            },
            selective(moved("norms", Pass::Forward, 2.0 * 2.0 * ACTIVATION_BYTES * t * h)),
            moved("norms", Pass::BackwardInput, 2.0 * 5.0 * ACTIVATION_BYTES * t * h),
            selective(moved("rotary", Pass::Forward, rotated)),
            // this operation also copies the gradients of queries, keys and values into one contiguous tensor
            moved("rotary", Pass::BackwardInput, 2.0 * ACTIVATION_BYTES * t * (q + 2.0 * kv)),
            moved("SwiGLU", Pass::Forward, 3.0 * ACTIVATION_BYTES * t * intermediate),
            moved("SwiGLU", Pass::BackwardInput, 6.0 * ACTIVATION_BYTES * t * intermediate),
        ]);
        operations
    }
}

/// Returns the product of a linear layer, and the products for the gradients of its input and of its weight. The last
/// product adds to an accumulator.
fn product(name: &'static str, tokens: f64, inputs: f64, outputs: f64) -> [Operation; 3] {
    let flops = FLOPS_PER_MULTIPLY_ADD * tokens * inputs * outputs;
    let activations = ACTIVATION_BYTES * tokens * (inputs + outputs);
    let product = |pass, weight_bytes: f64| Operation {
        bytes: activations + weight_bytes * inputs * outputs,
        ..computed(name, pass, flops)
    };
    [
        product(Pass::Forward, ACTIVATION_BYTES),
        product(Pass::BackwardInput, ACTIVATION_BYTES),
        product(Pass::BackwardWeight, ACCUMULATION_BYTES),
    ]
}

fn computed(name: &'static str, pass: Pass, flops: f64) -> Operation {
    Operation { name, pass, kind: OperationKind::Product, is_selective: false, flops, bytes: 0.0 }
}

fn moved(name: &'static str, pass: Pass, bytes: f64) -> Operation {
    Operation { name, pass, kind: OperationKind::Elementwise, is_selective: false, flops: 0.0, bytes }
}
