//! A process that a test starts, such as a component of the control plane. It writes its output to a file, and never
//! outlives the test.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use stagecoach_test_wait::spawn;

/// The variable with which the Go programs of a cluster let their heaps grow to five times the live objects before they
/// collect garbage. By default, a heap grows only to twice the live objects, and garbage collection took half of an API
/// server's CPU time.
pub const GARBAGE_COLLECTION: (&str, &str) = ("GOGC", "400");

/// A running process. Dropping this value kills the process and waits for its exit. The kernel kills the process when
/// the test dies.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Whether something has waited for the exit of the process. The kernel may then give the id to another process.
    is_reaped: bool,
}

impl Process {
    /// Starts `command`, and appends its output to `log`.
    ///
    /// # Errors
    /// If the file can't be opened or the program can't be started.
    pub fn start(mut command: Command, log: &Path) -> io::Result<Process> {
        let file = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).envs([GARBAGE_COLLECTION]);
        // Ctrl-C at the terminal must reach only the test, since the test itself ends its processes
        command.process_group(0);
        Ok(Process { child: spawn(&mut command)?, is_reaped: false })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status, or `None` while the process runs.
    ///
    /// # Panics
    /// If the process can't be waited for.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().unwrap();
        self.is_reaped |= status.is_some();
        status
    }

    /// Sends a signal, unless something has waited for the exit of the process.
    pub fn signal(&self, signal: i32) {
        if let Some(id) = self.own_id() {
            // SAFETY: a plain system call; nothing has waited for the process, so no other process has its id.
            unsafe { libc::kill(id, signal) };
        }
    }

    /// Returns the process id while no other process can have it.
    fn own_id(&self) -> Option<i32> {
        (!self.is_reaped).then(|| self.id() as i32)
    }

    /// Kills the process and waits for its exit.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.is_reaped |= self.child.wait().is_ok();
    }
}

/// Runs a command with the standard input `input`, and waits for its exit. Returns its output and exit status.
pub fn run(command: &mut Command, input: &str) -> Output {
    // the servers are on this machine, so the proxies of the environment do not apply
    for name in ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"] {
        command.env_remove(name);
    }
    let piped = command.envs([GARBAGE_COLLECTION]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    // a program that refuses its input may close the pipe early; only its output counts
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Returns the standard output of a command that has succeeded.
///
/// # Panics
/// If the command has failed. The message begins with `what` and contains both outputs.
#[track_caller]
pub fn printed(what: &str, output: Output) -> String {
    let [printed, complained] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{what}: {printed}{complained}");
    printed
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use crate::until;

    use super::*;

    #[test]
    fn a_process_whose_exit_is_known_gets_no_signal() {
        let folder = tempfile::tempdir().unwrap();
        let start = |program: &str| Process::start(Command::new(program), &folder.path().join("log")).unwrap();
        let mut ended = start("true");
        assert_eq!(ended.own_id(), Some(ended.id() as i32));
        until("the process to end", || ended.ended());
        assert_eq!(ended.own_id(), None);
        let mut killed = start("cat");
        killed.kill();
        assert_eq!(killed.own_id(), None);
    }
}
