//! The model directory from which a fine-tuning job starts.

use std::path::{Path, PathBuf};

use anyhow::Context;
use stagecoach_checkpoint::{ModelFiles, refuse_adapter};
use stagecoach_data::Tokenizer;
use stagecoach_engine::StageError;
use stagecoach_engine::state_dict::{check_model, check_tied_head};
use stagecoach_model::SourceConfig;
use stagecoach_planner::init::SourceModel;

/// Reads the model in `from`, a directory below `workspace`, and checks that a job can start from it.
///
/// # Errors
/// If the directory is not below the workspace, or if its model or tokenizer can't be used.
pub(super) fn read(from: &Path, workspace: &Path) -> anyhow::Result<SourceModel> {
    let path = path_in_workspace(from, workspace)?;
    refuse_adapter(from)?;
    let config = SourceConfig::read(from)?.config;
    let architecture = config.architecture(tch::Device::Cpu);
    let files = ModelFiles::open(from)?;
    check_model(&files, architecture.as_ref())?;
    check_tied_head(&files, architecture.as_ref())?;
    let model = SourceModel::new(path, architecture.as_ref(), config.max_position_embeddings());
    let tokenizer = Tokenizer::load(&workspace.join(model.tokenizer()))?;
    if tokenizer.special_tokens().eos.is_empty() {
        return Err(StageError::invalid(format!(
            "the tokenizer {} names no token that ends documents: add one to its added_tokens, or name it as eos_token in \
             tokenizer_config.json",
            tokenizer.path().display()
        ))
        .into());
    }
    Ok(model)
}

/// Returns the path of `from` relative to `workspace`.
fn path_in_workspace(from: &Path, workspace: &Path) -> anyhow::Result<String> {
    let real = |path: &Path| path.canonicalize().with_context(|| format!("there is no folder {}", path.display()));
    if from.to_string_lossy().contains("://") {
        return Err(StageError::invalid(format!(
            "--from {} is a URI, expected a folder below {}: copy the model there first",
            from.display(),
            workspace.display()
        ))
        .into());
    }
    let (folder, root) = (real(from)?, real(workspace)?);
    let relative = folder.strip_prefix(&root).map(PathBuf::from).unwrap_or_default();
    match relative.to_str() {
        Some(path) if !path.is_empty() => Ok(path.to_owned()),
        _ => Err(StageError::invalid(format!(
            "the model {} is not in a folder below the workspace {}, where jobs read their files: copy it there",
            from.display(),
            workspace.display()
        ))
        .into()),
    }
}
