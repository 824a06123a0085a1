//! `kubectl stagecoach logs --follow`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use stagecoach_api::contract::CONTAINER_NAME;
use stagecoach_api::job::JobPhase;

use super::lines;
use crate::cluster::{self, JobPod};
use crate::kubectl::Kubectl;

/// The interval between two requests for the list of pods.
const INTERVAL: Duration = Duration::from_secs(2);

/// A line that a pod wrote.
struct Line {
    pod: JobPod,
    at: Timestamp,
    text: String,
}

/// Writes the log lines of the job's pods until the job is over or stopped. Pods of replaced stages and of new attempts
/// are included. `shown` contains, for each pod, the time of the last line that is already shown. The function writes
/// lines in the order in which they arrive, and `show` formats each line.
///
/// # Errors
/// Returns the error of kubectl, or an error if the reader of `out` has closed the output.
pub(crate) fn follow(
    kubectl: &Kubectl,
    name: &str,
    mut shown: BTreeMap<String, Timestamp>,
    show: &dyn Fn(JobPod, Timestamp, String) -> String,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (sender, received) = channel();
    let mut readers: BTreeMap<String, JoinHandle<()>> = BTreeMap::new();
    // The names of the pods that had ended before the read of their log began. Such a read returns the whole log, so no
    // further read is needed.
    let mut ended = BTreeSet::new();
    loop {
        // get the job before the pods: if the job is over, the reads below return all lines
        let job = cluster::job(kubectl, name)?;
        let is_over = matches!(job.status()?.phase, Some(JobPhase::Complete | JobPhase::Failed | JobPhase::Suspended));
        // the loop below reopens a log connection that the API server has closed
        readers.retain(|_, reader| !reader.is_finished());
        for pod in cluster::pods(kubectl, &job)? {
            if !pod.has_started || readers.contains_key(&pod.name) || ended.contains(&pod.name) {
                continue;
            }
            if !pod.is_running {
                ended.insert(pod.name.clone());
            }
            let since = shown.get(&pod.name).copied().unwrap_or(Timestamp::UNIX_EPOCH);
            readers.insert(pod.name.clone(), read(kubectl, pod, since, sender.clone())?);
        }
        let is_last = is_over && readers.is_empty();
        let until = Instant::now() + if is_last { Duration::ZERO } else { INTERVAL };
        while let Ok(line) = received.recv_timeout(until.saturating_duration_since(Instant::now())) {
            let Line { pod, at, text } = line;
            // kubectl may repeat lines, because the requested log begins at a whole second
            if shown.get(&pod.name).is_some_and(|shown| at <= *shown) {
                continue;
            }
            shown.insert(pod.name.clone(), at);
            out.write_all(show(pod, at, text).as_bytes())?;
            out.flush()?;
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Starts a thread that sends the lines of a pod's log from `since` on, until the log ends.
fn read(kubectl: &Kubectl, pod: JobPod, since: Timestamp, sender: Sender<Line>) -> anyhow::Result<JoinHandle<()>> {
    let since = format!("--since-time={since}");
    let mut process =
        kubectl.start(&["logs", &pod.name, "--container", CONTAINER_NAME, "--timestamps", "--follow", &since])?;
    Ok(thread::spawn(move || {
        let output = process.stdout.take().map(|output| BufReader::new(output).lines().map_while(Result::ok));
        for (at, text) in output.into_iter().flatten().flat_map(|line| lines(&line)) {
            if sender.send(Line { pod: pod.clone(), at, text }).is_err() {
                break;
            }
        }
        // kubectl has written all its lines, or the receiver is dropped
        let _ = process.kill();
        let _ = process.wait();
    }))
}
