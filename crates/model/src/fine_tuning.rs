//! Models of which training updates only a part: adapters beside frozen weights, or the weights that a job does not
//! freeze.

use std::collections::BTreeSet;
use std::rc::Rc;

use glob::Pattern;
use stagecoach_api::job::LoraSpec;
use stagecoach_pipeline::{ModelCost, ModuleCost};

use super::lora::{adapted_module, adapter_specs, adapts};
use super::parameter_spec::activation_bytes;
use super::{
    Architecture, Layer, MicrobatchCost, ModelOperations, ModelPart, Operation, OperationKind, ParameterBytes,
    ParameterSpec, Parameters, Pass, WeightRole,
};

/// Returns `model` as a model of which training updates only a part. With `lora`, training updates adapters. Otherwise,
/// training updates the weights whose name matches none of the patterns `freeze`. Without `lora` and patterns, returns
/// `model` unchanged.
pub fn fine_tuned(model: Box<dyn Architecture>, lora: Option<&LoraSpec>, freeze: &[String]) -> Box<dyn Architecture> {
    let method = match lora {
        Some(lora) => Method::Lora(lora.clone()),
        None if freeze.is_empty() => return model,
        None => Method::of_patterns(freeze),
    };
    Box::new(FineTunedModel { model, method })
}

/// Checks the arguments of [`fine_tuned`].
///
/// # Errors
/// If a target or a pattern matches no weight, or if every weight is frozen.
pub fn check_fine_tuning(model: &dyn Architecture, lora: Option<&LoraSpec>, freeze: &[String]) -> Result<(), String> {
    let specs = model.all_weight_specs();
    if let Some(lora) = lora {
        let with_target = |target: &String| LoraSpec { targets: vec![target.clone()], ..lora.clone() };
        let adapts_nothing = |target: &&String| !specs.iter().any(|spec| adapts(&with_target(target), spec));
        return match lora.targets.iter().find(adapts_nothing) {
            None => Ok(()),
            Some(target) => Err(format!(
                "spec.training.lora.targets: {target:?} matches no linear layer of this model; its linear layers are \
                 {}",
                Vec::from_iter(linear_layers(lora, &specs)).join(", ")
            )),
        };
    }
    for (index, text) in freeze.iter().enumerate() {
        let at = format!("spec.training.freeze[{index}]: {text:?}");
        let pattern = Pattern::new(text).map_err(|e| format!("{at} is not a pattern: {e}"))?;
        if !specs.iter().any(|spec| pattern.matches(&spec.name)) {
            let first = specs.first().map_or("", |spec| &spec.name);
            return Err(format!("{at} matches no weight of this model, whose weights have names such as {first}"));
        }
    }
    let method = Method::of_patterns(freeze);
    match !freeze.is_empty() && specs.iter().all(|spec| method.role(spec) == WeightRole::Frozen) {
        true => Err("spec.training.freeze freezes every weight, so that nothing is left to train".to_owned()),
        false => Ok(()),
    }
}

/// Returns the names of the linear layers that adapters can adapt. Each name is the last part of the module's path, for
/// example `q_proj`.
fn linear_layers(lora: &LoraSpec, specs: &[ParameterSpec]) -> BTreeSet<String> {
    let all = LoraSpec { targets: Vec::new(), ..lora.clone() };
    let layers = specs.iter().filter(|spec| adapts(&all, spec));
    layers.filter_map(|spec| Some(spec.name.strip_suffix(".weight")?.rsplit('.').next()?.to_owned())).collect()
}

/// The choice of the weights that training updates.
#[derive(Debug)]
enum Method {
    /// Training updates adapters. Every weight of the model is frozen.
    Lora(LoraSpec),
    /// Training updates the weights whose name matches none of the patterns.
    Freeze(Vec<Pattern>),
}

impl Method {
    fn of_patterns(patterns: &[String]) -> Method {
        Method::Freeze(patterns.iter().filter_map(|pattern| Pattern::new(pattern).ok()).collect())
    }

    /// Returns how training treats a weight of the model.
    fn role(&self, spec: &ParameterSpec) -> WeightRole {
        match self {
            Method::Freeze(patterns) if !patterns.iter().any(|pattern| pattern.matches(&spec.name)) => {
                WeightRole::Trained
            }
            Method::Lora(_) | Method::Freeze(_) => WeightRole::Frozen,
        }
    }

    /// Returns the matrices of a weight's adapter, if the weight has an adapter.
    fn adapter(&self, spec: &ParameterSpec) -> Option<[ParameterSpec; 2]> {
        match self {
            Method::Lora(lora) if adapts(lora, spec) => Some(adapter_specs(lora, spec)),
            Method::Lora(_) | Method::Freeze(_) => None,
        }
    }
}

