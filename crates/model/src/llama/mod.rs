//! Llama (Touvron et al. 2023) with Hugging Face's names and shapes: grouped-query attention, rotary position
//! embedding, RMSNorm before each block, SwiGLU. The families of Llama differ in the defaults of their `config.json`,
//! or in the transform of queries, keys and values before the rotation.

mod config;
mod config_json;
mod cost;
mod decoder_layer;
mod families;
mod operations;
mod qkv;

use std::rc::Rc;

use stagecoach_kernels::Heads;
use stagecoach_pipeline::ModelCost;

pub use config::LlamaConfig;
pub(crate) use families::FAMILIES;

use crate::initializer::Initializer;
use crate::rms_norm::RmsNorm;
use crate::rotary::RotaryEmbedding;
use crate::{Architecture, Layer, MicrobatchCost, ModelOperations, ModelPart, ParameterSpec, Parameters, names};
use decoder_layer::DecoderLayer;
use families::LlamaFamily;

/// The architecture of a model of Llama's families, on a device.
#[derive(Debug)]
struct Llama {
    config: LlamaConfig,
    device: tch::Device,
}

impl Llama {
    fn family(&self) -> LlamaFamily {
        LlamaFamily::of(self.config.model_type)
    }

    fn matrix_spec(&self, name: String, rows: usize, columns: usize) -> ParameterSpec {
        ParameterSpec::matrix(name, rows, columns, self.config.initializer_range)
    }

    fn norm_spec(&self, name: String) -> ParameterSpec {
        ParameterSpec::vector(name, self.config.hidden_size, Initializer::Ones)
    }

    fn layer_specs(&self, layer: usize) -> Vec<ParameterSpec> {
        let c = &self.config;
        let name = |module: &str| parameter_name(layer, module, "weight");
        let (h, q, kv) = (c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let mut specs = vec![
            self.norm_spec(name("input_layernorm")),
            self.matrix_spec(name(QKV[0]), q, h),
            self.matrix_spec(name(QKV[1]), kv, h).adjacent(),
            self.matrix_spec(name(QKV[2]), kv, h).adjacent(),
        ];
        specs.extend(self.family().qkv.parameter_specs(c, layer));
        specs.extend([
            self.matrix_spec(name("self_attn.o_proj"), h, q),
            self.norm_spec(name("post_attention_layernorm")),
            self.matrix_spec(name("mlp.gate_proj"), c.intermediate_size, h),
            self.matrix_spec(name("mlp.up_proj"), c.intermediate_size, h).adjacent(),
            self.matrix_spec(name("mlp.down_proj"), h, c.intermediate_size),
        ]);
        specs
    }
}

const FINAL_NORM: &str = "model.norm.weight";
/// The modules of a layer that one product computes together.
const QKV: [&str; 3] = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];

fn parameter_name(layer: usize, module: &str, parameter: &str) -> String {
    format!("model.layers.{layer}.{module}.{parameter}")
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

    fn weight_specs(&self, part: &ModelPart) -> Vec<ParameterSpec> {
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
            let name = |module: &str| parameter_name(layer, module, "weight");
            let linear = |modules: &[&str]| parameters.linear(&modules.iter().map(|m| name(m)).collect::<Vec<_>>());
            let norm = |module: &str| RmsNorm::new(parameters.get(&name(module)), c.rms_norm_eps);
            Rc::new(DecoderLayer {
                input_layernorm: norm("input_layernorm"),
                qkv_proj: linear(&QKV),
                qkv_transform: self.family().qkv.build(c, layer, parameters),
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
        self.config.to_json()
    }
}
