//! The loss and the gradient of each document of a step. The tokens of a document attend only to tokens of the same
//! document. This module therefore computes the gradient of each document separately, at the document's positions in
//! the row, with the weights from before the step.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use stagecoach_api::job::Recompute;
use stagecoach_data::{DocumentPart, IGNORE_INDEX};
use stagecoach_engine::execute::{Chunk, ChunkOutput, LossInputs, Stage};
use stagecoach_engine::state_dict::InitialWeights;
use stagecoach_kernels as kernels;
use stagecoach_model::{CuSeqlens, ForwardContext, Parameter, WeightGradient};
use tch::{Device, Kind, Tensor};

use super::BlamedJob;

/// The loss and gradient of one document in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentGradient {
    /// Index of the document.
    pub document: u64,
    /// Indices of the document's parts among the parts of the step.
    pub parts: Vec<usize>,
    /// The number of the document's targets.
    pub targets: u64,
    /// The sum of the document's cross-entropies, in nats.
    pub loss: f64,
    /// The square of the norm of the document's gradient.
    pub squared_norm: f64,
    /// The dot product of the document's gradient and the step's gradient.
    pub projection: f64,
}

/// The loss and gradient contributions of all documents of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepGradients {
    /// The documents, in the order in which they occur in the step.
    pub documents: Vec<DocumentGradient>,
    /// The number of the step's targets.
    pub targets: u64,
    /// The square of the norm of the step's gradient.
    pub squared_norm: f64,
}

/// The patterns of the tensors that a replay dumps for [`document_gradients`].
pub const TENSORS: [&str; 2] = ["*.weight.*", "*.bias.*"];

/// Computes the loss and gradient of each document in a step. `parts` are the documents' parts, and `tensors` are the
/// weights before the step and their gradients, by name. The computation runs as one stage on the CPU. The stage holds
/// the weights, the step's gradient, a document's gradient, and the activations of one part.
///
/// # Errors
/// Returns an error if a tensor is missing, or has a shape other than this model's.
pub fn document_gradients(
    subject: &BlamedJob,
    tensors: Vec<(String, Tensor)>,
    parts: &[DocumentPart],
    targets: u64,
) -> anyhow::Result<StepGradients> {
    let mut tensors: BTreeMap<String, Tensor> = tensors.into_iter().collect();
    let config = &subject.config;
    tch::set_num_threads(config.training.threads as i32);
    let architecture = config.architecture(config.vocab_size(subject.prepared.vocab_size)?, Device::Cpu);
    let stage = Stage::of_model(architecture.as_ref(), config.adamw(), config.training.precision);
    let mut take = |parameter: &Parameter, what: &str| -> anyhow::Result<Tensor> {
        let name = format!("{}.{what}", parameter.spec.name);
        let tensor = tensors.remove(&name).with_context(|| format!("the replay has no {name}"))?;
        let (found, expected) = (tensor.size(), &parameter.spec.shape);
        ensure!(
            found == *expected,
            "the replay has {name} with the shape {found:?}, but this model has the shape {expected:?}"
        );
        Ok(tensor)
    };
    let mut step_gradient = Vec::with_capacity(stage.parameters.len());
    for parameter in stage.parameters.iter() {
        parameter.value.shallow_clone().copy_(&take(parameter, "value")?);
        step_gradient.push(take(parameter, "gradient")?);
    }
    stage.parameters.update_compute();
    if let Some(frozen) = &subject.frozen {
        let folder = config.workspace.join(&frozen.path);
        let hashes = InitialWeights::open(&folder)?.load_frozen(architecture.as_ref(), &stage, &mut |_| {})?;
        frozen.check(hashes, &folder, "put those weights back")?;
    }
    let chunk = stage.chunks.get(&0).context("a model of one stage has no chunk: this is a bug")?;

    let documents = parts_by_document(parts).into_iter().map(|(document, indices)| {
        stage.zero_grad();
        let loss = indices.iter().map(|&index| backward(chunk, &parts[index], 1.0 / targets as f64)).sum();
        let (squared_norm, projection) = products(&stage, &step_gradient);
        let own = indices.iter().flat_map(|&index| &parts[index].targets);
        let targets = own.filter(|&&target| target != IGNORE_INDEX).count() as u64;
        DocumentGradient { document, parts: indices, targets, loss, squared_norm, projection }
    });
    Ok(StepGradients {
        documents: documents.collect(),
        targets,
        squared_norm: step_gradient.iter().map(squared_norm).sum(),
    })
}

/// Returns the documents in the order of their first parts, with the indices of their parts.
fn parts_by_document(parts: &[DocumentPart]) -> Vec<(u64, Vec<usize>)> {
    let mut documents: Vec<(u64, Vec<usize>)> = Vec::new();
    let mut positions: BTreeMap<u64, usize> = BTreeMap::new();
    for (index, part) in parts.iter().enumerate() {
        let position = *positions.entry(part.document).or_insert_with(|| {
            documents.push((part.document, Vec::new()));
            documents.len() - 1
        });
        documents[position].1.push(index);
    }
    documents
}

/// Adds the gradient of a part to the accumulators and returns the sum of the part's cross-entropies, in nats. `scale`
/// is 1 / (number of targets of the step).
fn backward(chunk: &Chunk, part: &DocumentPart, scale: f64) -> f64 {
    let length = part.inputs.len() as i64;
    let ctx = ForwardContext {
        length,
        first_position: part.position as i64,
        cu_seqlens: CuSeqlens::new(&[0, length], Device::Cpu),
        recompute: Recompute::None,
    };
    let targets = Tensor::from_slice(&part.targets);
    let loss_inputs = LossInputs { targets: &targets, scale };
    let (output, saved) = chunk.forward(Tensor::from_slice(&part.inputs), ctx, Some(loss_inputs));
    chunk.backward(saved, None, &mut WeightGradient::accumulate);
    match output {
        ChunkOutput::Loss(loss) => loss.sum.double_value(&[]),
        ChunkOutput::Activations(_) => f64::NAN, // a chunk of a whole model returns a loss
    }
}

fn squared_norm(gradient: &Tensor) -> f64 {
    kernels::squared_norms(&[gradient], gradient.device()).double_value(&[0])
}

/// Returns the square of the norm of the accumulated gradient, and the dot product of this gradient and the step's
/// gradient.
fn products(stage: &Stage, step_gradient: &[Tensor]) -> (f64, f64) {
    let double = |tensor: &Tensor| tensor.flatten(0, -1).to_kind(Kind::Double);
    let parameter_gradient = |(index, (parameter, whole)): (usize, (&Parameter, &Tensor))| {
        // a weight that the embedding and the head share has two accumulators, one for each
        let tied = stage.tied_embedding.as_ref().filter(|tied| tied.parameter == index);
        if let Some(tied) = tied {
            let _ = parameter.gradient.shallow_clone().g_add_(&tied.peer_gradient);
        }
        let own = &parameter.gradient;
        (squared_norm(own), double(own).dot(&double(whole)).double_value(&[]))
    };
    let products = stage.parameters.iter().zip(step_gradient).enumerate().map(parameter_gradient);
    products.fold((0.0, 0.0), |sums, one| (sums.0 + one.0, sums.1 + one.1))
}
