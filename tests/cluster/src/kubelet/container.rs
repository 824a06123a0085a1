//! A container: a real process, or a script, which simulates a container without a process.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::Behaviour;
use super::handle::ContainerExit;
use crate::process::Process;

/// A container that runs or has ended.
pub(super) enum TestContainer {
    /// A script. `end` is the time and kind of its exit, or `None` if the script does not exit by itself. `drain` is
    /// the time from SIGTERM to the exit, or `None` if the script ignores SIGTERM.
    Script { end: Option<(Instant, ContainerExit)>, drain: Option<Duration> },
    /// A real process, and the file of its termination message.
    Process(Process, PathBuf),
}

impl TestContainer {
    /// Starts a container with this behaviour. The environment of a process consists of `env`, the test's `PATH`, and
    /// `STAGECOACH_TERMINATION_LOG`, which contains `termination_message_path`. The process writes its output to `log`.
    /// If the command can't be started, the container has ended with the exit that a kubelet reports.
    pub(super) fn start(
        behaviour: &Behaviour,
        env: BTreeMap<String, String>,
        log: &Path,
        termination_message_path: PathBuf,
    ) -> TestContainer {
        let script = |end, drain| TestContainer::Script { end, drain };
        match behaviour {
            Behaviour::Run { drain } => script(None, Some(*drain)),
            Behaviour::NeverReady => script(None, Some(Duration::ZERO)),
            Behaviour::Exit { code, after, message } => {
                script(Some((Instant::now() + *after, ContainerExit::new(*code, message))), Some(Duration::ZERO))
            }
            Behaviour::IgnoreSigterm | Behaviour::Hang | Behaviour::ImagePullError => script(None, None),
            Behaviour::Command(words) => {
                let (program, arguments) = words.split_first().expect("a command names its program");
                let mut command = Command::new(program);
                command.args(arguments).env_clear().envs(env).envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
                command.env("STAGECOACH_TERMINATION_LOG", &termination_message_path);
                match Process::start(command, log) {
                    Ok(process) => TestContainer::Process(process, termination_message_path),
                    Err(e) => {
                        let failed = ContainerExit::new(128, &format!("{program}: {e}"));
                        script(Some((Instant::now(), ContainerExit { reason: "StartError".into(), ..failed })), None)
                    }
                }
            }
        }
    }

    /// Returns a simulated sidecar container, which runs until the kubelet stops it.
    pub(super) fn sidecar() -> TestContainer {
        TestContainer::Script { end: None, drain: Some(Duration::ZERO) }
    }

    /// Waits until the container ends. Returns its exit.
    pub(super) async fn ended(&mut self) -> ContainerExit {
        match self {
            TestContainer::Script { end: Some((at, exit)), .. } => {
                sleep_until(*at).await;
                exit.clone()
            }
            TestContainer::Script { end: None, .. } => std::future::pending().await,
            TestContainer::Process(process, termination_message_path) => loop {
                if let Some(status) = process.ended() {
                    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
                    return ContainerExit::new(
                        code,
                        &std::fs::read_to_string(termination_message_path).unwrap_or_default(),
                    );
                }
                sleep(Duration::from_millis(20)).await;
            },
        }
    }

    /// Ends the container with the exit that a test chooses.
    pub(super) fn end(&mut self, exit: ContainerExit) {
        *self = TestContainer::Script { end: Some((Instant::now(), exit)), drain: None };
    }

    /// Sends SIGTERM.
    pub(super) fn terminate(&mut self) {
        match self {
            TestContainer::Script { end, drain: Some(drain) } => {
                let at = Instant::now() + *drain;
                // SIGTERM does not delay a container that would have exited sooner
                if end.as_ref().is_none_or(|(sooner, _)| *sooner > at) {
                    *end = Some((at, ContainerExit::new(143, "")));
                }
            }
            TestContainer::Script { .. } => {}
            TestContainer::Process(process, _) => process.signal(libc::SIGTERM),
        }
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&mut self) {
        match self {
            TestContainer::Script { .. } => self.end(ContainerExit::new(137, "")),
            TestContainer::Process(process, _) => process.signal(libc::SIGKILL),
        }
    }
}
