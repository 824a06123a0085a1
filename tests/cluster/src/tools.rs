//! Finds the cluster's programs, which `tools.sh` builds into a folder below `~/.cache/stagecoach`.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// The environment variable with the folder of the programs. Without the variable, the newest complete folder in the
/// cache is used.
const FOLDER: &str = "STAGECOACH_CLUSTER_TOOLS";
/// The programs that a complete folder contains.
const NEEDED: [&str; 6] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm"];

/// Returns the path of the program `name`.
///
/// # Panics
/// If the program was not built.
pub fn tool(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the path of the program `name`.
///
/// # Errors
/// If the program was not built.
pub fn find(name: &str) -> anyhow::Result<PathBuf> {
    let path = folder()?.join(name);
    anyhow::ensure!(path.is_file(), "{} does not exist: run `make cluster-tools`", path.display());
    Ok(path)
}

/// Returns the folder with all programs. An error means that no complete folder exists.
pub fn folder() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER).filter(|folder| !folder.is_empty()) {
        return Ok(PathBuf::from(folder));
    }
    let cache = PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/stagecoach");
    newest(&cache).with_context(|| {
        format!("no complete set of Kubernetes programs in {}: run `make cluster-tools`", cache.display())
    })
}

/// Returns the newest complete `cluster-*` folder.
fn newest(cache: &Path) -> Option<PathBuf> {
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cluster-"));
    let complete = |path: &PathBuf| NEEDED.iter().all(|name| path.join(name).is_file());
    let folders = std::fs::read_dir(cache).ok()?.flatten().map(|entry| entry.path());
    folders
        .filter(|path| named(path) && complete(path))
        .max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_folder_is_not_taken() {
        let cache = tempfile::tempdir().unwrap();
        assert_eq!(newest(cache.path()), None);
        for (name, tools) in [("cluster-old", &NEEDED[..]), ("cluster-building", &NEEDED[..4]), ("other", &NEEDED[..])]
        {
            let folder = cache.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            tools.iter().for_each(|tool| std::fs::write(folder.join(tool), "").unwrap());
        }
        assert_eq!(newest(cache.path()), Some(cache.path().join("cluster-old")));
    }
}
