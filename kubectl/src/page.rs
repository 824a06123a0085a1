//! `kubectl stagecoach page`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Args;
use stagecoach_api::contract::{CONTAINER_NAME, PAGE_NOTE};

use crate::cluster::{self, JobPod, PodRole};
use crate::kubectl::Kubectl;

/// The beginning of the page's address, which names the loopback interface of the pod.
const LOOPBACK: &str = "http://127.0.0.1:";

/// A job's live page.
#[derive(Debug, Args)]
pub(crate) struct PageCommand {
    /// The job.
    job: String,
    /// The port of 127.0.0.1 at which the page is served; any free port by default.
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    page_port: u16,
    /// Open the page in the browser.
    #[arg(long)]
    open: bool,
}

/// The address of a page in its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    port: u16,
    /// The path of the page, with the token.
    path: String,
}

impl PageCommand {
    pub(crate) fn run(self, kubectl: &Kubectl, out: &mut dyn Write) -> anyhow::Result<()> {
        let job = cluster::job(kubectl, &self.job)?;
        let candidates = serving(cluster::pods(kubectl, &job)?);
        let (pod, address) = candidates
            .iter()
            .find_map(|pod| {
                // read the whole log, because a spare logs the address only when it becomes the leader
                let log = kubectl.output(&["logs", &pod.name, "--container", CONTAINER_NAME]).ok()?;
                Some((pod, address(&log)?))
            })
            .with_context(|| {
                format!(
                    "no running pod of job {} has the address of a page in its log: the leader of the built-in trainer \
                     logs the address when it begins to lead, and a rotated log no longer contains the address",
                    self.job
                )
            })?;
        let ports = format!(
            "{}:{}",
            if self.page_port == 0 { String::new() } else { self.page_port.to_string() },
            address.port
        );
        let mut forwarder = kubectl.start(&["port-forward", "--address=127.0.0.1", &pod.name, &ports])?;
        let mut output = BufReader::new(forwarder.stdout.take().context("kubectl port-forward has no output")?).lines();
        let Some(port) = output.by_ref().map_while(Result::ok).find_map(|line| local_port(&line)) else {
            let status = forwarder.wait()?;
            bail!("kubectl port-forward to pod {} ended ({status}) before it forwarded anything", pod.name);
        };
        let url = format!("{LOOPBACK}{port}{}", address.path);
        writeln!(out, "{url}")?;
        if self.open {
            open(&url);
        }
        // kubectl writes a line for every connection: read these lines until Ctrl-C, which also ends kubectl, or until
        // the pod ends
        output.map_while(Result::ok).for_each(drop);
        let status = forwarder.wait()?;
        bail!(
            "kubectl port-forward to pod {} ended ({status}): if stage 0 was replaced, another pod serves the page; \
             run the command again",
            pod.name
        )
    }
}

/// Returns the pods that may serve the page, in the order in which to try them: the pods of stage 0 by replica, with
/// the newest pod of each replica first, and then the spares. The page is normally served by stage 0 of the first
/// replica. If the first replica was missing, stage 0 of another replica serves the page. A spare may have replaced
/// stage 0.
fn serving(pods: Vec<JobPod>) -> Vec<JobPod> {
    let newest = pods.iter().map(|pod| pod.attempt).max().unwrap_or_default();
    let may_serve = |pod: &JobPod| {
        let has_page = matches!(pod.role, PodRole::Stage { stage: 0, .. } | PodRole::Spare(_));
        pod.is_running && pod.attempt == newest && has_page
    };
    let mut pods: Vec<JobPod> = pods.into_iter().filter(may_serve).collect();
    pods.sort_by_key(|pod| (pod.role, std::cmp::Reverse(pod.incarnation)));
    pods
}

/// Returns the last page address in the log of a pod.
fn address(log: &str) -> Option<Address> {
    let line = log.lines().rfind(|line| line.contains(PAGE_NOTE) && line.contains(LOOPBACK))?;
    let (_, rest) = line.split_once(LOOPBACK)?;
    let (port, path) = rest.split_once('/')?;
    let end = path.find(|c: char| !c.is_ascii_graphic() || c == '"').unwrap_or(path.len());
    Some(Address { port: port.parse().ok()?, path: format!("/{}", &path[..end]) })
}

/// Returns the port in `Forwarding from 127.0.0.1:PORT -> 9091`.
fn local_port(line: &str) -> Option<u16> {
    line.strip_prefix("Forwarding from 127.0.0.1:")?.split(' ').next()?.parse().ok()
}

/// Opens `url` in the browser. The caller has already printed `url`, in case the browser can't be opened.
fn open(url: &str) {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let started =
        Command::new(opener).arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    if let Err(error) = started {
        eprintln!("could not start {opener} ({error}): open the address yourself");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_last_one_in_the_log() {
        let say =
            |address: &str| format!("the live page, after `kubectl port-forward` of its port to this pod: {address}\n");
        let log = say("http://127.0.0.1:9091/old/") + "step 1\n" + &say("http://127.0.0.1:9092/new/") + "step 2\n";
        assert_eq!(address(&log), Some(Address { port: 9092, path: "/new/".into() }));
        assert_eq!(address("{\"message\":\"the live page: http://127.0.0.1:9091/t/\"}").unwrap().path, "/t/");
        assert_eq!(address(&say("http://127.0.0.1:9091/t/\u{1b}[2J")).unwrap().path, "/t/");
        assert_eq!(address("the job has no page: no port\nsee http://127.0.0.1:9091/x\n"), None);
        assert_eq!(local_port("Forwarding from 127.0.0.1:41234 -> 9091"), Some(41234));
        assert_eq!(local_port("Forwarding from [::1]:41234 -> 9091"), None);
    }

    #[test]
    fn the_newest_stage_0_is_asked_first_then_spares() {
        let pod = |role, attempt, incarnation, is_running| JobPod {
            name: format!("{role}-{attempt}-{incarnation}"),
            role,
            attempt,
            incarnation,
            has_started: true,
            is_running,
        };
        let pods = vec![
            pod(PodRole::Spare(0), 2, 0, true),
            pod(PodRole::Stage { replica: None, stage: 0 }, 1, 0, true),
            pod(PodRole::Stage { replica: None, stage: 0 }, 2, 0, true),
            pod(PodRole::Stage { replica: None, stage: 0 }, 2, 1, true),
            pod(PodRole::Stage { replica: None, stage: 0 }, 2, 2, false),
            pod(PodRole::Stage { replica: None, stage: 1 }, 2, 0, true),
        ];
        let names = |pods| serving(pods).into_iter().map(|pod| pod.name).collect::<Vec<String>>();
        assert_eq!(names(pods), ["stage 0-2-1", "stage 0-2-0", "spare 0-2-0"]);
        let stage_pod = |replica, stage| pod(PodRole::Stage { replica: Some(replica), stage }, 2, 0, true);
        let replicas = names(vec![stage_pod(1, 0), stage_pod(1, 1), stage_pod(0, 0), stage_pod(0, 1)]);
        assert_eq!(replicas, [stage_pod(0, 0).name, stage_pod(1, 0).name]);
    }
}
