//! `kubectl stagecoach logs`.

mod follow;

use std::io::Write;
use std::thread;

use clap::Args;
use jiff::Timestamp;
use stagecoach_api::contract::CONTAINER_NAME;
use stagecoach_api::job::{JobPhase, LastFailureStatus};
use stagecoach_api::visible;

use crate::cluster::{self, JobPod, PodRole};
use crate::kubectl::Kubectl;

pub(crate) use follow::follow;

/// The maximum number of logs that the plugin reads at the same time.
const AT_ONCE: usize = 8;

/// The logs of all stages and spares.
#[derive(Debug, Args)]
pub(crate) struct LogsCommand {
    /// The job.
    job: String,
    /// Print only the last lines of each pod.
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
    /// Print the time at which each line was written.
    #[arg(long)]
    timestamps: bool,
    /// Also print new lines, including those of pods that are created later, until the job is over.
    #[arg(long, short)]
    follow: bool,
}

/// A pod's log: each line with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PodLog {
    pod: JobPod,
    lines: Vec<(LinePosition, String)>,
}

/// The position of a line in the log of its pod. The positions in a log increase from line to line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinePosition {
    at: Timestamp,
    /// The number of earlier lines with the same time.
    index: usize,
}

/// Reads the lines of a log in their order.
#[derive(Debug, Default)]
struct LineReader {
    last: LinePosition,
}

impl LineReader {
    /// Returns the position of the next line, and its text without the time that kubectl writes before each line. In
    /// the text, [`visible`] escapes control characters. A line without a time gets the time of the previous line.
    fn read(&mut self, line: &str) -> (LinePosition, String) {
        let LinePosition { at: last, index } = self.last;
        let timed = line.split_once(' ').and_then(|(at, text)| Some((at.parse().ok()?, text)));
        let (at, text) = timed.unwrap_or((last, line));
        self.last = if at > last { LinePosition { at, index: 0 } } else { LinePosition { at: last, index: index + 1 } };
        (self.last, visible(text).into_owned())
    }
}

impl LogsCommand {
    pub(crate) fn run(self, kubectl: &Kubectl, out: &mut dyn Write) -> anyhow::Result<()> {
        let job = cluster::job(kubectl, &self.job)?;
        let status = job.status()?;
        let pods = cluster::pods(kubectl, &job)?;
        let failure = status.last_failure.filter(|_| status.phase == Some(JobPhase::Failed));
        let mut logs = Vec::new();
        for (pod, log) in pods.iter().zip(self.read(kubectl, &pods)) {
            match log {
                Ok(text) => logs.push(PodLog { pod: pod.clone(), lines: lines(&text) }),
                // continue with the other pods: a pod that waits for its image, for example, has no log yet
                Err(error) => {
                    eprintln!("{} (pod {}) has no log: {}", pod.role, pod.name, visible(&format!("{error:#}")));
                }
            }
        }
        if !self.follow && logs.is_empty() && failure.as_ref().is_none_or(|failure| failure.log_tail.is_none()) {
            anyhow::bail!(
                "job {} has no pod with a log: `kubectl stagecoach why {0}` shows the state of the job",
                self.job
            );
        }
        let shown = logs.iter().filter_map(|log| Some((log.pod.name.clone(), log.lines.last()?.0))).collect();
        if self.tail == Some(0) {
            logs.iter_mut().for_each(|log| log.lines.clear());
        }
        write!(out, "{}", show(logs, failure.as_ref(), self.timestamps))?;
        match self.follow {
            true => {
                let show = |pod, line| merged(vec![PodLog { pod, lines: vec![line] }], self.timestamps);
                follow(kubectl, &self.job, shown, &show, out)
            }
            false => Ok(()),
        }
    }

