//! Llama (Touvron et al. 2023) as Hugging Face names and shapes it: grouped-query attention, rotary positions,
//! RMSNorm before each block, SwiGLU.

use std::rc::Rc;

use stagecoach_pipeline::{ModelCost, ModuleCost};
use tch::Tensor;

use super::config::LlamaConfig;
use super::rope::Rope;
use super::{Architecture, Initial, Layer, ParameterSpec, Parameters, Part, Pass, names};
use crate::autograd::{linear, rms_norm};

/// The architecture, for a device.
#[derive(Debug)]
pub struct Llama {
    config: LlamaConfig,
    device: tch::Device,
}

impl Llama {
    /// Nothing is allocated until [`Architecture::build`].
    pub fn new(config: LlamaConfig, device: tch::Device) -> Llama {
        Llama { config, device }
    }

    fn matrix(&self, name: String, rows: usize, columns: usize) -> ParameterSpec {
        let initial = Initial::Normal(self.config.initializer_range);
        ParameterSpec { name, shape: vec![rows as i64, columns as i64], initial, decay: true }
    }

    fn norm(&self, name: String) -> ParameterSpec {
        ParameterSpec { name, shape: vec![self.config.hidden_size as i64], initial: Initial::Ones, decay: false }
    }

    fn layer_parameters(&self, layer: usize) -> Vec<ParameterSpec> {
        let c = &self.config;
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let (h, q, kv) = (c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        vec![
            self.norm(name("input_layernorm")),
            self.matrix(name("self_attn.q_proj"), q, h),
            self.matrix(name("self_attn.k_proj"), kv, h),
            self.matrix(name("self_attn.v_proj"), kv, h),
            self.matrix(name("self_attn.o_proj"), h, q),
            self.norm(name("post_attention_layernorm")),
            self.matrix(name("mlp.gate_proj"), c.intermediate_size, h),
            self.matrix(name("mlp.up_proj"), c.intermediate_size, h),
            self.matrix(name("mlp.down_proj"), h, c.intermediate_size),
        ]
    }
}

const FINAL_NORM: &str = "model.norm.weight";

impl Architecture for Llama {
    fn layers(&self) -> usize {
        self.config.num_hidden_layers
    }

    fn hidden(&self) -> usize {
        self.config.hidden_size
    }

    fn vocabulary(&self) -> usize {
        self.config.vocab_size
    }

    fn tied(&self) -> bool {
        self.config.tie_word_embeddings
    }

    fn parameters(&self, part: &Part) -> Vec<ParameterSpec> {
        let c = &self.config;
        let embedding =
            || ParameterSpec { decay: false, ..self.matrix(names::EMBEDDING.into(), c.vocab_size, c.hidden_size) };
        let mut specs = Vec::new();
        if part.first {
            specs.push(embedding());
        }
        specs.extend(part.layers.clone().flat_map(|layer| self.layer_parameters(layer)));
        if part.last {
            specs.push(self.norm(FINAL_NORM.into()));
            specs.push(match self.tied() {
                true => embedding(),
                false => self.matrix(names::HEAD.into(), c.vocab_size, c.hidden_size),
            });
        }
        specs
    }

