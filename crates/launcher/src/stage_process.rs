//! The process of one stage, or of one spare (a process that waits to replace a lost stage). The launcher starts,
//! watches and terminates the process.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process, kill_process_group,
    set_parent_process_death_signal, waitid,
};
use stagecoach_api::contract::{CONTAINER_ARGS, StageEnv, TerminationMessage, env};
use stagecoach_lifecycle::{Exit, InstanceId, InstanceState, UnixMillis};
use stagecoach_telemetry::{EVENTS_ENV, TrainingEvent};

use super::LaunchError;
use super::nccl_host::NCCL_HOST_ID;
use crate::folder::JobFolder;
use crate::supervisor_message::SupervisorMessage;

/// The number of bytes that the launcher reads from the end of a log.
const LOG_TAIL_BYTES: u64 = 16 * 1024;

/// The executable that runs a stage.
#[derive(Clone, Debug)]
pub struct StageExecutable {
    pub(crate) path: PathBuf,
    /// The arguments of the program.
    pub arguments: Vec<OsString>,
}

impl StageExecutable {
    /// Returns this program, with the arguments of a pod's container. The path is the kernel's link to the running
    /// executable. All attempts therefore run the same version, even if an upgrade replaces the file.
    pub fn current() -> Self {
        Self { path: "/proc/self/exe".into(), arguments: CONTAINER_ARGS.map(Into::into).into() }
    }
}

/// The process of a stage or spare. Dropping this value kills the process.
#[derive(Debug)]
pub(super) struct StageProcess {
    pub(super) attempt: u64,
    /// The stage that the process runs; `None` for a waiting spare.
    pub(super) instance: Option<InstanceId>,
    /// The number of the spare, even after the spare has replaced a stage; `None` for a process that started as a
    /// stage.
    pub(super) spare: Option<u32>,
    pub(super) state: InstanceState,
    /// The time at which the process entered `state`.
    pub(super) since: UnixMillis,
    child: Child,
    termination_message: PathBuf,
    log: PathBuf,
    /// The offset in the log of the first output that this process wrote as its current stage.
    log_start: u64,
}

impl StageProcess {
    /// Starts a stage or a spare. `sender` receives the process's events and its exit. `nccl_host` becomes the
    /// process's NCCL host ID, unless the launcher's environment already has the variable.
    ///
    /// Call this from a thread that lives as long as the launcher: the kernel kills the stage when the **thread** that
    /// started it ends (PR_SET_PDEATHSIG).
    pub(super) fn start(
        executable: &StageExecutable,
        stage_env: &StageEnv,
        nccl_host: Option<String>,
        folder: &JobFolder,
        sender: Sender<SupervisorMessage>,
        now: UnixMillis,
    ) -> Result<Self, LaunchError> {
        let StageEnv { rank, attempt, incarnation, spare, .. } = *stage_env;
        let name = spare.map_or_else(|| format!("stage-{rank}"), |spare| format!("spare-{spare}"));
        let log_path = folder.log(&name);
        let (log, log_start) = open_log(&log_path, attempt, incarnation)?;
        let termination_message = folder.termination_message(&name);
        match std::fs::remove_file(&termination_message) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(LaunchError::storage("remove", &termination_message)(error));
            }
            _ => {}
        }
        let clone_log = || log.try_clone().map_err(LaunchError::storage("open the log", &log_path));
        let mut command = Command::new(&executable.path);
        command
            .arg0(env!("CARGO_PKG_NAME"))
            .args(&executable.arguments)
            .envs(stage_env.to_vars())
            .env(EVENTS_ENV, "json")
            .env(env::TERMINATION_LOG, &termination_message)
            // stages on this machine run no HTTP server, because they would compete for the port, and the launcher
            // reads their events instead
            .env(env::HTTP_PORT, "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(clone_log()?)
            // The stage is outside the terminal's foreground group. Ctrl-C therefore reaches only the launcher, which
            // terminates the stages.
            .process_group(0);
        if let (Some(host), None) = (nccl_host, std::env::var_os(NCCL_HOST_ID)) {
            command.env(NCCL_HOST_ID, host);
        }
        kill_when_launcher_dies(&mut command);
        let operation = format!("start {name} ({})", executable.path.display());
        let mut child = command.spawn().map_err(LaunchError::system(operation))?;
        let (pid, stdout) = (Pid::from_child(&child), child.stdout.take());
        let process = Self {
            attempt,
            instance: spare.is_none().then_some(InstanceId { rank, incarnation }),
            spare,
            state: InstanceState::Starting,
            since: now,
            child,
            termination_message,
            log: log_path,
            log_start,
        };
        let watch = move || {
            if let Some(stdout) = stdout {
                forward_events(stdout, log, attempt, &sender);
            }
            wait_for_exit(pid);
            // the call fails if the run has ended
            let _ = sender.send(SupervisorMessage::Exited { pid });
        };
        let spawned = thread::Builder::new().name(name).spawn(watch);
        spawned.map_err(LaunchError::system("start a thread"))?;
        Ok(process)
    }

    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.state, InstanceState::Exited(_))
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(super) fn set_state(&mut self, state: InstanceState, now: UnixMillis) {
        (self.state, self.since) = (state, now);
    }

    /// Sends SIGTERM to the stage. Returns false if the stage has already received the signal, or has exited.
    pub(super) fn terminate(&mut self, now: UnixMillis) -> bool {
        let terminates = self.is_alive() && self.state != InstanceState::Terminating;
        if terminates {
            // Only the stage's own process receives the signal, as in Kubernetes, and not the processes that it has
            // started. The call can't fail before the process is reaped.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            self.set_state(InstanceState::Terminating, now);
        }
        terminates
    }

    /// Sends SIGKILL to the stage and all processes that it has started.
    pub(super) fn kill(&self) {
        if self.is_alive() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
    }

    /// Records in this value and in the spare's log that the spare has become a stage. On a full volume the line in the
    /// log may be missing.
    pub(super) fn promote(&mut self, instance: InstanceId) {
        let line = format!("{}\n", place_line(self.attempt, instance));
        let write = || -> io::Result<u64> {
            let mut log = File::options().append(true).open(&self.log)?;
            log.write_all(line.as_bytes())?;
            Ok(log.metadata()?.len())
        };
        self.log_start = write().unwrap_or(self.log_start);
        self.instance = Some(instance);
    }

    /// Reaps the process and reads its termination message, if the process has exited.
    pub(super) fn reap(&mut self, now: UnixMillis) {
        // the message about an exit may be about an earlier process that had the same id
        let status = match self.child.try_wait() {
            Ok(None) => return,
            status => status.ok().flatten(),
        };
        let message = std::fs::read_to_string(&self.termination_message).ok();
        let message = message.and_then(|text| TerminationMessage::from_json(&text));
        let exit = Exit {
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            external_cause: None,
            message: None,
            termination: message.as_ref().map(Into::into),
        };
        self.set_state(InstanceState::Exited(exit), now);
    }

    /// Returns the end of the part of the log that the process has written as its current stage.
    pub(super) fn log_tail(&self) -> String {
        end_of_file(&self.log, self.log_start, LOG_TAIL_BYTES).unwrap_or_default()
    }
}

