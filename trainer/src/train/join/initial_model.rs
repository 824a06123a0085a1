//! The model from which a job starts: its directory, and the checks before any stage loads it.

use std::path::{Path, PathBuf};

use stagecoach_checkpoint::CheckpointError;
use stagecoach_data::has_chat_template;
use stagecoach_engine::StageError;
use stagecoach_engine::state_dict::InitialWeights;
use stagecoach_model::SourceConfig;
use stagecoach_planner::JobConfig;

/// Returns the model directory from which the job starts, if the job names one. Checks the model before any stage loads
/// it, and appends messages for the user to `notes`. If `vocab_size` is `None`, because it is not known yet, the check
/// assumes the vocabulary size of the model. If there is no file `tokenizer` yet, the check does not compare the
/// tokenizers.
pub(super) fn resolve_initial_weights(
    config: &JobConfig,
    vocab_size: Option<usize>,
    tokenizer: Option<&Path>,
    notes: &mut Vec<String>,
) -> Result<Option<PathBuf>, StageError> {
    let field = match config.job.spec.checkpoint.init_from {
        Some(_) => "spec.checkpoint.initFrom.path",
        None => "spec.model.pretrained.path",
    };
    let unusable = |error: CheckpointError| match error {
        // a retry would not find the file, so a missing file is an error of the job
        CheckpointError::Io { .. } if !error.is_not_found() => StageError::from(error),
        other => {
            let path = config.initial_weights.as_deref().unwrap_or(Path::new(""));
            StageError::invalid(format!("{field}: could not start from {}: {other}", path.display()))
        }
    };
    let Some(path) = config.initial_model().map_err(unusable)? else { return Ok(None) };
    let folder = config.workspace.join(&path);
    // the job names a copied model by its URI, and the message does the same
    let spec_path = match config.initial_weights_source() {
        Some(uri) if config.local_path(uri) != Path::new(uri) => Path::new(uri),
        _ => &path,
    };
    // the launcher checks a job before rank 0 has fetched the weights
    let weights = match config.lacks_initial_weights() {
        true => None,
        false => Some(InitialWeights::open(&folder).map_err(unusable)?),
    };
    let source_tokenizer = folder.join("tokenizer.json");
    let read = |path: &Path| -> Option<serde_json::Value> { serde_json::from_slice(&std::fs::read(path).ok()?).ok() };
    if let (Some(source_definition), Some(definition)) = (read(&source_tokenizer), tokenizer.and_then(read))
        && source_definition != definition
    {
        return Err(StageError::invalid(format!(
            "the weights in {} were trained with another tokenizer than this job's: set spec.data.tokenizer to \
             {{type: File, file: {{path: {}}}}}",
            folder.display(),
            spec_path.join("tokenizer.json").display()
        )));
    }
    let source = SourceConfig::read(&folder).map_err(|e| StageError::invalid(format!("{field}: {e}")))?;
    let source_architecture = source.config.architecture(tch::Device::Cpu);
    let vocab_size = vocab_size.unwrap_or(source_architecture.vocab_size());
    let different = config.model.with_vocab_size(vocab_size).differences(source.config.as_ref());
    if !different.is_empty() {
        let member = source.config.spec_field();
        let remedy = match source.config.field_not_in_spec() {
            None => format!("set spec.model.{member} to the configuration of that model"),
            Some(missing) => format!(
                "spec.model.{member} has no {missing}, so set spec.model to {{type: Pretrained, pretrained: {{path: \
                 {}}}}} and leave out spec.checkpoint.initFrom",
                spec_path.display()
            ),
        };
        return Err(StageError::invalid(format!(
            "{field}: the weights in {} are another model's than this job's: {}; {remedy}",
            folder.display(),
            different.join(", ")
        )));
    }
    if let Some(weights) = weights {
        weights.check(config.architecture(vocab_size, tch::Device::Cpu).as_ref()).map_err(unusable)?;
        notes.extend(weights.note());
    }
    notes.extend(lost_template(config, &folder, spec_path)?);
    Ok(Some(path))
}

/// Returns a message if the model in `folder` has a chat template that the job's checkpoints will lack. The checkpoints
/// contain the files beside the job's tokenizer.
fn lost_template(config: &JobConfig, folder: &Path, spec_path: &Path) -> Result<Option<String>, StageError> {
    let source_tokenizer = folder.join("tokenizer.json");
    let Some(tokenizer) = config.tokenizer_file().filter(|path| *path != source_tokenizer) else { return Ok(None) };
    if config.data.chat_template.is_some() || has_chat_template(&tokenizer)? || !has_chat_template(&source_tokenizer)? {
        return Ok(None);
    }
    Ok(Some(format!(
        "the model in {} has a chat template, and the tokenizer {} has none beside it, so that the checkpoints have \
         none: set spec.data.tokenizer.file.path to {} to keep it",
        folder.display(),
        tokenizer.display(),
        spec_path.join("tokenizer.json").display()
    )))
}
