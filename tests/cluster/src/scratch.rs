//! A folder that goes when its owner goes, however that happens.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Waits for the end of its input, which is the end of whoever holds the other side, and removes the folder. It tries
/// for a while: what dies with the test may still write. A terminal's Ctrl-C is not for it.
const BROOM: &str =
    r#"trap "" INT HUP TERM; cat >/dev/null; for i in $(seq 100); do rm -rf "$0" 2>/dev/null && exit; sleep 0.1; done"#;

/// A temporary folder. A process of its own removes it, so that it also goes when the test is killed, or when it is
/// held by a static, which nobody drops.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    broom: Child,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        let path = tempfile::Builder::new().prefix("stagecoach-cluster-").tempdir().unwrap().keep();
        let broom = Command::new("sh")
            .args(["-c", BROOM])
            .arg(&path)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        Scratch { path, broom }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.broom.stdin.take());
        let _ = self.broom.wait();
    }
}
