//! Installs the stand-in for NCCL and the CUDA driver (`tests/nccl`) in a folder in which the loader finds it.

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::{run_command, stagecoach};

/// The environment variable with the folders that the loader searches first.
pub const LOADER_PATH: &str = "LD_LIBRARY_PATH";

/// The environment variable that marks a process whose loader finds the stand-in.
const IS_HERE: &str = "STAGECOACH_NCCL_STAND_IN";

/// Returns a value of [`LOADER_PATH`] that begins with the stand-in's folder. In that folder, the stand-in has the
/// names of the libraries that it replaces.
///
/// # Panics
/// If the stand-in is not built.
pub fn loader_path() -> String {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let built = stagecoach().with_file_name("libnccl_stand_in.so");
        assert!(built.is_file(), "{} is not built: run `cargo build --workspace` first", built.display());
        let folder = built.with_file_name("nccl-stand-in");
        std::fs::create_dir_all(&folder).unwrap();
        // programs open the driver's library by either of its names
        for name in ["libnccl.so.2", "libcuda.so", "libcuda.so.1"] {
            // all names link to one file, so that the loader maps it once; another test may have created the links
            // already
            match symlink(&built, folder.join(name)) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => panic!("{error}"),
                _ => {}
            }
        }
        folder
    });
    let before = std::env::var(LOADER_PATH).map(|path| format!(":{path}")).unwrap_or_default();
    format!("{}{before}", folder.display())
}

/// Whether this process has the stand-in. If not, this function runs the calling test, whose name is `test`, in a new
/// process that has the stand-in.
///
/// # Panics
/// If the test fails in that process.
pub fn is_here(test: &str) -> bool {
    is_here_with(test, &[])
}

/// Like [`is_here`], with these environment variables in that process.
///
/// # Panics
/// If the test fails in that process.
pub fn is_here_with(test: &str, environment: &[(&str, &str)]) -> bool {
    if std::env::var_os(IS_HERE).is_some() {
        return true;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--nocapture"]).env(LOADER_PATH, loader_path()).env(IS_HERE, "1");
    child.envs(environment.iter().copied());
    let (code, printed) = run_command(&mut child);
    assert!(code == Some(0) && printed.contains("1 passed"), "{printed}");
    false
}
