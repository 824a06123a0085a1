//! One stage as a process: how it is started, watched and ended.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

use stagecoach_api::contract::{StageEnv, TerminationMessage};
use stagecoach_lifecycle::{Exit, InstanceState, UnixMillis};

use super::LaunchError;
use super::supervise::Message;
use crate::folder::JobFolder;
use crate::observe::{EVENTS_VARIABLE, Event};

/// Bytes of a log's end that are read.
const TAIL: u64 = 16 * 1024;

/// What a stage runs.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl Program {
    /// This very program, as a pod's container runs it: by the kernel's link, so that all attempts run one version, also
    /// when the file is replaced meanwhile.
    pub fn own() -> Self {
        let arguments = stagecoach_api::contract::CONTAINER_ARGS.map(Into::into).into();
        Self { path: "/proc/self/exe".into(), arguments }
    }
}

/// A stage's process. It is killed when dropped.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) stage: u32,
    pub(super) attempt: u64,
    pub(super) state: InstanceState,
    /// Since when.
    pub(super) at: UnixMillis,
    child: Child,
    folder: JobFolder,
    /// Where this attempt's part of the log begins.
    log_start: u64,
}

impl Process {
    /// Starts a stage; what becomes of it is sent to `outbox`.
    ///
    /// The kernel kills the stage when the calling **thread** ends (that is what PDEATHSIG follows), so the caller must
    /// be the one that lives as long as the launcher.
    pub(super) fn start(
        program: &Program,
        env: &StageEnv,
        folder: &JobFolder,
        outbox: Sender<Message>,
        now: UnixMillis,
    ) -> Result<Self, LaunchError> {
        let (stage, attempt) = (env.rank, env.attempt);
        let (log, log_start) = open_log(folder, stage, attempt)?;
        let termination = folder.termination(stage);
        match std::fs::remove_file(&termination) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(LaunchError::storage("remove", &termination)(error));
            }
            _ => {}
        }
        let clone = || log.try_clone().map_err(LaunchError::storage("open the log", &folder.log(stage)));
        let mut command = Command::new(&program.path);
        command
            .arg0(env!("CARGO_PKG_NAME"))
            .args(&program.arguments)
            .envs(env.to_vars())
            .env(EVENTS_VARIABLE, "json")
            .env("STAGECOACH_TERMINATION_LOG", &termination)
            // Many stages share this machine, and nobody polls them.
            .env("STAGECOACH_HTTP_PORT", "0")
            .stdin(Stdio::null())
            .stdout(if stage == 0 { Stdio::piped() } else { clone()?.into() })
            .stderr(clone()?)
            // Out of the terminal's foreground group: Ctrl-C reaches the launcher, which asks the stages to stop.
            .process_group(0);
        die_with_the_launcher(&mut command);
        let what = format!("start stage {stage} ({})", program.path.display());
        let mut child = command.spawn().map_err(LaunchError::system(what))?;
        let (pid, stdout) = (child.id(), child.stdout.take());
        let process =
            Self { stage, attempt, state: InstanceState::Starting, at: now, child, folder: folder.clone(), log_start };
        let watch = move || {
            if let Some(stdout) = stdout {
                read_events(stdout, log, attempt, &outbox);
            }
            wait_until_ended(pid);
            // Nobody listens any more if the run is over.
            let _ = outbox.send(Message::Ended { attempt, stage });
        };
        let spawned = thread::Builder::new().name(format!("stage {stage}")).spawn(watch);
        spawned.map_err(LaunchError::system("start a thread"))?;
        Ok(process)
    }

    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.state, InstanceState::Exited(_))
    }

    /// Asks it to leave: SIGTERM. False if it was asked before or has ended.
    pub(super) fn ask_to_leave(&mut self, now: UnixMillis) -> bool {
        let asks = self.is_alive() && self.state != InstanceState::Terminating;
        if asks {
            (self.state, self.at) = (InstanceState::Terminating, now);
            self.signal(libc::SIGTERM);
        }
        asks
    }

    /// Kills it and whatever it has started: SIGKILL.
    pub(super) fn kill(&self) {
        if self.is_alive() {
            self.signal(libc::SIGKILL);
        }
    }

    fn signal(&self, signal: i32) {
        let pid = self.child.id() as i32;
        // The whole group is killed, but only the stage itself is asked: so does Kubernetes.
        let target = if signal == libc::SIGKILL { -pid } else { pid };
        // SAFETY: no memory is involved. The pid is this child's: it is not reaped before `ended`, after which it is not
        // alive any more and gets no signal.
        unsafe { libc::kill(target, signal) };
    }

    /// Takes note of its end: reaps it and reads its last words.
    pub(super) fn ended(&mut self, now: UnixMillis) {
        let status = self.child.wait().ok();
        let words = std::fs::read_to_string(self.folder.termination(self.stage)).ok();
        let words = words.and_then(|text| TerminationMessage::from_json(&text));
        self.state = InstanceState::Exited(Exit {
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            external_cause: None,
            termination: words.as_ref().map(Into::into),
        });
        self.at = now;
    }

    /// The end of what it wrote to its log.
    pub(super) fn log_tail(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(self.folder.log(self.stage))?;
            let end = file.metadata()?.len();
            file.seek(SeekFrom::Start(self.log_start.max(end.saturating_sub(TAIL))))?;
            let mut bytes = Vec::new();
            file.take(TAIL).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_alive() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// Opens a stage's log to append to, with a line that tells the attempts apart, and says where the attempt's part begins.
/// A full volume may lack the line: no stage has to wait for that.
fn open_log(folder: &JobFolder, stage: u32, attempt: u64) -> Result<(File, u64), LaunchError> {
    let path = folder.log(stage);
    let open = || -> io::Result<(File, u64)> {
        let mut file = File::options().create(true).append(true).open(&path)?;
        let _ = writeln!(file, "--- attempt {attempt} ---");
        let start = file.metadata()?.len();
        Ok((file, start))
    };
    open().map_err(LaunchError::storage("open the log", &path))
}

/// Passes the events on until stdout closes; what isn't one goes to the log.
fn read_events(stdout: ChildStdout, mut log: File, attempt: u64, outbox: &Sender<Message>) {
    for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
        match serde_json::from_slice::<Event>(&line) {
            Ok(event) => {
                let _ = outbox.send(Message::Event { attempt, event: Box::new(event) });
            }
            Err(_) => {
                let _ = log.write_all(&[line.as_slice(), b"\n"].concat());
            }
        }
    }
}

/// Has the kernel kill the stage when the launcher dies, however it dies: no orphans.
fn die_with_the_launcher(command: &mut Command) {
    let launcher = std::process::id() as i32;
    let arrange = move || {
        // SAFETY: prctl and getppid are plain system calls that touch no memory of ours.
        let arranged = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if arranged != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        if unsafe { libc::getppid() } != launcher {
            // It died between fork and prctl: no signal will come any more.
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed: prctl and getppid are, and neither the
    // closure nor its errors allocate.
    unsafe { command.pre_exec(arrange) };
}

/// Returns when the process has ended, and leaves it to be reaped by who owns it: until then nobody else gets its pid.
fn wait_until_ended(pid: u32) {
    loop {
        // SAFETY: a siginfo of zeros is valid, and the kernel writes to nothing else.
        let waited = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, pid, &raw mut info, libc::WEXITED | libc::WNOWAIT)
        };
        if waited == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}