/// A model of which training updates only a part.
#[derive(Debug)]
struct FineTunedModel {
    model: Box<dyn Architecture>,
    method: Method,
}

impl Architecture for FineTunedModel {
    fn num_layers(&self) -> usize {
        self.model.num_layers()
    }

    fn hidden_size(&self) -> usize {
        self.model.hidden_size()
    }

    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn tie_word_embeddings(&self) -> bool {
        self.model.tie_word_embeddings()
    }

    /// Returns the model's weights with their roles. The adapters of a group of adjacent weights follow the whole
    /// group.
    fn weight_specs(&self, part: &ModelPart) -> Vec<ParameterSpec> {
        let specs = self.model.weight_specs(part);
        let with_adapters = |group: &[ParameterSpec]| {
            let adapters: Vec<ParameterSpec> =
                group.iter().filter_map(|spec| self.method.adapter(spec)).flatten().collect();
            let with_roles = |spec: &ParameterSpec| ParameterSpec { role: self.method.role(spec), ..spec.clone() };
            group.iter().map(with_roles).chain(adapters).collect::<Vec<_>>()
        };
        specs.chunk_by(|_, next| next.adjacent_to_previous).flat_map(with_adapters).collect()
    }

    fn build_layers(&self, part: &ModelPart, parameters: &Parameters) -> Vec<Rc<dyn Layer>> {
        self.model.build_layers(part, parameters)
    }

    fn cost(&self, microbatch: MicrobatchCost) -> ModelCost {
        let mut cost = self.model.cost(microbatch);
        for (layer, module) in cost.layers.iter_mut().enumerate() {
            let specs =
                self.weight_specs(&ModelPart { layers: layer..layer + 1, has_embedding: false, has_head: false });
            self.set_parameters(module, &specs, microbatch);
            set_layer_cost(module, &specs, microbatch);
        }
        let embedding_specs = self.weight_specs(&ModelPart { layers: 0..0, has_embedding: true, has_head: false });
        self.set_parameters(&mut cost.embedding, &embedding_specs, microbatch);
        if !embedding_specs.iter().any(ParameterSpec::is_trained) {
            (cost.embedding.weight_gradient_bytes, cost.embedding.temporary_bytes) = (0, 0);
        }
        let head_specs = self.weight_specs(&ModelPart { layers: 0..0, has_embedding: false, has_head: true });
        self.set_parameters(&mut cost.head, &head_specs, microbatch);
        let frozen = head_specs.iter().filter(|spec| spec.is_matrix() && !spec.is_trained()).map(ParameterSpec::numel);
        // the head computes the gradient of its weight in its forward pass, and a frozen weight has no gradient
        cost.head.forward -= 2.0 * microbatch.tokens as f64 * frozen.sum::<u64>() as f64;
        cost
    }

    /// Returns the operations of the model, without the gradients of frozen weights but with the operations of the
    /// adapters. One layer in the result stands for all layers, so its costs of weight gradients and adapters are the
    /// mean over all layers.
    fn operations(&self, microbatch: MicrobatchCost) -> ModelOperations {
        let mut operations = self.model.operations(microbatch);
        let is_trained = |part: ModelPart| {
            self.weight_specs(&part).iter().any(|spec| spec.is_matrix() && spec.role == WeightRole::Trained)
        };
        let layers =
            self.weight_specs(&ModelPart { layers: 0..self.num_layers(), has_embedding: false, has_head: false });
        let matrices = layers.iter().filter(|spec| spec.is_matrix() && spec.is_model_weight());
        let numel = |is_counted: fn(&&ParameterSpec) -> bool| {
            matrices.clone().filter(is_counted).map(ParameterSpec::numel).sum::<u64>() as f64
        };
        let trained = numel(|spec| spec.is_trained()) / numel(|_| true).max(1.0);
        for operation in operations.layer.iter_mut().filter(|operation| operation.pass == Pass::BackwardWeight) {
            operation.flops *= trained;
            operation.bytes *= trained;
        }
        if !is_trained(ModelPart { layers: 0..0, has_embedding: true, has_head: false }) {
            operations.embedding.retain(|operation| operation.pass != Pass::BackwardWeight);
        }
        if !is_trained(ModelPart { layers: 0..0, has_embedding: false, has_head: true }) {
            // the last of the head's three products is the gradient of its weight
            let products = |operation: &Operation| operation.kind == OperationKind::Product;
            operations.head.iter().rposition(products).map(|last| operations.head.remove(last));
        }
        operations.layer.extend(adapter_operations(&layers, self.num_layers(), microbatch));
        operations
    }

    fn chunk_bytes(&self) -> u64 {
        self.model.chunk_bytes()
    }

    fn config_json(&self) -> serde_json::Value {
        self.model.config_json()
    }
}