    fn build(&self, part: &Part, parameters: &Parameters) -> Vec<Box<dyn Layer>> {
        let c = &self.config;
        let rope = Rc::new(Rope::new(c.head_dim, c.rope_theta, c.max_position_embeddings, self.device));
        let mut layers: Vec<Box<dyn Layer>> = Vec::new();
        for layer in part.layers.clone() {
            let at = |part: &str| parameters.index(&format!("model.layers.{layer}.{part}.weight"));
            layers.push(Box::new(DecoderLayer {
                input_norm: Norm { parameter: at("input_layernorm"), eps: c.rms_norm_eps },
                attention: Attention {
                    q: at("self_attn.q_proj"),
                    k: at("self_attn.k_proj"),
                    v: at("self_attn.v_proj"),
                    o: at("self_attn.o_proj"),
                    head_dim: c.head_dim as i64,
                    group: (c.num_attention_heads / c.num_key_value_heads) as i64,
                    rope: rope.clone(),
                },
                attention_norm: Norm { parameter: at("post_attention_layernorm"), eps: c.rms_norm_eps },
                mlp: Mlp { gate: at("mlp.gate_proj"), up: at("mlp.up_proj"), down: at("mlp.down_proj") },
            }));
        }
        if part.last {
            layers.push(Box::new(Norm { parameter: parameters.index(FINAL_NORM), eps: c.rms_norm_eps }));
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
        // causal: a query sees half of the keys on average; scores and values, a multiply-add is 2 FLOPs
        let attention = (length * q) as f64;
        let per_token = 8 * c.hidden_size + 4 * q + 3 * kv + 4 * c.intermediate_size;
        let part = |layers, first, last| Part { layers, first, last };
        let layers = (0..c.num_hidden_layers).map(|layer| ModuleCost {
            name: format!("model.layers.{layer}"),
            forward: 2.0 * t * (matrices + attention),
            backward_input: 2.0 * t * (matrices + 2.0 * attention),
            backward_weight: 2.0 * t * matrices,
            parameter_bytes: bytes(&self.layer_parameters(layer)),
            activation_bytes: (4 * tokens * per_token) as u64,
        });
        ModelCost {
            embedding: ModuleCost {
                name: "model.embed_tokens".into(),
                forward: 0.0,
                backward_input: 0.0,
                backward_weight: 0.0,
                parameter_bytes: bytes(&self.parameters(&part(0..0, true, false))),
                activation_bytes: (8 * tokens) as u64,
            },
            layers: layers.collect(),
            // the head pays for its backward inside its forward
            head: ModuleCost {
                name: "lm_head".into(),
                forward: 6.0 * t * h * c.vocab_size as f64,
                backward_input: 0.0,
                backward_weight: 0.0,
                parameter_bytes: bytes(&self.parameters(&part(0..0, false, true))),
                activation_bytes: (4 * tokens * 3 * c.hidden_size) as u64,
            },
            boundary_bytes: (4 * tokens * c.hidden_size) as u64,
        }
    }

    fn config(&self) -> serde_json::Value {
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

#[derive(Debug)]
struct Norm {
    parameter: usize,
    eps: f64,
}

impl Layer for Norm {
    fn forward(&self, x: &Tensor, pass: &Pass) -> Tensor {
        rms_norm(x, &pass.parameters[self.parameter].value, self.eps, pass.tape, self.parameter)
    }
}

#[derive(Debug)]
struct DecoderLayer {
    input_norm: Norm,
    attention: Attention,
    attention_norm: Norm,
    mlp: Mlp,
}

impl Layer for DecoderLayer {
    fn forward(&self, x: &Tensor, pass: &Pass) -> Tensor {
        let x = self.attention.forward(&self.input_norm.forward(x, pass), pass) + x;
        self.mlp.forward(&self.attention_norm.forward(&x, pass), pass) + x
    }
}

fn project(x: &Tensor, parameter: usize, pass: &Pass) -> Tensor {
    linear(x, &pass.parameters[parameter].value, pass.tape, parameter)
}

#[derive(Debug)]
struct Attention {
    q: usize,
    k: usize,
    v: usize,
    o: usize,
    head_dim: i64,
    /// Query heads that share a key and value head.
    group: i64,
    rope: Rc<Rope>,
}

impl Attention {
    fn forward(&self, x: &Tensor, pass: &Pass) -> Tensor {
        let (rows, length, _) = shape3(x);
        let heads = |t: Tensor| t.view([rows, length, -1, self.head_dim]).transpose(1, 2);
        let q = self.rope.rotate(&heads(project(x, self.q, pass)));
        let k = self.rope.rotate(&heads(project(x, self.k, pass)));
        let v = heads(project(x, self.v, pass));
        let out = Tensor::scaled_dot_product_attention(
            &q,
            &self.repeat(&k),
            &self.repeat(&v),
            pass.mask,
            0.0,
            pass.mask.is_none(),
            None,
            false,
        );
        project(&out.transpose(1, 2).reshape([rows, length, -1]), self.o, pass)
    }

    /// `[rows, kv heads, length, dim]` -> `[rows, heads, length, dim]`: each key head serves a group of queries.
    fn repeat(&self, x: &Tensor) -> Tensor {
        if self.group == 1 {
            return x.shallow_clone();
        }
        let s = x.size();
        x.unsqueeze(2).expand([s[0], s[1], self.group, s[2], s[3]], false).reshape([s[0], -1, s[2], s[3]])
    }
}

#[derive(Debug)]
struct Mlp {
    gate: usize,
    up: usize,
    down: usize,
}

impl Mlp {
    fn forward(&self, x: &Tensor, pass: &Pass) -> Tensor {
        let gate = project(x, self.gate, pass).silu();
        project(&(gate * project(x, self.up, pass)), self.down, pass)
    }
}

fn shape3(x: &Tensor) -> (i64, i64, i64) {
    let s = x.size();
    (s[0], s[1], s[2])
}