    /// Returns the logs of the pods, in the order of `pods`. With `--tail 0`, a log has its last line, because `follow`
    /// needs the position of this line.
    fn read(&self, kubectl: &Kubectl, pods: &[JobPod]) -> Vec<anyhow::Result<String>> {
        let tail = self.tail.map_or_else(|| "-1".to_owned(), |lines| lines.max(1).to_string());
        let read = |pod: &JobPod| {
            kubectl.output(&["logs", &pod.name, "--container", CONTAINER_NAME, "--timestamps", "--tail", &tail])
        };
        let several = |pods: &[JobPod]| pods.iter().map(read).collect::<Vec<_>>();
        thread::scope(|scope| {
            let readers =
                pods.chunks(pods.len().div_ceil(AT_ONCE).max(1)).map(|pods| scope.spawn(move || several(pods)));
            let readers: Vec<_> = readers.collect();
            readers.into_iter().flat_map(|reader| reader.join().unwrap_or_default()).collect()
        })
    }
}

/// Returns the lines of a log.
fn lines(log: &str) -> Vec<(LinePosition, String)> {
    let mut reader = LineReader::default();
    log.lines().map(|line| reader.read(line)).collect()
}

/// Returns all lines sorted by time, each with the role of its pod. For a failed job, the lines of the pod that failed
/// first precede the other lines.
fn show(mut logs: Vec<PodLog>, failure: Option<&LastFailureStatus>, timestamps: bool) -> String {
    let mut text = String::new();
    if let Some(failure) = failure.filter(|failure| failure.pod.is_some() || failure.stage.is_some()) {
        let role = |stage| PodRole::Stage { replica: failure.replica, stage }.to_string();
        let stage = failure.stage.map_or_else(|| "the pod".into(), role);
        let heading = format!("--- {stage} failed first: {} ---\n", visible(&failure.reason));
        let (culprits, others): (Vec<PodLog>, Vec<PodLog>) =
            logs.into_iter().partition(|log| Some(&log.pod.name) == failure.pod.as_ref());
        logs = others;
        let own = match &failure.log_tail {
            Some(tail) if culprits.is_empty() => {
                let lines = tail.lines().map(|line| format!("{stage} | {}\n", visible(line)));
                lines.chain(["--- its pod is gone: this was the end of its log ---\n".to_owned()]).collect()
            }
            _ => merged(culprits, timestamps),
        };
        text += &(heading + &own + "--- the others ---\n");
    }
    text + &merged(logs, timestamps)
}

