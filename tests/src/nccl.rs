//! The stand-in for NCCL and the CUDA driver (`tests/nccl`), where the loader finds it.

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::stagecoach;

/// The variable that tells the loader where to look first.
pub const LOADER_PATH: &str = "LD_LIBRARY_PATH";

/// Set in a process in whose loader's path the stand-in is.
const IS_HERE: &str = "STAGECOACH_NCCL_STAND_IN";

/// A loader's path with the stand-in at its head, under the names of the libraries that it stands in for.
///
/// # Panics
/// If it is not built.
pub fn loader_path() -> String {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let built = stagecoach().with_file_name("libnccl_stand_in.so");
        assert!(built.is_file(), "{} is not built: run `cargo build --workspace` first", built.display());
        let folder = built.with_file_name("nccl-stand-in");
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["libnccl.so.2", "libcuda.so.1"] {
            // both are one file, so that the loader has it once; another test may be as far
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

/// Whether this process has the stand-in. If not, runs the test of this name, which calls it, in one that has.
///
/// # Panics
/// If the test fails there.
pub fn is_here(test: &str) -> bool {
    is_here_with(test, &[])
}

/// The same with these variables in its environment.
///
/// # Panics
/// If the test fails there.
pub fn is_here_with(test: &str, environment: &[(&str, &str)]) -> bool {
    if std::env::var_os(IS_HERE).is_some() {
        return true;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--nocapture"]).env(LOADER_PATH, loader_path()).env(IS_HERE, "1");
    child.envs(environment.iter().copied());
    let output = child.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}
