//! Dumps tensors of a step while the step runs. A dump wraps the layers, so a stage without a dump has no overhead.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use stagecoach_model::{Backward, ForwardContext, Layer, Parameter, WeightGradient};
use stagecoach_pipeline::{Partition, WorkItem};
use tch::{Device, Tensor};

use super::{Stage, StepProbe};

/// The tensors that a stage dumps, and their destination.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DumpConfig {
    /// The patterns of tensor names, in which `*` stands for any characters, for example `layer.*.output`.
    pub patterns: Vec<String>,
    /// The steps whose tensors are dumped.
    pub steps: Vec<u64>,
    /// The folder that receives one file for each step and stage.
    pub folder: PathBuf,
}

/// The dumped tensors of a stage's steps. The layers of the stage share this value.
#[derive(Debug)]
pub struct TensorDump {
    /// The configuration of the dump.
    pub config: DumpConfig,
    is_active: Cell<bool>,
    microbatch: Cell<usize>,
    /// The tensors by name and microbatch.
    tensors: RefCell<BTreeMap<String, BTreeMap<usize, Tensor>>>,
}

impl TensorDump {
    /// Stores a copy of the tensor `name.what` if its name matches a pattern. A copy is needed because layers may reuse
    /// the memory.
    fn add(&self, name: &str, what: &str, tensor: &Tensor) {
        if !self.is_active.get() {
            return;
        }
        let name = format!("{name}.{what}");
        if self.config.patterns.iter().any(|pattern| matches(pattern, &name)) {
            let copy = tensor.to_device(Device::Cpu).copy();
            self.tensors.borrow_mut().entry(name).or_default().insert(self.microbatch.get(), copy);
        }
    }

    /// Starts a dump of the tensors of the next program (the actions of a step). Copies the weights immediately.
    pub fn begin(&self, stage: &Stage) {
        self.is_active.set(true);
        self.add_parameters(stage, "value", |parameter| &parameter.value);
    }

    /// Ends the dump. Returns the outputs of layers and the gradients of these outputs, `[tokens, hidden]`,
    /// concatenated over the microbatches in their order. Also returns the weights before the update, and the weights'
    /// gradients, summed over microbatches, before clipping.
    pub fn end(&self, stage: &Stage) -> Vec<(String, Tensor)> {
        self.add_parameters(stage, "gradient", |parameter| &parameter.gradient);
        self.is_active.set(false);
        let whole = |(name, microbatches): (String, BTreeMap<usize, Tensor>)| {
            (name, Tensor::cat(&microbatches.into_values().collect::<Vec<_>>(), 0))
        };
        self.tensors.take().into_iter().map(whole).collect()
    }

    fn add_parameters(&self, stage: &Stage, what: &str, tensor: fn(&Parameter) -> &Tensor) {
        self.microbatch.set(0);
        for (_, parameter) in stage.parameters.iter().enumerate().filter(|(p, _)| stage.is_responsible_for(*p)) {
            self.add(&parameter.spec.name, what, tensor(parameter));
        }
    }
}

impl Stage {
    /// Wraps the layers to dump their tensors.
    pub fn prepare_dump(&mut self, config: &DumpConfig, partition: &Partition) -> Rc<TensorDump> {
        let dump = Rc::new(TensorDump {
            config: config.clone(),
            is_active: Cell::new(false),
            microbatch: Cell::new(0),
            tensors: RefCell::default(),
        });
        for (index, chunk) in &mut self.chunks {
            let decoder_layers = partition.range(*index);
            let names = decoder_layers.map(|layer| format!("layer.{layer}")).chain(std::iter::once("norm".to_owned()));
            for (layer, name) in chunk.layers.iter_mut().zip(names) {
                *layer = Rc::new(DumpedLayer { layer: layer.clone(), name, dump: dump.clone() });
            }
        }
        dump
    }
}

/// Sets the microbatch of the tensors that the layers dump next.
impl StepProbe for Rc<TensorDump> {
    fn forward_begins(&mut self, _: &Stage, item: WorkItem, _: &Tensor, _: Option<&Tensor>) {
        self.microbatch.set(item.microbatch);
    }

    fn backward_begins(&mut self, _: &Stage, item: WorkItem, _: Option<&Tensor>) {
        self.microbatch.set(item.microbatch);
    }
}

/// A layer whose output and output gradient are dumped.
#[derive(Debug)]
struct DumpedLayer {
    layer: Rc<dyn Layer>,
    name: String,
    dump: Rc<TensorDump>,
}

#[derive(Debug)]
struct DumpedBackward {
    backward: Box<dyn Backward>,
    layer: Rc<DumpedLayer>,
}

impl Layer for DumpedLayer {
    fn forward(self: Rc<Self>, x: Tensor, ctx: &ForwardContext) -> (Tensor, Box<dyn Backward>) {
        let (y, backward) = self.layer.clone().forward(x, ctx);
        self.dump.add(&self.name, "output", &y);
        (y, Box::new(DumpedBackward { backward, layer: self }))
    }
}

impl Backward for DumpedBackward {
    fn backward(
        self: Box<Self>,
        dy: Tensor,
        ctx: &ForwardContext,
        weight_gradients: &mut dyn FnMut(WeightGradient),
    ) -> Tensor {
        self.layer.dump.add(&self.layer.name, "output.gradient", &dy);
        self.backward.backward(dy, ctx, weight_gradients)
    }
}

/// Whether `name` matches `pattern`, in which `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| matches(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, expected) in [
            ("layer.*.output", "layer.3.output", true),
            ("layer.*.output", "layer.3.output.gradient", false),
            ("layer.*.output*", "layer.3.output.gradient", true),
            ("*", "norm.output", true),
            ("norm.output", "norm.output", true),
            ("norm.output", "norm", false),
            ("*.gradient", "model.layers.0.mlp.up_proj.weight.gradient", true),
            ("layer.1.*", "layer.11.output", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