/// Returns the lines of all logs, sorted by time. Lines of the same time are in the order of the pods.
fn merged(logs: Vec<PodLog>, timestamps: bool) -> String {
    let roles: Vec<String> = logs.iter().map(|log| log.pod.role.to_string()).collect();
    let width = roles.iter().map(String::len).max().unwrap_or_default();
    let labelled_lines = |(log, role): (PodLog, &String)| {
        let role = role.clone();
        log.lines.into_iter().map(move |(position, line)| (position.at, role.clone(), line)).collect::<Vec<_>>()
    };
    let mut all: Vec<(Timestamp, String, String)> = logs.into_iter().zip(&roles).flat_map(labelled_lines).collect();
    // the sort is stable, so that the lines of a log keep their order
    all.sort_by_key(|(at, _, _)| *at);
    let line = |(at, role, line): (Timestamp, String, String)| match timestamps {
        true => format!("{role:width$} | {at} {line}\n"),
        false => format!("{role:width$} | {line}\n"),
    };
    all.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(role: PodRole, text: &str) -> PodLog {
        let pod =
            JobPod { name: role.to_string(), role, attempt: 1, incarnation: 0, has_started: true, is_running: true };
        PodLog { pod, lines: lines(text) }
    }

    fn logs() -> Vec<PodLog> {
        vec![
            log(
                PodRole::Stage { replica: None, stage: 0 },
                "2026-09-21T14:00:00.1Z a\n2026-09-21T14:00:00.3Z c\nno time\n2026-09-21T14:00:00.5Z e\n",
            ),
            log(
                PodRole::Stage { replica: None, stage: 1 },
                "2026-09-21T14:00:00.2Z b\n2026-09-21T14:00:00.3000001Z d\n",
            ),
            log(PodRole::Spare(10), "2026-09-21T14:00:00.30Z waits\n"),
        ]
    }

    #[test]
    fn lines_are_merged_in_time_and_keep_their_order_within_a_log() {
        let merged = show(logs(), None, false);
        assert_eq!(
            merged,
            "stage 0  | a\nstage 1  | b\nstage 0  | c\nstage 0  | no time\nspare 10 | waits\nstage 1  | d\nstage 0  \
             | e\n"
        );
        assert!(show(logs(), None, true).starts_with("stage 0  | 2026-09-21T14:00:00.1Z a\n"));
        assert_eq!(
            lines("2026-09-21T14:00:00.5Z late\n2026-09-21T14:00:00.1Z early\n")[1].0.at.to_string(),
            "2026-09-21T14:00:00.5Z"
        );
    }

    #[test]
    fn a_log_can_not_drive_the_terminal() {
        let stage = PodRole::Stage { replica: None, stage: 0 };
        let logs = vec![log(stage, "2026-09-21T14:00:00.1Z \u{1b}[2Jred\r\n\u{202e}no time\n")];
        assert_eq!(show(logs, None, false), "stage 0 | ^[[2Jred\nstage 0 | <U+202E>no time\n");
    }

    #[test]
    fn the_culprit_comes_first() {
        let mut failure = LastFailureStatus {
            stage: Some(1),
            pod: Some("stage 1".into()),
            reason: "Killed".into(),
            log_tail: Some("its last words\n".into()),
            ..LastFailureStatus::default()
        };
        let reported = show(logs(), Some(&failure), false);
        assert!(
            reported.starts_with(
                "--- stage 1 failed first: Killed ---\nstage 1 | b\nstage 1 | d\n--- the others ---\nstage 0  | a\n"
            ),
            "{reported}"
        );
        failure.pod = Some("gone".into());
        let reported = show(logs(), Some(&failure), false);
        assert!(
            reported.starts_with(
                "--- stage 1 failed first: Killed ---\nstage 1 | its last words\n--- its pod is gone: this was the \
                 end of its log ---\n--- the others ---\nstage 0  | a\nstage 1  | b\n"
            ),
            "{reported}"
        );
        failure.replica = Some(0);
        let reported = show(logs(), Some(&failure), false);
        assert!(
            reported.starts_with(
                "--- stage 1 of replica 0 failed first: Killed ---\nstage 1 of replica 0 | its last words\n"
            ),
            "{reported}"
        );
        let empty = vec![log(PodRole::Stage { replica: Some(0), stage: 1 }, "")];
        failure.pod = Some("stage 1 of replica 0".into());
        let reported = show(empty, Some(&failure), false);
        assert_eq!(reported, "--- stage 1 of replica 0 failed first: Killed ---\n--- the others ---\n");
    }

    /// A shell script that replaces kubectl. The script knows a complete job with one pod. The log of the pod has a
    /// line that only a reader with `--follow` gets, as if the pod wrote this line later.
    const SCRIPT: &str = r#"
case "$*" in
"get pipelinejobs.stagecoach.dev"*) echo '{"metadata": {"name": "a"}, "status": {"phase": "Complete"}}' ;;
"get pods"*) echo '{"items": [{"metadata": {"name": "a-0-1", "labels": {
    "stagecoach.dev/stage": "0", "stagecoach.dev/attempt": "1"}}, "status": {"phase": "Succeeded"}}]}' ;;
"logs a-0-1"*"--tail 0") ;;
"logs a-0-1"*--tail*) echo 2026-09-21T14:00:00.1Z old ;;
"logs a-0-1"*) printf '%s old\n%s new\n' 2026-09-21T14:00:00.1Z 2026-09-21T14:00:00.2Z ;;
esac"#;

    #[test]
    fn without_earlier_lines_only_new_lines_are_followed() {
        let kubectl = Kubectl::new("sh".as_ref(), ["-c", SCRIPT, "kubectl"].map(Into::into).into());
        let command = LogsCommand { job: "a".into(), tail: Some(0), timestamps: false, follow: true };
        let mut out = Vec::new();
        command.run(&kubectl, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "stage 0 | new\n");
    }
}