impl FineTunedModel {
    /// Sets the bytes of a module's weights.
    fn set_parameters(&self, module: &mut ModuleCost, specs: &[ParameterSpec], microbatch: MicrobatchCost) {
        let MicrobatchCost { precision, copies, .. } = microbatch;
        let bytes = ParameterBytes::of_module(specs, self.tie_word_embeddings(), precision, copies);
        (module.parameter_bytes, module.copied_bytes) = (bytes.total(), bytes.memory_checkpoints);
    }
}

/// Sets the costs of a layer that depend on the choice of the trained weights.
fn set_layer_cost(module: &mut ModuleCost, specs: &[ParameterSpec], microbatch: MicrobatchCost) {
    let numel = |role: fn(&WeightRole) -> bool| {
        let specs = specs.iter().filter(|spec| spec.is_matrix() && role(&spec.role));
        specs.map(ParameterSpec::numel).sum::<u64>() as f64
    };
    let t = microbatch.tokens as f64;
    let adapters = numel(|role| matches!(role, WeightRole::Adapter { .. }));
    module.forward += 2.0 * t * adapters;
    // For each adapter, the gradient of the input takes two products: with B and with A. Two more products compute
    // operands of the weights' gradients: the input with A, and the gradient of the output with B.
    module.backward_input += 4.0 * t * adapters;
    module.backward_weight = 2.0 * t * (numel(|role| *role == WeightRole::Trained) + adapters);
    let bytes = microbatch.tokens as u64 * activation_bytes(microbatch.precision);
    module.weight_gradient_bytes = bytes * weight_gradient_elements(specs);
    module.temporary_bytes += bytes * adapter_temporaries(specs);
}

/// Returns the number of elements per token that the backward pass keeps if it computes the gradients of weights later
/// than the gradients of inputs. For weights that are trained or have an adapter, these elements are the inputs and the
/// gradients of the outputs. Each adapter adds its projected input and its projected gradient, each with as many
/// elements as the adapter's rank.
fn weight_gradient_elements(specs: &[ParameterSpec]) -> u64 {
    let matrices: Vec<&ParameterSpec> = specs.iter().filter(|spec| spec.is_matrix()).collect();
    let adapter_matrices = matrices.iter().filter(|spec| !spec.is_model_weight());
    // the rank is the number of A's rows and of B's columns
    let ranks: i64 = adapter_matrices.clone().map(|spec| spec.shape[0].min(spec.shape[1])).sum();
    let adapted: BTreeSet<&str> = adapter_matrices.filter_map(|spec| adapted_module(&spec.name)).collect();
    let model_specs: Vec<&ParameterSpec> = matrices.into_iter().filter(|spec| spec.is_model_weight()).collect();
    let kept_elements = |group: &[&ParameterSpec]| {
        let is_kept = |spec: &&&ParameterSpec| {
            spec.is_trained() || spec.name.strip_suffix(".weight").is_some_and(|module| adapted.contains(module))
        };
        let outputs: i64 = group.iter().filter(is_kept).map(|spec| spec.shape[0]).sum();
        if outputs == 0 { 0 } else { outputs + group[0].shape[1] }
    };
    (model_specs.chunk_by(|_, next| next.adjacent_to_previous).map(kept_elements).sum::<i64>() + ranks) as u64
}

/// Returns the temporary elements per token while an adapter adds its output: a copy of the outputs to which the
/// adapter adds, and the sum.
fn adapter_temporaries(specs: &[ParameterSpec]) -> u64 {
    let adapters = specs.iter().filter(|spec| !spec.is_model_weight());
    2 * adapters.map(|spec| spec.shape[0]).max().unwrap_or(0) as u64
}

/// Returns the products of the adapters on a GPU, in bf16, for one layer that has the mean cost of all layers. `specs`
/// are the weights of all `layers` layers.
fn adapter_operations(specs: &[ParameterSpec], layers: usize, microbatch: MicrobatchCost) -> Vec<Operation> {
    let adapters: Vec<&ParameterSpec> = specs.iter().filter(|spec| !spec.is_model_weight()).collect();
    let t = microbatch.tokens as f64 / layers.max(1) as f64;
    let flops = 2.0 * t * adapters.iter().map(|spec| spec.numel()).sum::<u64>() as f64;
    let bytes = 2.0 * t * adapters.iter().map(|spec| spec.shape[0] + spec.shape[1]).sum::<i64>() as f64;
    let operation = |(pass, times): (Pass, f64)| Operation {
        name: "adapters",
        pass,
        kind: OperationKind::Product,
        is_selective: false,
        flops: times * flops,
        bytes: times * bytes,
    };
    let passes = [(Pass::Forward, 1.0), (Pass::BackwardInput, 2.0), (Pass::BackwardWeight, 1.0)];
    passes.into_iter().filter(|_| !adapters.is_empty()).map(operation).collect()
}

#[cfg(test)]
mod tests;
