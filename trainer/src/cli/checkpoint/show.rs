//! `stagecoach checkpoint show`

use clap::Args;
use serde_json::{Value, json};
use stagecoach_checkpoint::paths::is_weights_file;
use stagecoach_checkpoint::{Manifest, TensorEntry, read_manifest};

use super::target::{Checkpoints, One};
use super::{say, say_json, table::table};
use crate::observe::{bytes, thousands};

/// Show what one checkpoint holds, and what it was written under.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    one: One,
    /// List every tensor.
    #[arg(long)]
    tensors: bool,
}

impl Show {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        let (job, step) = self.one.find()?;
        let manifest = read_manifest(&job.volume, step)?;
        if json {
            return say_json(&as_json(&job, &manifest, self.tensors));
        }
        say(text(&job, &manifest));
        if self.tensors {
            say(format!("\n{}", tensors(&manifest)));
        }
        Ok(())
    }
}

/// How many tensors, and of how many numbers.
fn sum<'a>(tensors: impl Iterator<Item = &'a TensorEntry>) -> (usize, usize) {
    tensors.fold((0, 0), |(count, numbers), tensor| (count + 1, numbers + tensor.shape.iter().product::<usize>()))
}

fn weights(manifest: &Manifest) -> (usize, usize) {
    sum(manifest.tensors.iter().filter(|tensor| is_weights_file(&tensor.file)))
}

fn optimizer(manifest: &Manifest) -> (usize, usize) {
    sum(manifest.tensors.iter().filter(|tensor| !is_weights_file(&tensor.file)))
}

fn as_json(job: &Checkpoints, manifest: &Manifest, tensors: bool) -> Value {
    let count = |(tensors, numbers)| json!({"tensors": tensors, "parameters": numbers});
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
        "weights": count(weights(manifest)),
        "optimizer": count(optimizer(manifest)),
        "bytes": manifest.bytes(),
        "files": manifest.files,
    });
    if tensors {
        shown["tensors"] = json!(manifest.tensors);
    }
    shown
}

fn text(job: &Checkpoints, manifest: &Manifest) -> String {
    let metadata = &manifest.metadata;
    let (weights, moments) = (weights(manifest), optimizer(manifest));
    let number = |n: usize| thousands(n as f64);
    let mut rows = vec![
        vec!["step".to_owned(), manifest.step.to_string()],
        vec!["committed".into(), job.committed_at(manifest.step).unwrap_or_else(|| "-".into())],
        vec!["attempt".into(), metadata.attempt.to_string()],
        vec!["fence".into(), manifest.fence.to_string()],
        vec!["weights".into(), format!("{} parameters in {} tensors", number(weights.1), weights.0)],
        vec!["optimizer".into(), format!("{} numbers in {} tensors", number(moments.1), moments.0)],
    ];
    for (name, value) in [
        ("progress", &metadata.progress),
        ("plan", &metadata.plan),
        ("environment", &metadata.environment),
        ("identity", &metadata.identity),
    ] {
        fields(name, value, &mut rows);
    }
    let files: Vec<Vec<String>> =
        manifest.files.iter().map(|file| vec![file.name.clone(), bytes(file.bytes), file.blake3.clone()]).collect();
    format!("{}\n\n{}", table(&["", ""], &[], &rows), table(&["FILE", "SIZE", "BLAKE3"], &[1], &files))
}

/// One row a value, by its path.
fn fields(path: &str, value: &Value, rows: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| fields(&format!("{path}.{key}"), value, rows)),
        Value::String(text) => rows.push(vec![path.to_owned(), text.clone()]),
        other => rows.push(vec![path.to_owned(), other.to_string()]),
    }
}

fn tensors(manifest: &Manifest) -> String {
    let row = |tensor: &TensorEntry| {
        let TensorEntry { name, file, dtype, shape, bytes: size, .. } = tensor;
        vec![name.clone(), format!("{dtype:?}"), format!("{shape:?}"), size.to_string(), file.clone()]
    };
    let rows: Vec<Vec<String>> = manifest.tensors.iter().map(row).collect();
    table(&["TENSOR", "DTYPE", "SHAPE", "BYTES", "FILE"], &[3], &rows)
}
