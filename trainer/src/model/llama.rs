//! Llama (Touvron et al. 2023) with Hugging Face's names and shapes: grouped-query attention, rotary position embedding,
//! RMSNorm before each block, SwiGLU. Qwen 2 and 3 have the same, with biases or with norms in their attention.

use std::rc::Rc;

use stagecoach_api::job::{ModelType, Precision, Recompute};
use stagecoach_pipeline::{ModelCost, ModuleCost};

use super::config::LlamaConfig;
use super::decoder_layer::DecoderLayer;
use super::head_norms::HeadNorms;
use super::initializer::Initializer;
use super::rms_norm::RmsNorm;
use super::rotary::RotaryEmbedding;
use super::{Architecture, Layer, MicrobatchCost, ModelPart, ParameterBytes, ParameterSpec, Parameters, head, names};
use crate::kernels::{Heads, packed_bytes};

/// The Llama architecture, or one that its configuration makes of it, on a device.
#[derive(Debug)]
pub struct Llama {
    config: LlamaConfig,
    device: tch::Device,
}

impl Llama {
    /// Allocates nothing; [`Architecture::build_layers`] does.
    pub fn new(config: LlamaConfig, device: tch::Device) -> Llama {
        Llama { config, device }
    }

    fn matrix_spec(&self, name: String, rows: usize, columns: usize) -> ParameterSpec {
        let initializer = Initializer::Normal(self.config.initializer_range);
        let shape = vec![rows as i64, columns as i64];
        ParameterSpec { name, shape, initializer, has_weight_decay: true, adjacent_to_previous: false }
    }

    fn vector_spec(&self, name: String, width: usize, initializer: Initializer) -> ParameterSpec {
        let shape = vec![width as i64];
        ParameterSpec { name, shape, initializer, has_weight_decay: false, adjacent_to_previous: false }
    }

    fn norm_spec(&self, name: String) -> ParameterSpec {
        self.vector_spec(name, self.config.hidden_size, Initializer::Ones)
    }

    fn layer_specs(&self, layer: usize) -> Vec<ParameterSpec> {
        let c = &self.config;
        let name = |module: &str| weight_name(layer, module);
        let (h, q, kv) = (c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let adjacent = |spec| ParameterSpec { adjacent_to_previous: true, ..spec };
        let bias = |module: &str, rows| self.vector_spec(bias_name(layer, module), rows, Initializer::Zeros);
        let head_norm = |module: &str| self.vector_spec(name(module), c.head_dim, Initializer::Ones);
        let attention = match c.model_type {
            ModelType::Llama => vec![],
            ModelType::Qwen2 => vec![bias(QKV[0], q), adjacent(bias(QKV[1], kv)), adjacent(bias(QKV[2], kv))],
            ModelType::Qwen3 => vec![head_norm(Q_NORM), head_norm(K_NORM)],
        };
        let mut specs = vec![
            self.norm_spec(name("input_layernorm")),
            self.matrix_spec(name(QKV[0]), q, h),
            adjacent(self.matrix_spec(name(QKV[1]), kv, h)),
            adjacent(self.matrix_spec(name(QKV[2]), kv, h)),
        ];
        specs.extend(attention);
        specs.extend([
            self.matrix_spec(name("self_attn.o_proj"), h, q),
            self.norm_spec(name("post_attention_layernorm")),
            self.matrix_spec(name("mlp.gate_proj"), c.intermediate_size, h),
            adjacent(self.matrix_spec(name("mlp.up_proj"), c.intermediate_size, h)),
            self.matrix_spec(name("mlp.down_proj"), h, c.intermediate_size),
        ]);
        specs
    }
}

const FINAL_NORM: &str = "model.norm.weight";
/// Modules of a layer that are computed together.
const QKV: [&str; 3] = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
const Q_NORM: &str = "self_attn.q_norm";
const K_NORM: &str = "self_attn.k_norm";

fn weight_name(layer: usize, module: &str) -> String {
    format!("model.layers.{layer}.{module}.weight")
}

fn bias_name(layer: usize, module: &str) -> String {
    format!("model.layers.{layer}.{module}.bias")
}

/// Elements of a token, of the type of activations.
struct LayerElements {
    /// Kept from forward to backward.
    kept: usize,
    /// The most that forward or backward holds besides.
    temporaries: usize,
}

impl Llama {
    /// What `DecoderLayer` holds: the one place beside it that knows its tensors.
    fn layer_elements(&self, recompute: Recompute) -> LayerElements {
        let c = &self.config;
        let (h, intermediate) = (c.hidden_size, c.intermediate_size);
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let (qkv, gate_up) = (q + 2 * kv, 2 * intermediate);
        // x, qkv, attention, h and gate_up; besides them forward has both norms' outputs, SwiGLU's and the layer's
        let all = 2 * h + qkv + q + gate_up;
        // with norms of heads, queries, keys and values are there twice, and those of one kind once more before and behind
        // its norm, when there is neither h nor gate_up yet
        let normed = if c.model_type == ModelType::Qwen3 { qkv } else { 0 };
        let at_norms = if normed > 0 { (h + normed + 2 * q).saturating_sub(h + q + gate_up) } else { 0 };
        let forward = (3 * h + intermediate).max(at_norms);
        // Backward, besides what is kept: at SwiGLU dy and the gradient of its output with that output again; at the norm
        // behind it dy, dnormed, dh and normed; at the end these without normed, dattention, dqkv, and dnormed, dx and normed of the
        // input's norm, when gate_up and attention are gone.
        let at_swiglu = h + 2 * intermediate;
        let at_norm = 4 * h;
        // In the backward pass of heads' norms there are dy, dnormed, dh, dattention, dqkv, and of one kind what the norm
        // read and its gradients; and what attention read, of whose memory little is used again.
        let at_heads = if normed > 0 { 3 * h + q + qkv + normed + 4 * q } else { 0 };
        let at_end = (6 * h + q + qkv).max(at_heads);
        let (kept, temporaries) = match recompute {
            Recompute::None => (all, forward.max(at_swiglu).max(at_norm).max((at_end - q).saturating_sub(gate_up))),
            // once more what forward frees between tensors that stay: of that, little is used again
            Recompute::Selective => (
                2 * h + q,
                (forward + qkv + gate_up).max(at_swiglu + gate_up).max(at_norm + gate_up).max(at_end - q + qkv)
                    + (qkv + gate_up),
            ),
            // dy waits while forward runs again
            Recompute::Full => {
                (h, (all - h) + (h + forward).max(at_swiglu).max(at_norm).max((at_end - q).saturating_sub(gate_up)))
            }
        };
        LayerElements { kept, temporaries }
    }
}

impl Architecture for Llama {
    fn num_layers(&self) -> usize {
        self.config.num_hidden_layers
    }

