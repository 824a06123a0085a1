//! The node's control groups: `/stagecoach/system` for its processes and their children, and `/stagecoach/kubepods` for
//! its pods. In version 1 each controller has a separate hierarchy. Version 2 has one hierarchy.

use std::fs::{File, read_to_string, write};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::machine::send_signal;
use stagecoach_cluster::attempt;

/// The node's group in each hierarchy. It is also the root group of the kubelet.
pub(crate) const ROOT: &str = "stagecoach";
/// The group within [`ROOT`] for containerd, its shims, the kubelet and the control plane.
const SYSTEM: &str = "system";
/// The time limit in seconds for the end of killed processes.
const GONE_SECONDS: u64 = 30;

/// A mounted hierarchy of control groups.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    /// The options of the mount, which include the controllers of version 1, such as `memory`. Empty for version 2.
    controllers: Vec<String>,
}

impl Hierarchy {
    fn controls(&self, name: &str) -> bool {
        self.controllers.iter().any(|controller| controller == name)
    }
}

/// Returns all mounted hierarchies. Where both versions are mounted, version 1 has the controllers, and version 2 comes
/// last.
fn hierarchies(mounts: &str) -> Vec<Hierarchy> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut all: Vec<Hierarchy> = fields
        .filter_map(|fields| match fields[..] {
            [_, mount, "cgroup", options, ..] => {
                Some(Hierarchy { mount: mount.into(), controllers: options.split(',').map(String::from).collect() })
            }
            [_, mount, "cgroup2", ..] => Some(Hierarchy { mount: mount.into(), controllers: vec![] }),
            _ => None,
        })
        .collect();
    all.sort_by_key(|one| one.controllers.is_empty());
    all
}

fn mounted() -> Result<Vec<Hierarchy>> {
    let all = hierarchies(&read_to_string("/proc/self/mounts")?);
    ensure!(!all.is_empty(), "no control groups are mounted at /sys/fs/cgroup: a node needs them");
    Ok(all)
}

/// Creates the node's groups.
///
/// # Errors
/// If a group can't be created.
pub(crate) fn make() -> Result<()> {
    for hierarchy in mounted()? {
        let mut parent = hierarchy.mount.clone();
        for name in [ROOT, SYSTEM] {
            if hierarchy.controllers.is_empty() && name == ROOT {
                // a group has only the controllers that its parent enables
                let all = read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
                for controller in all.split_whitespace() {
                    // the kernel may refuse a controller; the kubelet reports an error if it needs that controller
                    let _ = write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
                }
            }
            let group = parent.join(name);
            match std::fs::create_dir(&group) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(|| group.display().to_string());
                }
                _ => {}
            }
            // a new cpuset is empty and accepts no process
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if hierarchy.controls("cpuset") {
                    write(group.join(file), read_to_string(parent.join(file))?)?;
                }
            }
            parent = group;
        }
    }
    Ok(())
}

/// Returns the files to which a process writes 0 to join the node's system group.
///
/// # Errors
/// If the groups do not exist.
pub(crate) fn system() -> Result<Vec<File>> {
    let files = mounted()?.into_iter().map(|one| one.mount.join(ROOT).join(SYSTEM).join("cgroup.procs"));
    files.map(|file| File::options().write(true).open(&file).with_context(|| file.display().to_string())).collect()
}

/// Kills every process of the node's groups, including the processes of pods, and removes the groups.
///
/// # Errors
/// If a process or a group remains.
pub(crate) fn remove() -> Result<()> {
    let roots: Vec<PathBuf> = mounted()?.into_iter().map(|one| one.mount.join(ROOT)).collect();
    // the processes end first, since they can't be found without their groups
    let end = Duration::from_secs(GONE_SECONDS);
    attempt("the processes of the node's control groups to end", end, || {
        let alive: Vec<i32> = roots.iter().flat_map(|root| processes(root)).collect();
        alive.iter().for_each(|id| send_signal(Signal::KILL, *id));
        Ok(alive.is_empty().then_some(()))
    })?;
    for root in roots {
        // an ended process leaves its group a moment later
        attempt(&format!("{} to be free", root.display()), end, || Ok(remove_tree(&root).ok()))?;
    }
    Ok(())
}

