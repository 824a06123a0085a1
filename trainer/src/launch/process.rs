//! Starting a stage, by the same contract as a pod.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;

use stagecoach_api::contract::{CONTAINER_ARGS, StageEnv};

use super::folder::{Folder, LaunchError, storage};
use super::supervise::Input;
use crate::observe::EVENTS_VARIABLE;

/// What runs as a stage: this very binary, unless a test says otherwise.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// The executable.
    pub(super) path: PathBuf,
    /// Its arguments.
    pub(super) arguments: Vec<String>,
}

impl Program {
    /// `stagecoach stage`.
    ///
    /// # Errors
    /// If the system can't say where this binary is.
    pub(super) fn this() -> Result<Program, LaunchError> {
        let path = std::env::current_exe()
            .map_err(|source| LaunchError::System { doing: "find this program's own file", source })?;
        Ok(Program { path, arguments: CONTAINER_ARGS.map(str::to_owned).to_vec() })
    }
}

/// Starts a stage. Must be called from the thread that lives as long as the launcher: the kernel kills the stage when the
/// thread that started it is gone.
pub(super) fn start(
    program: &Program,
    env: &StageEnv,
    folder: &Folder,
    threads: u32,
    inputs: &Sender<Input>,
) -> Result<Child, LaunchError> {
    let path = folder.log(env.rank);
    let mut log = OpenOptions::new().create(true).append(true).open(&path).map_err(storage("open", &path))?;
    let _ = writeln!(log, "--- attempt {} ---", env.attempt);
    let words = folder.last_words(env.rank);
    let _ = std::fs::remove_file(&words);
    let duplicate = |log: &File| log.try_clone().map_err(storage("open", &path));
    let mut command = Command::new(&program.path);
    command
        .args(&program.arguments)
        .envs(env.to_vars())
        .env(EVENTS_VARIABLE, "json")
        .env("STAGECOACH_TERMINATION_LOG", words)
        .env("STAGECOACH_HTTP_PORT", "0")
        .env("OMP_NUM_THREADS", threads.to_string())
        .stdin(Stdio::null())
        .stderr(duplicate(&log)?)
        // a group of its own: the terminal's Ctrl-C is the launcher's to pass on
        .process_group(0);
    if env.rank == 0 {
        command.stdout(Stdio::piped());
    } else {
        command.stdout(duplicate(&log)?);
    }
    let launcher = std::process::id();
    // SAFETY: only system calls that are allowed between fork and exec.
    unsafe { command.pre_exec(move || die_with(launcher)) };
    let mut child = command.spawn().map_err(|source| LaunchError::System { doing: "start a stage", source })?;
    if let Some(stdout) = child.stdout.take() {
        let (inputs, attempt) = (inputs.clone(), env.attempt);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(event) => drop(inputs.send(Input::Event { attempt, event })),
                    Err(_) => drop(writeln!(log, "{line}")),
                }
            }
        });
    }
    Ok(child)
}

/// In the child: no orphan survives its launcher, not even one killed between fork and here.
fn die_with(launcher: u32) -> std::io::Result<()> {
    // SAFETY: plain system calls.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        if libc::getppid() as u32 != launcher {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
    }
    Ok(())
}

/// Sends a signal to a child that has not been reaped.
pub(super) fn signal(child: &Child, signal: i32) {
    // SAFETY: the process exists, or is a zombie, until the caller waits for it.
    unsafe { libc::kill(child.id() as i32, signal) };
}

/// Tells `inputs` when the child has ended, and leaves it to be reaped: its id stays its own until then.
pub(super) fn watch(child: &Child, attempt: u64, stage: u32, inputs: &Sender<Input>) {
    let (pid, inputs) = (child.id(), inputs.clone());
    std::thread::spawn(move || {
        loop {
            // SAFETY: waitid fills a plain structure; WNOWAIT reaps nothing.
            let rc = unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT)
            };
            if rc == 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                break;
            }
        }
        let _ = inputs.send(Input::Ended { attempt, stage });
    });
}
