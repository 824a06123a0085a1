//! `kubectl stagecoach logs --follow`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use stagecoach_api::contract::CONTAINER_NAME;

use super::{LinePosition, LineReader};
use crate::cluster::{self, JobPod};
use crate::job::is_over;
use crate::kubectl::Kubectl;

/// The interval between two requests for the list of pods.
const INTERVAL: Duration = Duration::from_secs(2);

/// A line that a pod wrote.
struct Line {
    pod: JobPod,
    position: LinePosition,
    text: String,
}

/// Writes the log lines of the job's pods until the job has ended or is suspended. Pods that are created later are
/// included. `shown` contains, for each pod, the position of the last line that is already shown. The function writes
/// lines in the order in which they arrive, and `show` formats each line.
///
/// # Errors
/// Returns the error of kubectl, or an error if the reader of `out` has closed the output.
pub(crate) fn follow(
    kubectl: &Kubectl,
    name: &str,
    mut shown: BTreeMap<String, LinePosition>,
    show: &dyn Fn(JobPod, (LinePosition, String)) -> String,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (sender, received) = channel();
    let mut readers: BTreeMap<String, JoinHandle<()>> = BTreeMap::new();
    // The names of the pods that had ended before the read of their log began. Such a read returns the whole log, so no
    // further read is needed.
    let mut ended = BTreeSet::new();
    // For each pod that was running although the job was over, the last line that was shown before the last read began.
    // A pod on a lost node runs forever, so its log is read until a read returns no new line.
    let mut last_reads: BTreeMap<String, Option<LinePosition>> = BTreeMap::new();
    loop {
        // get the job before the pods: if the job is over, the reads below return all lines
        let job = cluster::job(kubectl, name)?;
        let is_over = is_over(&job.status()?);
        // drop the readers that have ended: if the API server closed a connection early, the loop below opens a new one
        readers.retain(|_, reader| !reader.is_finished());
        for pod in cluster::pods(kubectl, &job)? {
            if !pod.has_started || readers.contains_key(&pod.name) || ended.contains(&pod.name) {
                continue;
            }
            let last_shown = shown.get(&pod.name).copied();
            if !pod.is_running {
                ended.insert(pod.name.clone());
            } else if is_over && last_reads.insert(pod.name.clone(), last_shown) == Some(last_shown) {
                continue;
            }
            let since = last_shown.unwrap_or_default();
            readers.insert(pod.name.clone(), read(kubectl, pod, since, sender.clone())?);
        }
        let is_last = is_over && readers.is_empty();
        let until = Instant::now() + if is_last { Duration::ZERO } else { INTERVAL };
        while let Ok(line) = received.recv_timeout(until.saturating_duration_since(Instant::now())) {
            let Line { pod, position, text } = line;
            // kubectl may repeat lines, because the requested log begins at a whole second
            if shown.get(&pod.name).is_some_and(|shown| position <= *shown) {
                continue;
            }
            shown.insert(pod.name.clone(), position);
            out.write_all(show(pod, (position, text)).as_bytes())?;
            out.flush()?;
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Starts a thread that sends the lines of a pod's log from `since` on, until the log ends.
fn read(kubectl: &Kubectl, pod: JobPod, since: LinePosition, sender: Sender<Line>) -> anyhow::Result<JoinHandle<()>> {
    let since = format!("--since-time={}", since.at);
    let mut process =
        kubectl.start(&["logs", &pod.name, "--container", CONTAINER_NAME, "--timestamps", "--follow", &since])?;
    Ok(thread::spawn(move || {
        let output = process.stdout.take().map(BufReader::new);
        let mut reader = LineReader::default();
        // `BufRead::lines` would stop at a line that is invalid UTF-8
        for line in output.into_iter().flat_map(|output| output.split(b'\n')).map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            let (position, text) = reader.read(line.strip_suffix('\r').unwrap_or(&line));
            if sender.send(Line { pod: pod.clone(), position, text }).is_err() {
                break;
            }
        }
        // kubectl has written all its lines, or the receiver is dropped
        let _ = process.kill();
        let _ = process.wait();
    }))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::super::lines;
    use super::*;

    /// A shell script that replaces kubectl. The script knows a complete job with one pod.
    const SCRIPT: &str = r#"
case "$1 $2" in
"get pipelinejobs.stagecoach.dev") echo '{"metadata": {"name": "a"}, "status": {"phase": "Complete"}}' ;;
"get pods") echo '{"items": [{"metadata": {"name": "a-0-1", "labels": {
    "stagecoach.dev/stage": "0", "stagecoach.dev/attempt": "1"}}, "status": {"phase": "Succeeded"}}]}' ;;
"logs a-0-1") printf '%s shown\n%s same time\nno time\n\377\n%s later\n' \
    2026-09-21T14:00:00.1Z 2026-09-21T14:00:00.1Z 2026-09-21T14:00:00.2Z ;;
esac"#;

    #[test]
    fn lines_without_a_time_and_of_the_same_time_are_shown_once() {
        let kubectl = Kubectl::new(OsStr::new("sh"), ["-c", SCRIPT, "kubectl"].map(Into::into).into());
        let shown = [("a-0-1".to_owned(), lines("2026-09-21T14:00:00.1Z shown\n")[0].0)].into();
        let mut out = Vec::new();
        follow(&kubectl, "a", shown, &|_, (_, text)| text + "\n", &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "same time\nno time\n\u{fffd}\nlater\n");
    }

    /// A shell script that replaces kubectl. The script knows a complete job with one pod on a lost node, whose
    /// connection breaks after the first line of the log. The script counts the requests for pods in the file `$0`, and
    /// fails after ten of them.
    const LOST_NODE: &str = r#"
case "$*" in
"get pipelinejobs.stagecoach.dev"*) echo '{"metadata": {"name": "a"}, "status": {"phase": "Complete"}}' ;;
"get pods"*) echo >> "$0"; [ "$(wc -l < "$0")" -le 10 ] || exit 1; echo '{"items": [{"metadata": {"name": "a-0-1",
    "labels": {"stagecoach.dev/stage": "0", "stagecoach.dev/attempt": "1"}}, "status": {"phase": "Running"}}]}' ;;
"logs a-0-1"*--since-time=1970-*) echo 2026-09-21T14:00:00.1Z first ;;
"logs a-0-1"*) echo 2026-09-21T14:00:00.2Z second ;;
esac"#;

    #[test]
    fn a_pod_that_seems_to_run_after_the_job_is_over_is_read_to_the_end_of_its_log() {
        let requests = tempfile::NamedTempFile::new().unwrap();
        let script = ["-c", LOST_NODE, requests.path().to_str().unwrap()];
        let kubectl = Kubectl::new(OsStr::new("sh"), script.map(Into::into).into());
        let mut out = Vec::new();
        follow(&kubectl, "a", BTreeMap::new(), &|_, (_, text)| text + "\n", &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "first\nsecond\n");
    }
}