/// Returns the processes of a group and of the groups below it.
fn processes(group: &Path) -> Vec<i32> {
    let own = read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut all: Vec<i32> = own.lines().filter_map(|line| line.parse().ok()).collect();
    all.extend(below(group).iter().flat_map(|child| processes(child)));
    all
}

fn remove_tree(group: &Path) -> io::Result<()> {
    below(group).iter().try_for_each(|child| remove_tree(child))?;
    match std::fs::remove_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn below(group: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(group).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

/// The memory controller's files of a process's control group.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    group: PathBuf,
    first_version: bool,
}

impl Memory {
    /// Returns the memory of the control group of process `id`.
    ///
    /// # Errors
    /// If the process has ended.
    pub(crate) fn of(id: i32) -> Result<Memory> {
        let all = mounted()?;
        let file = format!("/proc/{id}/cgroup");
        let groups = read_to_string(&file).with_context(|| file.clone())?;
        let first = all.iter().find(|one| one.controls("memory"));
        let wanted = if first.is_some() { "memory" } else { "" };
        let path = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            controllers.split(',').any(|name| name == wanted).then(|| path.trim_start_matches('/').to_owned())
        });
        let path = path.with_context(|| format!("{file} names no group for memory"))?;
        let mount = &first.unwrap_or(&all[0]).mount;
        Ok(Memory { group: mount.join(path), first_version: first.is_some() })
    }

    /// Returns the memory in bytes that the kernel can't reclaim: all memory except the file cache.
    ///
    /// # Errors
    /// If the group does not exist.
    pub(crate) fn used(&self) -> Result<u64> {
        let (total, cache) = match self.first_version {
            true => ("memory.usage_in_bytes", ["total_active_file", "total_inactive_file"]),
            false => ("memory.current", ["active_file", "inactive_file"]),
        };
        let used: u64 = self.read(total)?.parse()?;
        let stat = self.read("memory.stat")?;
        let fields = stat.lines().filter_map(|line| line.split_once(' '));
        let cached = fields.filter(|(name, _)| cache.contains(name)).filter_map(|(_, bytes)| bytes.parse::<u64>().ok());
        Ok(used.saturating_sub(cached.sum()))
    }

    /// Returns the limit in bytes as the kernel writes it. Without a limit, version 2 writes `max`, and version 1 a
    /// number above the machine's memory.
    ///
    /// # Errors
    /// If the group does not exist.
    pub(crate) fn limit(&self) -> Result<String> {
        self.read(self.limit_file())
    }

    /// Sets the limit. If the limit is below the used memory, the kernel either refuses it or kills a process.
    ///
    /// # Errors
    /// If the kernel refuses the limit.
    pub(crate) fn set_limit(&self, limit: &str) -> Result<()> {
        let file = self.group.join(self.limit_file());
        write(&file, limit).with_context(|| format!("{limit} to {}", file.display()))
    }

    /// Returns the file to which a process writes its id to join the group.
    pub(crate) fn processes_file(&self) -> PathBuf {
        self.group.join("cgroup.procs")
    }

    /// Whether the group has been removed, which happens after its process has ended.
    pub(crate) fn is_gone(&self) -> bool {
        !self.group.exists()
    }

    fn limit_file(&self) -> &'static str {
        if self.first_version { "memory.limit_in_bytes" } else { "memory.max" }
    }

    fn read(&self, name: &str) -> Result<String> {
        let file = self.group.join(name);
        Ok(read_to_string(&file).with_context(|| file.display().to_string())?.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_found() {
        let second = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(hierarchies(second), [Hierarchy { mount: "/sys/fs/cgroup".into(), controllers: vec![] }]);
        let both = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                    cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n";
        let found = hierarchies(both);
        assert!(found[0].controls("cpuacct") && !found[0].controls("memory"));
        assert_eq!(found[1].mount, Path::new("/sys/fs/cgroup/unified"));
    }
}
