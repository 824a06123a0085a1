//! Checks the parts of `kubectl stagecoach` that need a job with real pods.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use stagecoach_cluster::{printed, spawn, tool};
use stagecoach_e2e::{E2eJob, NAMESPACE, Product, built};

/// Returns the command `kubectl stagecoach ARGUMENTS`. kubectl finds the plugin on the PATH.
fn plugin(product: &Product, arguments: &[&str]) -> Command {
    let kubectl = tool("kubectl");
    let folders = [&built("kubectl-stagecoach"), &kubectl].map(|program| program.parent().unwrap().to_owned());
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let path = folders.into_iter().chain(std::env::split_paths(&inherited));
    let mut command = Command::new(&kubectl);
    command.args(["stagecoach", "--namespace", NAMESPACE]).args(arguments);
    command.env("KUBECONFIG", product.node.kubeconfig());
    command.env("PATH", std::env::join_paths(path.collect::<Vec<PathBuf>>()).unwrap()).stdin(Stdio::null());
    command
}

fn reported(product: &Product, arguments: &[&str]) -> String {
    let output = plugin(product, arguments).output().unwrap();
    printed(&format!("kubectl stagecoach {}", arguments.join(" ")), output)
}

/// A plugin that serves until Ctrl-C, and the kubectl that it started. Dropping this value ends both as Ctrl-C does.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-INT", "--", &group]).status();
        let _ = self.0.wait();
    }
}

/// Returns the response to `GET url`: head and body.
fn get(url: &str) -> String {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Checks that the plugin replays and audits steps of the complete job `job` in new pods.
pub(crate) fn proves(product: &Product, job: &E2eJob) {
    let name = &*job.name;
    let replayed = reported(product, &["replay", name, "--", "--step", "7", "--until", "9", "--stages", "1"]);
    assert!(replayed.contains("equal: ") && replayed.contains("bit for bit"), "{replayed}");
    let audited = reported(product, &["audit", name, "--", "--sample", "1", "--stages", "1"]);
    assert!(audited.contains("the record agrees with its receipts") && audited.contains(": equal"), "{audited}");
    let refused = plugin(product, &["replay", name, "--", "--step", "1000000"]).output().unwrap();
    let complained = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && complained.contains("ended with exit code "), "{complained}");
    let left = product.kubectl(&["get", "pj", "--output", "name"]);
    assert!(!left.contains(&format!("{name}-replay-")) && !left.contains(&format!("{name}-audit-")), "{left}");
}

/// Checks the plugin's output about `job`. The job trains, has a checkpoint, and has trained at least ten steps.
pub(crate) fn shows(product: &Product, job: &E2eJob) {
    let name = &*job.name;
    let checkpoints = reported(product, &["checkpoints", name]);
    assert!(checkpoints.starts_with("STEP") && checkpoints.contains("sizes match"), "{checkpoints}");
    let timeline = reported(product, &["timeline", name, "--step", "10"]);
    assert!(timeline.contains("measured") && timeline.contains("bubble"), "{timeline}");
    let top = reported(product, &["top", name]);
    assert!(top.contains(name) && top.contains("Running"), "{top}");

    let mut command = plugin(product, &["page", name]);
    let mut serving = Serving(spawn(command.process_group(0).stdout(Stdio::piped())).unwrap());
    let mut address = String::new();
    BufReader::new(serving.0.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let page = get(address.trim());
    assert!(page.starts_with("HTTP/1.1 200") && page.contains(name), "{address}{page}");
    // the server refuses a request without the token
    let (host, _) = address.trim().strip_prefix("http://").unwrap().split_once('/').unwrap();
    let refused = get(&format!("http://{host}/"));
    assert!(!refused.starts_with("HTTP/1.1 200") && !refused.contains(name), "{refused}");
}
