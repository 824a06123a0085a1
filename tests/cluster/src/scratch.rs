//! A folder that is removed when its owner ends, in whatever way.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A script that waits for the end of its input, and then removes the folder. The input ends when the process at the
/// other end of the pipe ends. The script tries for a while, since processes that die with the test may still write. It
/// ignores Ctrl-C at the terminal.
const CLEANUP_SCRIPT: &str =
    r#"trap "" INT HUP TERM; cat >/dev/null; for i in $(seq 100); do rm -rf "$0" 2>/dev/null && exit; sleep 0.1; done"#;

/// A temporary folder. A separate process removes it, so it is also removed when the test is killed, or when a static
/// holds it, which is never dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    cleanup: Child,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        let path = tempfile::Builder::new().prefix("stagecoach-cluster-").tempdir().unwrap().keep();
        let cleanup = Command::new("sh")
            .args(["-c", CLEANUP_SCRIPT])
            .arg(&path)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        Scratch { path, cleanup }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.cleanup.stdin.take());
        let _ = self.cleanup.wait();
    }
}
