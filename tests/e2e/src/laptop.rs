//! Runs the manifest of the e2e jobs (see [`spec`]) on this machine, without a cluster. A job with this manifest must
//! have the same result on the node, whatever faults it survives there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};
use stagecoach_cluster::{merge, printed};

use crate::product::write_corpus;
use crate::{NAMESPACE, spec};

/// The hashes in the result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashes {
    /// One hash over the losses of all steps.
    pub losses: String,
    /// One hash over all held-out losses.
    pub evaluation_losses: String,
    /// One hash over all weights.
    pub weights: String,
}

impl Hashes {
    /// Reads the hashes in a job's folder. Returns `None` before the job has ended.
    pub fn read(folder: &Path) -> Option<Hashes> {
        let result: Value = serde_json::from_slice(&std::fs::read(folder.join("result.json")).ok()?).ok()?;
        let text = |name: &str| result[name].as_str().map(str::to_owned);
        Some(Hashes {
            losses: text("lossesHash")?,
            evaluation_losses: text("evaluationLossesHash")?,
            weights: text("weightsHash")?,
        })
    }
}

/// Returns the hashes of an undisturbed `stagecoach run` of the jobs' manifest. The first call trains the job.
pub fn on_this_machine(folder: &Path) -> &'static Hashes {
    static HASHES: OnceLock<Hashes> = OnceLock::new();
    HASHES.get_or_init(|| run_on_this_machine(folder, "laptop", json!({})))
}

/// Like [`on_this_machine`], with the job name `name`, and with `changes` merged into the spec.
pub fn run_on_this_machine(folder: &Path, name: &str, changes: Value) -> Hashes {
    let workspace = folder.join(name);
    std::fs::create_dir_all(&workspace).unwrap();
    write_corpus(&workspace);
    let file = workspace.join("job.yaml");
    let mut manifest = spec(name, NAMESPACE);
    merge(&mut manifest["spec"], changes);
    std::fs::write(&file, manifest.to_string()).unwrap();
    let output =
        Command::new(built("stagecoach")).arg("run").arg(&file).arg("--workspace").arg(&workspace).output().unwrap();
    printed("stagecoach run", output);
    Hashes::read(&workspace.join(name)).expect("a result")
}

/// Returns the path of a binary from which the images were made. It is in the parent folder of the folder with this
/// test's binary.
///
/// # Panics
/// If the binary does not exist.
pub fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let built = own.ancestors().nth(2).unwrap().join(name);
    assert!(built.is_file(), "{} is not built: run `make build`", built.display());
    built
}
