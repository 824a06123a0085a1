//! A checkpoint's weights for other tools: a plain model directory, or one file. Every byte is proven on the way.

use crate::error::{CheckpointError, on};
use crate::fence::sync;
use crate::layout::{INDEX, SINGLE, is_weights_file};
use crate::lazy::Source;
use crate::load::Loaded;
use crate::manifest::TensorEntry;
use crate::save::{StageFiles, index};
use crate::shard::{ShardFile, write_file, write_shard};
use crate::volume::{Volume, make_own_dir, move_dir, remove_tree};

/// What to make of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A directory as Hugging Face's tools write it: configuration, tokenizer, weights.
    HuggingFace,
    /// One safetensors file with all weights.
    SingleFile,
}

/// What was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Files by name.
    pub files: Vec<String>,
    /// Weights.
    pub tensors: usize,
    /// Their size.
    pub bytes: u64,
}

/// Writes the weights of `loaded` as `name` on the volume `out`: aside first, so that what has the final name is whole.
/// `read` hears of every tensor's bytes once they are read and proven.
///
/// # Errors
/// `Damaged`, if bytes are not what was written; if there is something of that name; or if the volume refuses. Nothing
/// is left behind then.
pub fn export(
    loaded: &Loaded,
    form: Form,
    out: &dyn Volume,
    name: &str,
    read: &dyn Fn(u64),
) -> Result<Exported, CheckpointError> {
    is_free(out, name)?;
    let aside = format!(".{name}.{}.partial", std::process::id());
    let write = || {
        let exported = match form {
            Form::HuggingFace => write_directory(loaded, out, &aside, read)?,
            Form::SingleFile => write_single(loaded, out, &aside, name, read)?,
        };
        is_free(out, name)?; // renaming a file would replace another
        move_dir(out, &aside, name).map_err(on(out, "publish", name))?;
        sync(out, "")?;
        Ok(exported)
    };
    write().inspect_err(|_| {
        let _ = match form {
            Form::HuggingFace => remove_tree(out, &aside),
            Form::SingleFile => out.remove_file(&aside),
        };
    })
}

fn is_free(out: &dyn Volume, name: &str) -> Result<(), CheckpointError> {
    let entries = out.list("").map_err(on(out, "list", ""))?;
    if entries.iter().all(|entry| entry.name != name) {
        return Ok(());
    }
    let problem = "is there already: choose another place, or remove it first".into();
    Err(CheckpointError::Content { path: out.display(name), problem })
}

fn write_directory(
    loaded: &Loaded,
    out: &dyn Volume,
    folder: &str,
    read: &dyn Fn(u64),
) -> Result<Exported, CheckpointError> {
    make_own_dir(out, folder).map_err(on(out, "create", folder))?;
    let mut exported = Exported::default();
    let files = &loaded.manifest().files;
    let shards: Vec<&str> = files.iter().map(|f| f.name.as_str()).filter(|name| is_weights_file(name)).collect();
    let mut written = Vec::new();
    for (at, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => SINGLE.to_owned(),
            all => format!("model-{:05}-of-{all:05}.safetensors", at + 1),
        };
        let tensors: Vec<&TensorEntry> = loaded.manifest().tensors.iter().filter(|t| t.file == *shard).collect();
        let weights = copy(loaded, &tensors, out, &format!("{folder}/{name}"), read)?;
        exported.add(&weights);
        written.push(StageFiles { weights: Some(weights), optimizer: None });
    }
    let mut small = |name: &str, bytes: &[u8]| {
        exported.files.push(name.to_owned());
        write_file(out, &format!("{folder}/{name}"), bytes).map(drop)
    };
    if written.len() > 1 {
        small(INDEX, index(&written).as_bytes())?;
    }
    for file in files.iter().filter(|f| f.name != INDEX && !f.name.ends_with(".safetensors")) {
        small(&file.name, &loaded.file(&file.name)?.unwrap_or_default())?;
    }
    sync(out, folder)?;
    Ok(exported)
}

fn write_single(
    loaded: &Loaded,
    out: &dyn Volume,
    aside: &str,
    name: &str,
    read: &dyn Fn(u64),
) -> Result<Exported, CheckpointError> {
    let tensors: Vec<&TensorEntry> = loaded.manifest().tensors.iter().filter(|t| is_weights_file(&t.file)).collect();
    let mut exported = Exported::default();
    exported.add(&copy(loaded, &tensors, out, aside, read)?);
    exported.files = vec![name.to_owned()];
    Ok(exported)
}

/// One tensor after the other, each proven by its hash before it is written.
fn copy(
    loaded: &Loaded,
    tensors: &[&TensorEntry],
    out: &dyn Volume,
    path: &str,
    read: &dyn Fn(u64),
) -> Result<ShardFile, CheckpointError> {
    let proven = |name: &str| {
        let entry = loaded.tensor(name).ok_or_else(|| CheckpointError::Content {
            path: loaded.folder().into(),
            problem: format!("has no tensor {name}"),
        })?;
        let bytes = loaded.read(entry)?;
        read(entry.bytes);
        Ok(bytes)
    };
    let source = Source::new(&proven);
    let views: Vec<_> = tensors.iter().map(|t| source.view(&t.name, t.dtype, &t.shape)).collect();
    source.outcome(write_shard(out, path, &views))
}

impl Exported {
    fn add(&mut self, shard: &ShardFile) {
        self.files.push(shard.file.name.clone());
        self.tensors += shard.tensors.len();
        self.bytes += shard.tensors.iter().map(|t| t.bytes).sum::<u64>();
    }
}
