//! A temporary folder that is removed when its owner drops it, or when the test's process dies.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A script that waits for the end of its input, and then removes the folder. The input is a pipe from the test's
/// process, and ends at the latest when the test's process ends. The script retries for 10 s, since processes that die
/// with the test may still write. The script ignores Ctrl-C at the terminal.
const CLEANUP_SCRIPT: &str =
    r#"trap "" INT HUP TERM; cat >/dev/null; for i in $(seq 100); do rm -rf "$0" 2>/dev/null && exit; sleep 0.1; done"#;

/// A temporary folder. A separate process removes the folder, so the folder is also removed if the test is killed, or
/// if this value is in a static, which Rust never drops.
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
