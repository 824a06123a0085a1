//! Calls of containerd through its client `ctr`, in the namespace that Kubernetes uses.

use std::path::Path;

use anyhow::{Context, Result};

use super::machine;
use super::place::NodeFolder;
use stagecoach_cluster::tools;

/// Runs `ctr`. Returns its output.
///
/// # Errors
/// If `ctr` fails. The error contains the standard error of `ctr`.
pub(crate) fn call(place: &NodeFolder, arguments: &[&str]) -> Result<String> {
    let (program, socket) = (tools::find("ctr")?.display().to_string(), place.text("containerd.sock"));
    let all = [&["--address", &socket, "--namespace", "k8s.io"], arguments].concat();
    machine::call(&program, &all, "")
}

/// Whether containerd answers.
pub(crate) fn answers(place: &NodeFolder) -> bool {
    place.at("containerd.sock").exists() && call(place, &["--timeout", "2s", "version"]).is_ok()
}

/// Imports an OCI archive under the names that it contains.
///
/// # Errors
/// If the archive can't be read.
pub(crate) fn import(place: &NodeFolder, archive: &Path) -> Result<()> {
    let file = archive.to_str().with_context(|| format!("{} is not UTF-8", archive.display()))?;
    call(place, &["images", "import", file]).map(drop)
}

/// Returns the process id, on the machine, of the first process in a container: the running container `name` of the pod
/// with this UID.
///
/// # Errors
/// If no such container runs.
pub(crate) fn process(place: &NodeFolder, pod_uid: &str, name: &str) -> Result<i32> {
    let filter = format!(r#"labels."io.kubernetes.pod.uid"=={pod_uid},labels."io.kubernetes.container.name"=={name}"#);
    let ids = call(place, &["containers", "list", "--quiet", &filter])?;
    let tasks = call(place, &["tasks", "list"])?;
    let running = tasks.lines().filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [id, process, "RUNNING"] => Some((id, process)),
        _ => None,
    });
    let mut ours = running.filter(|(id, _)| ids.lines().any(|one| one == *id));
    let (_, process) = ours.next().with_context(|| format!("no container {name} of pod {pod_uid} runs"))?;
    Ok(process.parse()?)
}
