//! Processes that tests start.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

type Reply = (Command, io::Result<Child>);

/// Starts a process. The kernel kills the process when the test's process ends, so that a test that is killed leaves no
/// process behind.
///
/// # Errors
/// If the program can't be started.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let parent = std::process::id();
    // SAFETY: prctl, getppid and _exit are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            if libc::getppid() as u32 != parent {
                libc::_exit(1); // the test died before the signal was set
            }
            Ok(())
        })
    };
    // The thread owns the command while it starts the process, so the caller's command is empty for that time.
    let owned = std::mem::replace(command, Command::new(""));
    let (reply, answer) = channel();
    spawner().send((owned, reply)).map_err(io::Error::other)?;
    let (returned, child) = answer.recv().map_err(io::Error::other)?;
    *command = returned;
    child
}

/// Returns the queue of a thread that starts processes and lives as long as the test's process. The kernel sends the
/// death signal when the *thread* that forked ends, and each test runs in its own thread. Without the common thread, a
/// process that several tests share would end with the test that started it.
fn spawner() -> &'static Sender<(Command, Sender<Reply>)> {
    static SPAWNER: OnceLock<Sender<(Command, Sender<Reply>)>> = OnceLock::new();
    SPAWNER.get_or_init(|| {
        let (queue, commands) = channel::<(Command, Sender<Reply>)>();
        std::thread::spawn(move || {
            for (mut command, reply) in commands {
                let child = command.spawn();
                drop(reply.send((command, child)));
            }
        });
        queue
    })
}

/// Returns the state letter of a process, or `None` if the process does not exist.
pub fn process_state(pid: u32) -> Option<char> {
    // the name is in parentheses and may contain any characters
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process has ended, including a process that its parent has not yet waited for.
pub fn is_gone(pid: u32) -> bool {
    process_state(pid).is_none_or(|state| matches!(state, 'Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    use super::*;
    use crate::until;

    #[test]
    fn a_killed_test_leaves_no_process() {
        let test = ["--exact", "process::tests::holds_a_process_until_killed", "--ignored", "--nocapture"];
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = spawn(command.args(test).stdout(Stdio::piped())).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let pid = lines.find_map(|line| line.unwrap().strip_prefix("HELD ")?.parse().ok()).unwrap();
        assert!(!is_gone(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        until("the process to end", || is_gone(pid).then_some(()));
    }

    #[test]
    #[ignore = "the other half of a_killed_test_leaves_no_process"]
    fn holds_a_process_until_killed() {
        // the process must outlive the thread that started it
        let mut child = std::thread::spawn(|| spawn(Command::new("sleep").arg("600"))).join().unwrap().unwrap();
        println!("HELD {}", child.id());
        child.wait().unwrap();
    }
}
