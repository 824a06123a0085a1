//! `stagecoach checkpoint show`

use clap::Args;
use indicatif::{HumanBytes, HumanCount};
use serde_json::{Value, json};
use stagecoach_checkpoint::paths::is_weights_file;
use stagecoach_checkpoint::{FileEntry, Manifest, TensorEntry, read_manifest};
use stagecoach_display::table;

use super::super::output::{print_json, print_line};
use super::target::{CheckpointArgs, JobCheckpoints};

/// Show a checkpoint's contents and metadata.
#[derive(Debug, Args)]
pub(super) struct ShowCommand {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// List every tensor.
    #[arg(long)]
    tensors: bool,
}

impl ShowCommand {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        let (job, step) = self.checkpoint.open()?;
        let manifest = read_manifest(&job.volume, step)?;
        if json {
            return print_json(&to_json(&job, &manifest, self.tensors));
        }
        print_line(to_text(&job, &manifest));
        if self.tensors {
            print_line(format!("\n{}", tensor_table(&manifest)));
        }
        Ok(())
    }
}

/// Returns the number of tensors and the number of their elements.
fn count<'a>(tensors: impl Iterator<Item = &'a TensorEntry>) -> (usize, usize) {
    tensors.fold((0, 0), |(tensors, elements), tensor| (tensors + 1, elements + tensor.shape.iter().product::<usize>()))
}

fn weights(manifest: &Manifest) -> (usize, usize) {
    count(manifest.tensors.iter().filter(|tensor| is_weights_file(&tensor.file)))
}

fn optimizer(manifest: &Manifest) -> (usize, usize) {
    count(manifest.tensors.iter().filter(|tensor| !is_weights_file(&tensor.file)))
}

fn to_json(job: &JobCheckpoints, manifest: &Manifest, tensors: bool) -> Value {
    let as_object = |(tensors, elements)| json!({"tensors": tensors, "parameters": elements});
    let metadata = &manifest.metadata;
    let mut shown = json!({
        "path": job.path(manifest.step),
        "step": manifest.step,
        "formatVersion": manifest.format_version,
        "fence": manifest.fence,
        "attempt": metadata.attempt,
        "committedAt": job.committed_at(manifest.step),
        "progress": metadata.progress,
        "plan": metadata.plan,
        "environment": metadata.environment,
        "identity": metadata.identity,
        "weights": as_object(weights(manifest)),
        "optimizer": as_object(optimizer(manifest)),
        "bytes": manifest.bytes(),
        "files": manifest.files,
    });
    if tensors {
        shown["tensors"] = json!(manifest.tensors);
    }
    shown
}

fn to_text(job: &JobCheckpoints, manifest: &Manifest) -> String {
    let metadata = &manifest.metadata;
    let (weights, moments) = (weights(manifest), optimizer(manifest));
    let count = |elements: usize| HumanCount(elements as u64);
    let mut rows = vec![
        vec!["step".to_owned(), manifest.step.to_string()],
        vec!["committed".into(), job.committed_at(manifest.step).unwrap_or_else(|| "-".into())],
        vec!["attempt".into(), metadata.attempt.to_string()],
        vec!["fence".into(), manifest.fence.to_string()],
        vec!["weights".into(), format!("{} parameters in {} tensors", count(weights.1), weights.0)],
        vec!["optimizer".into(), format!("{} elements in {} tensors", count(moments.1), moments.0)],
    ];
    for (name, value) in [
        ("progress", &metadata.progress),
        ("plan", &metadata.plan),
        ("environment", &metadata.environment),
        ("identity", &metadata.identity),
    ] {
        flatten(name, value, &mut rows);
    }
    let file_row = |file: &FileEntry| vec![file.name.clone(), HumanBytes(file.bytes).to_string(), file.blake3.clone()];
    let files = manifest.files.iter().map(file_row).collect();
    format!("{}\n\n{}", table(None, &[], rows), table(Some(&["FILE", "SIZE", "BLAKE3"]), &[1], files))
}

/// Appends a row for each leaf of `value`, with the path and the value of the leaf.
fn flatten(path: &str, value: &Value, rows: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| flatten(&format!("{path}.{key}"), value, rows)),
        Value::String(text) => rows.push(vec![path.to_owned(), text.clone()]),
        other => rows.push(vec![path.to_owned(), other.to_string()]),
    }
}

fn tensor_table(manifest: &Manifest) -> String {
    let row = |tensor: &TensorEntry| {
        let TensorEntry { name, file, dtype, shape, bytes: size, .. } = tensor;
        vec![name.clone(), format!("{dtype:?}"), format!("{shape:?}"), size.to_string(), file.clone()]
    };
    let header = ["TENSOR", "DTYPE", "SHAPE", "BYTES", "FILE"];
    table(Some(&header), &[3], manifest.tensors.iter().map(row).collect())
}
