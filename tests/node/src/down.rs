//! Ends a node that may be incomplete: each step searches for its objects, and does nothing if it finds none.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::geteuid;
use serde_json::Value;

use super::daemon::Daemon;
use super::place::{CLAIM, NETWORK, NodeFolder, claimed};
use super::{agents, cgroups, machine, mounts};

/// Ends the node in `folder`: removes its pods, processes, mounts, links, rules, control groups and files. The folder
/// `logs` stays. A folder without a node is not an error.
///
/// # Errors
/// If a part can't be removed.
pub fn down(folder: &Path) -> Result<()> {
    let folder = std::path::absolute(folder)?;
    let ours = claimed().is_some_and(|claim| claim == folder || folder.canonicalize().is_ok_and(|real| real == claim));
    if ours {
        std::fs::create_dir_all(&folder)?;
    }
    if !folder.exists() {
        return Ok(());
    }
    let place = NodeFolder::new(&folder)?;
    let _lock = place.lock()?;
    match claimed() {
        Some(other) if other != place.path() => {
            bail!("the node of this machine is in {}, not in {}", other.display(), place.path().display())
        }
        None if !place.marker().exists() => Ok(()),
        _ => remove(&place),
    }
}

/// Like [`down`], for the machine's node in any folder.
///
/// # Errors
/// If a part can't be removed.
pub fn down_any() -> Result<()> {
    claimed().map_or(Ok(()), |folder| down(&folder))
}

/// Like [`down`], for a caller that holds the lock.
pub(crate) fn remove(place: &NodeFolder) -> Result<()> {
    ensure!(geteuid().is_root(), "ending a node requires root: run this with sudo");
    // the processes that would restart other processes end first
    let mut daemons = Daemon::all(place);
    daemons.sort_by_key(|daemon| ![agents::KUBELET, agents::CONTAINERD].contains(&daemon.name()));
    daemons.iter().try_for_each(Daemon::kill)?;
    // pods, their shims, and processes without a record end next
    cgroups::remove()?;
    mounts::unmount_below(place.path())?;
    machine::remove_bridge()?;
    machine::remove_rules()?;
    if let Ok(text) = std::fs::read_to_string(place.marker()) {
        let marker: Value = serde_json::from_str(&text).unwrap_or_default();
        machine::restore(&serde_json::from_value(marker["settings"].clone()).unwrap_or_default())?;
    }
    remove_traces(place);
    for entry in std::fs::read_dir(place.path())?.flatten().filter(|entry| entry.file_name() != "logs") {
        // this loop keeps the marker, which is removed last: as long as it exists, `down` can run again
        if entry.path() != place.marker() {
            delete(&entry.path())?;
        }
    }
    delete(&place.marker())?;
    if claimed().is_some_and(|folder| folder == place.path()) {
        delete(Path::new(CLAIM))?;
    }
    Ok(())
}

/// Removes the files that the kubelet and the CNI plugins write outside the node's folder. No setting can prevent these
/// writes.
fn remove_traces(place: &NodeFolder) {
    let entries = |folder: &str| -> Vec<PathBuf> {
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let is_log = |link: &PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(place.path()));
    let mut traces: Vec<PathBuf> = entries("/var/log/containers").into_iter().filter(is_log).collect();
    // The name of a cached file contains the network and the pod's sandbox. Only the name of the file for the pod's
    // loopback device lacks the network, so this function finds that file by the sandbox.
    let cached = entries("/var/lib/cni/results");
    let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for file in &cached {
        if let Some(sandbox) =
            name(file).strip_prefix(&format!("{NETWORK}-")).and_then(|rest| rest.strip_suffix("-eth0"))
        {
            traces.extend(cached.iter().filter(|file| name(file).contains(sandbox)).cloned());
        }
    }
    let devices = "/var/lib/kubelet/device-plugins";
    traces.extend(["kubelet.sock", "kubelet_internal_checkpoint"].map(|file| Path::new(devices).join(file)));
    traces.iter().for_each(|file| drop(std::fs::remove_file(file)));
    // `remove_dir` removes only empty folders
    for folder in ["/var/log/containers", "/var/lib/cni/results", "/var/lib/cni", devices, "/var/lib/kubelet"] {
        let _ = std::fs::remove_dir(folder);
    }
}

fn delete(path: &Path) -> Result<()> {
    let is_folder = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    let removed = if is_folder { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}
