//! The changes that a node makes in the machine's kernel, and their removal: a bridge, firewall rules and kernel
//! settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::firewall;
use super::place::{ADDRESS, BRIDGE};
use stagecoach_cluster::{SERVICES, run};

/// The kernel settings that the kubelet, kube-proxy and the CNI plugins change.
const SETTINGS: [&str; 10] = [
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/bridge/bridge-nf-call-iptables",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
];

/// Kernel settings by their path below `/proc/sys`.
pub(crate) type Sysctls = BTreeMap<String, String>;

/// Returns the current settings.
pub(crate) fn settings() -> Sysctls {
    let read = |name: &str| Some((name.to_owned(), std::fs::read_to_string(setting(name)).ok()?));
    SETTINGS.iter().filter_map(|name| read(name)).collect()
}

/// Restores the settings that have changed since `before`.
///
/// # Errors
/// If the kernel refuses a former value.
pub(crate) fn restore(before: &Sysctls) -> Result<()> {
    for (name, value) in before {
        let file = setting(name);
        if std::fs::read_to_string(&file).is_ok_and(|now| now != *value) {
            std::fs::write(&file, value).with_context(|| file.display().to_string())?;
        }
    }
    Ok(())
}

fn setting(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name)
}

/// Checks that the machine has no route to addresses in the node's ranges, and no firewall rules of a Kubernetes
/// cluster. The removal of the node's rules would also remove the rules of another cluster.
///
/// # Errors
/// If the machine has such addresses or rules.
pub(crate) fn expect_unused() -> Result<()> {
    let saved = call("iptables-save", &[], "")?;
    ensure!(
        !firewall::is_in_use(&saved),
        "this machine has firewall rules of a Kubernetes (chains KUBE-*): use another machine"
    );
    let routes = call("ip", &["-4", "route"], "")?;
    for range in ["10.250.0.", "10.251.0.", "10.96."] {
        let taken = routes.lines().find(|route| route.starts_with(range));
        ensure!(
            taken.is_none(),
            "the node needs the addresses {range}*, and this machine has a route there: {taken:?}"
        );
    }
    Ok(())
}

/// Creates the bridge with the node's address, and the route to Services.
///
/// # Errors
/// If the bridge or the route can't be created.
pub(crate) fn make_bridge() -> Result<()> {
    call("ip", &["link", "add", BRIDGE, "type", "bridge"], "")?;
    call("ip", &["address", "add", &format!("{ADDRESS}/24"), "dev", BRIDGE], "")?;
    call("ip", &["link", "set", BRIDGE, "up"], "")?;
    // without this route, a machine without a default route can't reach Services
    call("ip", &["route", "add", SERVICES, "dev", BRIDGE], "").map(drop)
}

/// Removes the bridge. An absent bridge is not an error.
///
/// # Errors
/// If the bridge can't be removed.
pub(crate) fn remove_bridge() -> Result<()> {
    if PathBuf::from("/sys/class/net").join(BRIDGE).exists() {
        call("ip", &["link", "delete", BRIDGE], "")?;
    }
    Ok(())
}

/// Removes the node's firewall rules.
///
/// # Errors
/// If the rules can't be read or removed.
pub(crate) fn remove_rules() -> Result<()> {
    for family in ["iptables", "ip6tables"] {
        let script = firewall::removal(&call(&format!("{family}-save"), &[], "")?);
        if !script.is_empty() {
            call(&format!("{family}-restore"), &["--noflush"], &script)?;
        }
    }
    Ok(())
}

/// Runs a program with the standard input `input`, and waits for its exit. Returns its output.
///
/// # Errors
/// If the program fails. The error contains the program's standard error.
pub(crate) fn call(program: &str, arguments: &[&str], input: &str) -> Result<String> {
    // a user's PATH may lack the folders of administrators' programs
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    let found = found.with_context(|| format!("{program} is missing: run tests/node/packages.sh"))?;
    let output = run(Command::new(found).args(arguments).env("PATH", path), input);
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), stderr.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Sends a signal to process `id`. A process that has ended is not an error.
pub(crate) fn send_signal(signal: Signal, id: i32) {
    let _ = Pid::from_raw(id).map(|id| kill_process(id, signal));
}
