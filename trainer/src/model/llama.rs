//! Llama (Touvron et al. 2023) with Hugging Face's names and shapes: grouped-query attention, rotary position embedding,
//! RMSNorm before each block, SwiGLU.

use std::rc::Rc;

use stagecoach_pipeline::{ModelCost, ModuleCost};
use tch::Tensor;

use super::config::LlamaConfig;
use super::initializer::Initializer;
use super::rotary::RotaryEmbedding;
use super::{Architecture, ForwardContext, Layer, ModelPart, ParameterSpec, Parameters, names};
use crate::autograd::{self, rms_norm};

/// The Llama architecture on a device.
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
        ParameterSpec { name, shape: vec![rows as i64, columns as i64], initializer, has_weight_decay: true }
    }

    fn norm_spec(&self, name: String) -> ParameterSpec {
        let (shape, initializer) = (vec![self.config.hidden_size as i64], Initializer::Ones);
        ParameterSpec { name, shape, initializer, has_weight_decay: false }
    }

    fn layer_specs(&self, layer: usize) -> Vec<ParameterSpec> {
        let c = &self.config;
        let name = |module: &str| format!("model.layers.{layer}.{module}.weight");
        let (h, q, kv) = (c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        vec![
            self.norm_spec(name("input_layernorm")),
            self.matrix_spec(name("self_attn.q_proj"), q, h),
            self.matrix_spec(name("self_attn.k_proj"), kv, h),
            self.matrix_spec(name("self_attn.v_proj"), kv, h),
            self.matrix_spec(name("self_attn.o_proj"), h, q),
            self.norm_spec(name("post_attention_layernorm")),
            self.matrix_spec(name("mlp.gate_proj"), c.intermediate_size, h),
            self.matrix_spec(name("mlp.up_proj"), c.intermediate_size, h),
            self.matrix_spec(name("mlp.down_proj"), h, c.intermediate_size),
        ]
    }
}

const FINAL_NORM: &str = "model.norm.weight";

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

    fn build_layers(&self, part: &ModelPart, parameters: &Parameters) -> Vec<Box<dyn Layer>> {
        let c = &self.config;
        let rotary = Rc::new(RotaryEmbedding::new(c.head_dim, c.rope_theta, c.max_position_embeddings, self.device));
        let mut layers: Vec<Box<dyn Layer>> = Vec::new();
        for layer in part.layers.clone() {
            let index = |module: &str| parameters.index(&format!("model.layers.{layer}.{module}.weight"));
            layers.push(Box::new(DecoderLayer {
                input_layernorm: RmsNorm { parameter: index("input_layernorm"), eps: c.rms_norm_eps },
                self_attn: Attention {
                    q_proj: index("self_attn.q_proj"),
                    k_proj: index("self_attn.k_proj"),
                    v_proj: index("self_attn.v_proj"),
                    o_proj: index("self_attn.o_proj"),
                    head_dim: c.head_dim as i64,
                    num_key_value_groups: (c.num_attention_heads / c.num_key_value_heads) as i64,
                    rotary: rotary.clone(),
                },
                post_attention_layernorm: RmsNorm { parameter: index("post_attention_layernorm"), eps: c.rms_norm_eps },
                mlp: Mlp {
                    gate_proj: index("mlp.gate_proj"),
                    up_proj: index("mlp.up_proj"),
                    down_proj: index("mlp.down_proj"),
                },
            }));
        }
        if part.has_head {
            layers.push(Box::new(RmsNorm { parameter: parameters.index(FINAL_NORM), eps: c.rms_norm_eps }));
        }
        layers
    }

    fn cost(&self, tokens: usize, length: usize) -> ModelCost {
        let c = &self.config;
        let (h, t) = (c.hidden_size as f64, tokens as f64);
        let numel = |specs: &[ParameterSpec]| specs.iter().map(|s| s.shape.iter().product::<i64>()).sum::<i64>();
        // value, accumulator and two moments, fp32
        let bytes = |specs: &[ParameterSpec]| 16 * numel(specs) as u64;
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let matrices = (2 * c.hidden_size * (q + kv) + 3 * c.hidden_size * c.intermediate_size) as f64;
        // causal: a query attends to half of the keys on average; scores and values, a multiply-add is 2 FLOPs
        let attention = (length * q) as f64;
        let per_token = 8 * c.hidden_size + 4 * q + 3 * kv + 4 * c.intermediate_size;
        let part = |has_embedding, has_head| ModelPart { layers: 0..0, has_embedding, has_head };
        let layers = (0..c.num_hidden_layers).map(|layer| ModuleCost {
            name: format!("model.layers.{layer}"),
            forward: 2.0 * t * (matrices + attention),
            backward_input: 2.0 * t * (matrices + 2.0 * attention),
            backward_weight: 2.0 * t * matrices,
            parameter_bytes: bytes(&self.layer_specs(layer)),
            activation_bytes: (4 * tokens * per_token) as u64,
        });
        ModelCost {
            embedding: ModuleCost {
                name: "model.embed_tokens".into(),
                forward: 0.0,
                backward_input: 0.0,
                backward_weight: 0.0,
                parameter_bytes: bytes(&self.parameter_specs(&part(true, false))),
                activation_bytes: (8 * tokens) as u64,
            },
            layers: layers.collect(),
            // the head computes its backward in its forward
            head: ModuleCost {
                name: "lm_head".into(),
                forward: 6.0 * t * h * c.vocab_size as f64,
                backward_input: 0.0,
                backward_weight: 0.0,
                parameter_bytes: bytes(&self.parameter_specs(&part(false, true))),
                activation_bytes: (4 * tokens * 3 * c.hidden_size) as u64,
            },
            boundary_bytes: (4 * tokens * c.hidden_size) as u64,
        }
    }

    fn config_json(&self) -> serde_json::Value {
        let mut config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": false,
            "mlp_bias": false,
            "torch_dtype": "float32",
        });
        if let (Some(all), Ok(serde_json::Value::Object(own))) =
            (config.as_object_mut(), serde_json::to_value(&self.config))
        {
            all.extend(own);
        }
        config
    }
}

