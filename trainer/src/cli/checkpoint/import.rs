//! `stagecoach checkpoint import`

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use indicatif::HumanBytes;
use serde_json::{Map, Value, json};
use stagecoach_checkpoint::{CheckpointMetadata, FileSystemVolume, ModelFiles, import, paths, refuse_adapter};
use stagecoach_data::TOKENIZER_FILES;
use stagecoach_engine::state_dict::{check_model, check_tied_head};
use stagecoach_files::read_if_exists;
use stagecoach_launcher::{JobFolder, JobLock};
use stagecoach_model::SourceConfig;
use stagecoach_planner::{GENERATION_CONFIG_FILE, TrainerState};

use super::super::output::{print_json, print_line};

/// Import a Hugging Face model directory as the first checkpoint of a new folder.
///
/// The command stores the weights as fp32 at step 0, without optimizer state. A job starts from this checkpoint with
/// `checkpoint.initFrom`. No job resumes from it.
#[derive(Debug, Args)]
pub(super) struct ImportCommand {
    /// The Hugging Face model directory.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The folder to create, or an existing one without checkpoints.
    folder: PathBuf,
}

impl ImportCommand {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        refuse_adapter(&self.from)?;
        let architecture = SourceConfig::read(&self.from)?.config.architecture(tch::Device::Cpu);
        let model = ModelFiles::open(&self.from)?;
        check_model(&model, architecture.as_ref())?;
        check_tied_head(&model, architecture.as_ref())?;
        let other_files = config_and_optional_files(&self.from)?;
        let folder = JobFolder::open(&self.folder, None)?;
        let _lock = JobLock::acquire(&folder)?;
        let volume = FileSystemVolume::new(&self.folder);
        let names = architecture.parameter_names();
        let mut progress = json!(TrainerState::default());
        progress["sequences"] = 0.into();
        let metadata = CheckpointMetadata {
            progress,
            plan: json!({}),
            environment: json!({"version": env!("CARGO_PKG_VERSION"), "importedFrom": self.from}),
            ..CheckpointMetadata::default()
        };
        let manifest = import(&volume, &model, &names, metadata, &other_files)?;
        let path = self.folder.join(paths::checkpoint_path(manifest.step));
        let size: u64 = manifest.tensors.iter().map(|tensor| tensor.bytes).sum();
        if json {
            return print_json(&json!({
                "step": manifest.step, "path": path, "tensors": manifest.tensors.len(), "bytes": size,
            }));
        }
        if let Some(note) = model.note() {
            print_line(format!("note: {note}"));
        }
        print_line(format!("{} tensors, {} as F32, in {}", manifest.tensors.len(), HumanBytes(size), path.display()));
        Ok(())
    }
}

/// Returns the names and contents of `config.json` and of the files of the tokenizer and the generation configuration
/// that exist. The dtype in the returned `config.json` is that of the imported weights, `float32`.
fn config_and_optional_files(from: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let path = from.join("config.json");
    let text = std::fs::read(&path).with_context(|| format!("could not read {}", path.display()))?;
    let mut config: Map<String, Value> = serde_json::from_slice(&text)?;
    for field in ["torch_dtype", "dtype"] {
        if let Some(dtype) = config.get_mut(field) {
            *dtype = "float32".into();
        }
    }
    let mut files = vec![("config.json".to_owned(), format!("{:#}\n", Value::Object(config)).into_bytes())];
    for name in TOKENIZER_FILES.into_iter().chain([GENERATION_CONFIG_FILE]) {
        let path = from.join(name);
        let bytes = read_if_exists(&path).with_context(|| format!("could not read {}", path.display()))?;
        files.extend(bytes.map(|bytes| (name.to_owned(), bytes)));
    }
    Ok(files)
}
