//! Llama (Touvron et al. 2023) with Hugging Face's names and shapes: grouped-query attention, rotary position
//! embedding, RMSNorm before each block, SwiGLU. Qwen 2 and 3 are the same, with biases or with norms in their
//! attention.

mod cost;
mod operations;

use std::rc::Rc;

use stagecoach_api::job::ModelType;
use stagecoach_kernels::Heads;
use stagecoach_pipeline::ModelCost;

use super::config::LlamaConfig;
use super::decoder_layer::DecoderLayer;
use super::head_norms::HeadNorms;
use super::initializer::Initializer;
use super::rms_norm::RmsNorm;
use super::rotary::RotaryEmbedding;
use super::{Architecture, Layer, MicrobatchCost, ModelOperations, ModelPart, ParameterSpec, Parameters, names};

/// The Llama architecture, or one of its variants by its configuration, on a device.
#[derive(Debug)]
pub struct Llama {
    config: LlamaConfig,
    device: tch::Device,
}

impl Llama {
    /// Creates the architecture without allocations; [`Architecture::build_layers`] allocates.
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
        self.model_cost(microbatch)
    }

    fn operations(&self, microbatch: MicrobatchCost) -> ModelOperations {
        self.model_operations(microbatch)
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
            config["attention_bias"] = false.into(); // a Qwen 2 always has its biases
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
