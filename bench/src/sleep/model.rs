//! A model that sleeps instead of computing. In the rest of a step's time, a rank waits or executes the code of the
//! runtime.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use stagecoach_api::job::ModelType;
use stagecoach_model::{
    Accumulate, Architecture, Backward, ForwardContext, Layer, LlamaConfig, MicrobatchCost, ModelConfig, ModelPart,
    ParameterSpec, Parameters, WeightGradient,
};
use stagecoach_pipeline::ModelCost;
use tch::{Device, Tensor};

/// Sleeps, and adds up the seconds slept.
#[derive(Clone, Debug)]
pub(super) struct Sleeper {
    duration: Duration,
    slept: Rc<Cell<f64>>,
}

impl Sleeper {
    fn sleep(&self) {
        let since = Instant::now();
        std::thread::sleep(self.duration);
        self.slept.set(self.slept.get() + since.elapsed().as_secs_f64());
    }

    /// Returns the seconds slept since the last call.
    pub(super) fn take_seconds(&self) -> f64 {
        self.slept.take()
    }
}

/// A Llama whose layers only sleep: once in the forward (F), once in the backward for the input (I), and once in the
/// backward for the weights (W). Its embedding and head are so small that their time is negligible.
pub(super) struct SleepingModel {
    llama: Box<dyn Architecture>,
    sleeper: Sleeper,
}

impl SleepingModel {
    pub(super) fn new(layers: usize, duration: Duration) -> SleepingModel {
        let config = LlamaConfig {
            model_type: ModelType::Llama,
            hidden_size: 8,
            num_hidden_layers: layers,
            num_attention_heads: 1,
            num_key_value_heads: 1,
            head_dim: 8,
            intermediate_size: 8,
            vocab_size: 16,
            max_position_embeddings: 8,
            rope_theta: 1e4,
            rope_scaling: None,
            rms_norm_eps: 1e-5,
            tie_word_embeddings: false,
            initializer_range: 0.02,
        };
        let sleeper = Sleeper { duration, slept: Rc::default() };
        SleepingModel { llama: config.architecture(Device::Cpu), sleeper }
    }

    pub(super) fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }
}

impl fmt::Debug for SleepingModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SleepingModel({:?})", self.sleeper.duration)
    }
}

impl Architecture for SleepingModel {
    fn num_layers(&self) -> usize {
        self.llama.num_layers()
    }

    fn hidden_size(&self) -> usize {
        self.llama.hidden_size()
    }

    fn vocab_size(&self) -> usize {
        self.llama.vocab_size()
    }

    fn tie_word_embeddings(&self) -> bool {
        self.llama.tie_word_embeddings()
    }

    fn weight_specs(&self, part: &ModelPart) -> Vec<ParameterSpec> {
        self.llama.weight_specs(part)
    }

    fn build_layers(&self, part: &ModelPart, parameters: &Parameters) -> Vec<Rc<dyn Layer>> {
        let sleeping = |(index, layer): (usize, Rc<dyn Layer>)| -> Rc<dyn Layer> {
            // in the chunk with the head, the last entry is the final norm
            match index < part.layers.len() {
                true => Rc::new(SleepingLayer(self.sleeper.clone())),
                false => layer,
            }
        };
        self.llama.build_layers(part, parameters).into_iter().enumerate().map(sleeping).collect()
    }

    fn cost(&self, microbatch: MicrobatchCost) -> ModelCost {
        self.llama.cost(microbatch)
    }

    fn chunk_bytes(&self) -> u64 {
        self.llama.chunk_bytes()
    }

    fn config_json(&self) -> serde_json::Value {
        self.llama.config_json()
    }
}

/// A layer that sleeps, and returns its input.
#[derive(Debug)]
struct SleepingLayer(Sleeper);

impl Layer for SleepingLayer {
    fn forward(self: Rc<Self>, x: Tensor, _: &ForwardContext) -> (Tensor, Box<dyn Backward>) {
        self.0.sleep();
        (x, Box::new(SleepingBackward(self.0.clone())))
    }
}

#[derive(Debug)]
struct SleepingBackward(Sleeper);

impl Backward for SleepingBackward {
    fn backward(
        self: Box<Self>,
        dy: Tensor,
        _: &ForwardContext,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    ) -> Tensor {
        self.0.sleep();
        weight_gradients(WeightGradient::Other(Box::new(SleepingGradient(self.0))));
        dy
    }
}

#[derive(Debug)]
struct SleepingGradient(Sleeper);

impl Accumulate for SleepingGradient {
    fn accumulate(self: Box<Self>) {
        self.0.sleep();
    }
}