    fn hidden_size(&self) -> usize {
        self.config.hidden_size
    }

    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn tie_word_embeddings(&self) -> bool {
        self.config.tie_word_embeddings
    }

    fn parameter_specs(&self, part: &ModelPart) -> Vec<ParameterSpec> {
        let c = &self.config;
        let embedding = || ParameterSpec {
            has_weight_decay: false,
            ..self.matrix_spec(names::EMBEDDING.into(), c.vocab_size, c.hidden_size)
        };
        let mut specs = Vec::new();
        if part.has_embedding {
            specs.push(embedding());
        }
        specs.extend(part.layers.clone().flat_map(|layer| self.layer_specs(layer)));
        if part.has_head {
            specs.push(self.norm_spec(FINAL_NORM.into()));
            specs.push(match self.tie_word_embeddings() {
                true => embedding(),
                false => self.matrix_spec(names::HEAD.into(), c.vocab_size, c.hidden_size),
            });
        }
        specs
    }

    fn build_layers(&self, part: &ModelPart, parameters: &Parameters) -> Vec<Rc<dyn Layer>> {
        let c = &self.config;
        let rotary = Rc::new(RotaryEmbedding::new(
            c.head_dim,
            c.rope_theta,
            c.rope_scaling,
            c.max_position_embeddings,
            self.device,
        ));
        let heads = Heads {
            heads: c.num_attention_heads as i64,
            kv_heads: c.num_key_value_heads as i64,
            head_dim: c.head_dim as i64,
        };
        let decoder_layer = |layer: usize| -> Rc<dyn Layer> {
            let name = |module: &str| weight_name(layer, module);
            let linear = |modules: &[&str]| parameters.linear(&modules.iter().map(|m| name(m)).collect::<Vec<_>>());
            let norm = |module: &str| RmsNorm::new(parameters.get(&name(module)), c.rms_norm_eps);
            Rc::new(DecoderLayer {
                input_layernorm: norm("input_layernorm"),
                qkv_proj: linear(&QKV),
                qkv_bias: (c.model_type == ModelType::Qwen2)
                    .then(|| parameters.bias(&QKV.map(|module| bias_name(layer, module)))),
                head_norms: (c.model_type == ModelType::Qwen3)
                    .then(|| HeadNorms { query: norm(Q_NORM), key: norm(K_NORM) }),
                rotary: rotary.clone(),
                heads,
                o_proj: linear(&["self_attn.o_proj"]),
                post_attention_layernorm: norm("post_attention_layernorm"),
                gate_up_proj: linear(&["mlp.gate_proj", "mlp.up_proj"]),
                down_proj: linear(&["mlp.down_proj"]),
            })
        };
        let mut layers: Vec<Rc<dyn Layer>> = part.layers.clone().map(decoder_layer).collect();
        if part.has_head {
            layers.push(Rc::new(RmsNorm::new(parameters.get(FINAL_NORM), c.rms_norm_eps)));
        }
        layers
    }