// The fields of the modules below that name weights are indices into the stage's parameters.

#[derive(Debug)]
struct RmsNorm {
    parameter: usize,
    eps: f64,
}

impl Layer for RmsNorm {
    fn forward(&self, x: &Tensor, ctx: &ForwardContext) -> Tensor {
        rms_norm(x, &ctx.parameters[self.parameter].value, self.eps, ctx.gradient_sink, self.parameter)
    }
}

#[derive(Debug)]
struct DecoderLayer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl Layer for DecoderLayer {
    fn forward(&self, x: &Tensor, ctx: &ForwardContext) -> Tensor {
        let x = self.self_attn.forward(&self.input_layernorm.forward(x, ctx), ctx) + x;
        self.mlp.forward(&self.post_attention_layernorm.forward(&x, ctx), ctx) + x
    }
}

fn linear(x: &Tensor, parameter: usize, ctx: &ForwardContext) -> Tensor {
    autograd::linear(x, &ctx.parameters[parameter].value, ctx.gradient_sink, parameter)
}

#[derive(Debug)]
struct Attention {
    q_proj: usize,
    k_proj: usize,
    v_proj: usize,
    o_proj: usize,
    head_dim: i64,
    /// Query heads per key and value head.
    num_key_value_groups: i64,
    rotary: Rc<RotaryEmbedding>,
}

impl Attention {
    fn forward(&self, x: &Tensor, ctx: &ForwardContext) -> Tensor {
        let (rows, length, _) = shape3(x);
        let split_heads = |t: Tensor| t.view([rows, length, -1, self.head_dim]).transpose(1, 2);
        let q = self.rotary.apply(&split_heads(linear(x, self.q_proj, ctx)));
        let k = self.rotary.apply(&split_heads(linear(x, self.k_proj, ctx)));
        let v = split_heads(linear(x, self.v_proj, ctx));
        let out = Tensor::scaled_dot_product_attention(
            &q,
            &self.repeat_kv(&k),
            &self.repeat_kv(&v),
            ctx.attention_mask,
            0.0,
            ctx.attention_mask.is_none(),
            None,
            false,
        );
        linear(&out.transpose(1, 2).reshape([rows, length, -1]), self.o_proj, ctx)
    }

    /// `[rows, kv heads, length, dim]` -> `[rows, heads, length, dim]`: each key and value head serves a group of queries.
    fn repeat_kv(&self, x: &Tensor) -> Tensor {
        if self.num_key_value_groups == 1 {
            return x.shallow_clone();
        }
        let s = x.size();
        x.unsqueeze(2)
            .expand([s[0], s[1], self.num_key_value_groups, s[2], s[3]], false)
            .reshape([s[0], -1, s[2], s[3]])
    }
}

#[derive(Debug)]
struct Mlp {
    gate_proj: usize,
    up_proj: usize,
    down_proj: usize,
}

impl Mlp {
    fn forward(&self, x: &Tensor, ctx: &ForwardContext) -> Tensor {
        let gate = linear(x, self.gate_proj, ctx).silu();
        linear(&(gate * linear(x, self.up_proj, ctx)), self.down_proj, ctx)
    }
}

fn shape3(x: &Tensor) -> (i64, i64, i64) {
    let s = x.size();
    (s[0], s[1], s[2])
}
