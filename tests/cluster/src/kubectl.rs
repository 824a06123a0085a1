//! kubectl as a user runs it, with one kubeconfig.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::process::run;
use crate::tools::tool;

/// kubectl with the rights of one user.
#[derive(Clone, Debug)]
pub struct Kubectl {
    /// The kubeconfig with the user's rights.
    pub kubeconfig: PathBuf,
    /// The folder in which kubectl caches the API's discovery documents.
    pub cache: PathBuf,
}

impl Kubectl {
    /// Returns an administrator's kubectl, whose kubeconfig is in `folder`.
    pub fn admin(folder: &Path) -> Kubectl {
        Kubectl { kubeconfig: folder.join("admin.kubeconfig"), cache: folder.join("kubectl") }
    }

    /// Runs kubectl with the standard input `input`, and waits for its exit.
    pub fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(tool("kubectl"));
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(&self.cache);
        run(command.args(arguments), input)
    }

    /// Applies manifests.
    ///
    /// # Errors
    /// If kubectl fails. The error is kubectl's standard error.
    pub fn try_apply(&self, yaml: &str) -> Result<(), String> {
        let output = self.run(&["apply", "-f", "-"], yaml);
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }
}