/// Reads the last bytes of a file: at most `most` bytes, and no bytes before the offset `start`.
pub(super) fn end_of_file(path: &Path, start: u64, most: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(start.max(end.saturating_sub(most))))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Drop for StageProcess {
    fn drop(&mut self) {
        if self.is_alive() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// The beginning of the line that separates the output of processes in a log.
pub(super) const SEPARATOR: &str = "--- attempt ";

/// Returns the line before the output of a stage's process.
pub(super) fn start_line(attempt: u64, incarnation: u32) -> String {
    let replaced = if incarnation > 0 { format!(", incarnation {incarnation}") } else { String::new() };
    format!("{SEPARATOR}{attempt}{replaced} ---")
}

/// Returns the line that marks the point in a spare's log at which the spare became a stage.
pub(super) fn place_line(attempt: u64, InstanceId { rank, incarnation }: InstanceId) -> String {
    format!("--- rank {rank}, attempt {attempt}, incarnation {incarnation} ---")
}

/// Opens a log for appending, writes a line that separates the output of processes, and returns the offset after this
/// line. On a full volume the line may be missing, because a full volume must not prevent the start of the stage.
fn open_log(path: &Path, attempt: u64, incarnation: u32) -> Result<(File, u64), LaunchError> {
    let open = || -> io::Result<(File, u64)> {
        let mut file = File::options().create(true).append(true).open(path)?;
        let _ = writeln!(file, "{}", start_line(attempt, incarnation));
        let start = file.metadata()?.len();
        Ok((file, start))
    };
    open().map_err(LaunchError::storage("open the log", path))
}

/// Sends the process's events to `sender` until the process closes stdout. Writes all other lines to the log.
fn forward_events(stdout: ChildStdout, mut log: File, attempt: u64, sender: &Sender<SupervisorMessage>) {
    for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
        match serde_json::from_slice::<TrainingEvent>(&line) {
            Ok(event) => {
                let _ = sender.send(SupervisorMessage::Event { attempt, event: Box::new(event) });
            }
            Err(_) => {
                let _ = log.write_all(&[line.as_slice(), b"\n"].concat());
            }
        }
    }
}

/// Makes the kernel kill the stage when the launcher dies, so that no stage is orphaned.
fn kill_when_launcher_dies(command: &mut Command) {
    let launcher = getpid();
    let set_death_signal = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(launcher) {
            // the launcher died between fork and prctl, so the kernel will not send the signal
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(())
    };
    // SAFETY: only async-signal-safe calls are allowed between fork and exec. prctl and getppid are async-signal-safe,
    // and neither the closure nor its errors allocate.
    unsafe { command.pre_exec(set_death_signal) };
}

/// Waits until the process has exited, but does not reap the process. The pid is therefore not reused before
/// [`StageProcess::reap`].
fn wait_for_exit(pid: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while waitid(WaitId::Pid(pid), options).is_err_and(|error| error == Errno::INTR) {}
}