    fn cost(&self, microbatch: MicrobatchCost) -> ModelCost {
        let MicrobatchCost { tokens, length, precision, recompute, copies } = microbatch;
        let c = &self.config;
        let (h, intermediate, t) = (c.hidden_size, c.intermediate_size, tokens as f64);
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let element = match precision {
            Precision::Float32 => 4,
            Precision::BFloat16 => 2,
        };
        let numel = |specs: &[ParameterSpec]| {
            let is_shared = |spec: &ParameterSpec| c.tie_word_embeddings && spec.name == names::EMBEDDING;
            specs.iter().filter(|spec| !is_shared(spec)).map(ParameterSpec::numel).sum()
        };
        let bytes = |specs: &[ParameterSpec]| ParameterBytes::of(numel(specs), precision, copies);
        let (qkv, gate_up) = (h * (q + 2 * kv), 2 * h * intermediate);
        let matrices = (qkv + h * q + gate_up + h * intermediate) as f64;
        // causal: a query attends to half of the keys on average; scores and values, a multiply-add is 2 FLOPs
        let attention = (length * q) as f64;
        let forward = 2.0 * t * (matrices + attention);
        let statistics = 4 * (c.num_attention_heads + 2);
        let LayerElements { kept, temporaries } = self.layer_elements(recompute);
        // FLOPs that a layer computes again in backward
        let again = match recompute {
            Recompute::None => 0.0,
            Recompute::Selective => 2.0 * t * (qkv + gate_up) as f64,
            Recompute::Full => forward,
        };
        let part = |has_embedding, has_head| ModelPart { layers: 0..0, has_embedding, has_head };
        let layers = (0..c.num_hidden_layers).map(|layer| ModuleCost {
            name: format!("model.layers.{layer}"),
            forward,
            backward_input: 2.0 * t * (matrices + 2.0 * attention) + again,
            backward_weight: 2.0 * t * matrices,
            parameter_bytes: bytes(&self.layer_specs(layer)).total(),
            copied_bytes: bytes(&self.layer_specs(layer)).memory_checkpoints,
            activation_bytes: (tokens * (element * kept + statistics)) as u64,
            // input and output's gradient of each product
            weight_gradient_bytes: (tokens * element * (4 * h + 3 * intermediate + 2 * q + 2 * kv)) as u64,
            temporary_bytes: (tokens * element * temporaries
                + packed_bytes(h.max(intermediate), 2 * intermediate, element)) as u64,
        });
        ModelCost {
            embedding: ModuleCost {
                name: "model.embed_tokens".into(),
                forward: 0.0,
                backward_input: 0.0,
                backward_weight: 0.0,
                parameter_bytes: bytes(&self.parameter_specs(&part(true, false))).total(),
                copied_bytes: bytes(&self.parameter_specs(&part(true, false))).memory_checkpoints,
                activation_bytes: (8 * tokens) as u64,
                weight_gradient_bytes: (tokens * (8 + element * h)) as u64,
                // the output's gradient, and the same in fp32
                temporary_bytes: (tokens * h * (element + if element == 4 { 0 } else { 4 })) as u64,
            },
            layers: layers.collect(),
            // The head computes its backward in its forward. Kept are the norm's input, and its output's gradient.
            head: ModuleCost {
                name: "lm_head".into(),
                forward: 6.0 * t * (h * c.vocab_size) as f64,
                backward_input: 0.0,
                backward_weight: 0.0,
                parameter_bytes: bytes(&self.parameter_specs(&part(false, true))).total(),
                copied_bytes: bytes(&self.parameter_specs(&part(false, true))).memory_checkpoints,
                activation_bytes: (tokens * (element * 2 * h + 4)) as u64,
                weight_gradient_bytes: 0,
                temporary_bytes: (tokens * h * element + head::temporary_bytes(tokens, h, c.vocab_size, element))
                    as u64,
            },
            boundary_bytes: (element * tokens * h) as u64,
            ranks: Vec::new(),
        }
    }

    fn chunk_bytes(&self) -> u64 {
        RotaryEmbedding::bytes(self.config.head_dim, self.config.max_position_embeddings) as u64
    }

    fn config_json(&self) -> serde_json::Value {
        let model_type = self.config.model_type;
        let mut config = serde_json::json!({
            "architectures": [format!("{model_type}ForCausalLM")],
            "hidden_act": "silu",
            "torch_dtype": "float32",
        });
        if model_type != ModelType::Qwen2 {
            config["attention_bias"] = false.into(); // a Qwen 2 always has those that it has
        }
        if model_type == ModelType::Llama {
            config["mlp_bias"] = false.into();
        }
        if let (Some(all), Ok(serde_json::Value::Object(own))) =
            (config.as_object_mut(), serde_json::to_value(&self.config))
        {
            all.extend(own);
        }
        config
    }
}
