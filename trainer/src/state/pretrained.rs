//! Weights of a Hugging Face model directory into a stage. The whole directory is checked on every stage, so that all say
//! the same thing about it; each reads only its own tensors.

use std::collections::BTreeMap;

use stagecoach_checkpoint::{CheckpointError, ModelFiles, is_float};

use super::load::fill;
use crate::execute::Stage;
use crate::model::{Architecture, Part, names};

/// Buffers that old versions of Hugging Face's Llama wrote beside its weights: computed here, never read.
const COMPUTED: &str = ".rotary_emb.inv_freq";

/// Whether `files` holds the weights of `architecture`, and no others.
///
/// # Errors
/// The first parameter, in the order of names, that is missing, has another shape or no floating-point type; else the
/// first tensor that the architecture has no use for, since without it the model would not be the same.
pub fn check_model(files: &ModelFiles, architecture: &dyn Architecture) -> Result<(), CheckpointError> {
    let wrong = |problem: String| CheckpointError::Content { path: files.folder().to_owned(), problem };
    let whole = Part { layers: 0..architecture.layers(), first: true, last: true };
    let ours: BTreeMap<String, Vec<i64>> =
        architecture.parameters(&whole).into_iter().map(|spec| (spec.name, spec.shape)).collect();
    for (name, shape) in &ours {
        let Some(found) = files.tensor(name) else {
            return Err(wrong(format!(
                "has no tensor {name}, which this model has as {shape:?}: it is another model's"
            )));
        };
        let same = found.shape.iter().map(|&dim| dim as i64).eq(shape.iter().copied());
        if !same || !is_float(found.dtype) {
            return Err(wrong(format!(
                "has {name} as {found}, and this model has it as F32{shape:?}: it is another model's"
            )));
        }
    }
    let ignored = |name: &str| name.ends_with(COMPUTED) || (architecture.tied() && name == names::HEAD);
    match files.names().find(|name| !ours.contains_key(*name) && !ignored(name)) {
        Some(extra) => Err(wrong(format!(
            "has a tensor {extra}, which this architecture has no place for: without it the model would not be the same"
        ))),
        None => Ok(()),
    }
}

/// Fills `stage`'s weights from `files`, converted to fp32.
///
/// # Errors
/// As [`check_model`]; or if a tensor can't be read.
pub fn load_model(files: &ModelFiles, architecture: &dyn Architecture, stage: &Stage) -> Result<(), CheckpointError> {
    check_model(files, architecture)?;
    for parameter in stage.parameters.iter() {
        fill(&parameter.value, &files.read_f32(&parameter.spec.name)?);
    }
    Ok(())
}
