//! A node leaves no trace on the machine, however it ends. `make e2e` runs this test after its node has ended.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use stagecoach_cluster::{is_gone, until};
use stagecoach_node::{TestNode, images};

/// Returns the mounts, links, rules, files and settings of this machine that a node could change or leave behind, one a
/// line. The node's end must leave no new line.
fn traces() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut add = |kind: &str, lines: Vec<String>| all.extend(lines.into_iter().map(|line| format!("{kind} {line}")));
    let read = |file: &str| -> Vec<String> {
        std::fs::read_to_string(file).unwrap_or_default().lines().map(String::from).collect()
    };
    let list = |folder: &str| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect()
    };
    add("mount", read("/proc/self/mounts"));
    add("link", list("/sys/class/net"));
    for folder in list("/sys/fs/cgroup").into_iter().chain(["/sys/fs/cgroup".to_owned()]) {
        add("group", list(&folder).into_iter().filter(|path| path.ends_with("/stagecoach")).collect());
    }
    for setting in ["kernel/panic_on_oops", "net/ipv4/ip_forward", "vm/overcommit_memory"] {
        add(setting, read(&format!("/proc/sys/{setting}")));
    }
    for folder in ["/run", "/var/lib/cni/results", "/var/log/containers", "/var/lib/kubelet"] {
        add("file", list(folder));
    }
    for program in ["iptables-save", "ip6tables-save"] {
        let output = Command::new(program).env("PATH", "/usr/sbin:/sbin").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        add(
            program,
            text.lines().filter(|line| line.contains("KUBE-") || line.contains("CNI-")).map(String::from).collect(),
        );
    }
    all
}

struct Machine {
    before: BTreeSet<String>,
    scratch: tempfile::TempDir,
    images: PathBuf,
}

impl Machine {
    fn folder(&self) -> PathBuf {
        self.scratch.path().join("n")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stagecoach-node"));
        command.args(arguments).env("STAGECOACH_PAUSE", self.images.join("pause.tar")).stderr(Stdio::piped());
        command
    }

    fn up(&self, folder: &Path) -> Child {
        self.command(&["up", folder.to_str().unwrap()]).spawn().unwrap()
    }

    fn down(&self) {
        let output = self.command(&["down", self.folder().to_str().unwrap()]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }

    /// Checks that only logs remain in the folder, and that no process in `ids` lives.
    #[track_caller]
    fn expect_nothing_left(&self, ids: &[u32]) {
        until("the links of pods to go", || {
            traces().difference(&self.before).all(|line| !line.starts_with("link")).then_some(())
        });
        let now = traces();
        let left: Vec<_> = now.difference(&self.before).collect();
        assert!(left.is_empty(), "left behind: {left:#?}");
        let alive: Vec<_> = ids.iter().filter(|id| !is_gone(**id)).collect();
        assert!(alive.is_empty(), "alive: {alive:?}");
        let files = std::fs::read_dir(self.folder()).into_iter().flatten().flatten().map(|entry| entry.file_name());
        assert!(files.into_iter().all(|name| name == "logs"));
    }
}

impl Drop for Machine {
    /// Ends the node. Otherwise, the removal of the scratch folder after a failure would delete the content of mounts.
    fn drop(&mut self) {
        let _ = self.command(&["down", self.folder().to_str().unwrap()]).status();
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the ids of all processes in the node's control groups.
fn processes() -> Vec<u32> {
    let all = "find /sys/fs/cgroup -path '*/stagecoach/*' -name cgroup.procs -exec cat {} +";
    let text = Command::new("sh").args(["-c", all]).output().unwrap().stdout;
    let ids: BTreeSet<u32> = String::from_utf8_lossy(&text).lines().map(|line| line.parse().unwrap()).collect();
    ids.into_iter().collect()
}

#[test]
#[ignore = "needs root, and no node on the machine; `make e2e` runs this"]
fn nothing_is_left_however_a_node_ends() {
    let scratch = tempfile::Builder::new().prefix("node-").tempdir().unwrap();
    let machine = Machine { before: traces(), scratch, images: images() };
    let folder = machine.folder();

    // end a node after its most important processes have died
    let output = machine.up(&folder).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let node = TestNode::attach(&folder);
    node.import(&machine.images.join("probe.tar"));
    let run = ["run", "a", "--image=localhost/stagecoach-probe:e2e", "--", "sleep"];
    assert!(node.kubectl(&run, "").status.success());
    let container = until("a pod to run", || {
        let pod = node.get("/api/v1/namespaces/default/pods/a")?;
        let running = !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
        running.then(|| node.container(pod["metadata"]["uid"].as_str().unwrap(), "a"))
    });
    let other = machine.up(&machine.scratch.path().join("other")).wait_with_output().unwrap();
    assert!(stderr(&other).contains(&format!("already, in {}", folder.display())), "{}", stderr(&other));
    let ids = processes();
    assert!(ids.len() > 9 && ids.contains(&(container.process_id() as u32)), "{ids:?}");
    for name in ["kubelet", "containerd", "kube-apiserver"] {
        let record = std::fs::read_to_string(folder.join(format!("processes/{name}.json"))).unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        kill_process(Pid::from_raw(record["id"].as_i64().unwrap() as i32).unwrap(), Signal::KILL).unwrap();
    }
    machine.down();
    machine.expect_nothing_left(&ids);
    // `down` without a node succeeds, with and without a folder argument
    machine.down();
    assert!(machine.command(&["down"]).status().unwrap().success());

    // an interrupted `up` removes all that it has started; after a killed `up`, `down` removes these things
    for (name, how) in [("etcd", Signal::INT), ("kubelet", Signal::KILL)] {
        let child = machine.up(&folder);
        let record = folder.join(format!("processes/{name}.json"));
        until("a part to be started", || record.exists().then_some(()));
        let ids = processes();
        kill_process(Pid::from_child(&child), how).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        if how == Signal::KILL {
            assert!(ids.iter().any(|id| !is_gone(*id)));
            let again = machine.up(&folder).wait_with_output().unwrap();
            assert!(stderr(&again).contains("already, in"), "{}", stderr(&again));
            machine.down();
        }
        machine.expect_nothing_left(&ids);
    }

    // start with an archive that lacks the pause image, so that a part of the start fails
    let wrong =
        machine.command(&["up", folder.to_str().unwrap(), "--pause"]).arg(machine.images.join("probe.tar")).output();
    assert!(stderr(&wrong.unwrap()).contains("does not contain the image localhost/pause:1"));
    machine.expect_nothing_left(&[]);
}
