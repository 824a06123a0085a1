//! A running container as the machine sees it: its process, and the memory it may have.

use std::process::{Child, Command, Stdio};

use super::cgroups::Memory;

/// A running container.
#[derive(Clone, Debug)]
pub struct Container {
    process: i32,
    memory: Memory,
}

impl Container {
    /// # Panics
    /// If the process has gone.
    #[track_caller]
    pub(crate) fn of(process: i32) -> Container {
        Container { process, memory: Memory::of(process).unwrap_or_else(|error| panic!("{error:#}")) }
    }

    /// The machine's id of its first process.
    pub fn process_id(&self) -> i32 {
        self.process
    }

    /// Stops its first process (SIGSTOP) until it is killed.
    pub fn freeze(&self) {
        // SAFETY: a plain system call.
        unsafe { libc::kill(self.process, libc::SIGSTOP) };
    }

    /// Kills its first process (SIGKILL), and with it the container.
    pub fn kill(&self) {
        // SAFETY: a plain system call.
        unsafe { libc::kill(self.process, libc::SIGKILL) };
    }

    /// Whether it has ended, and was cleared away.
    pub fn is_gone(&self) -> bool {
        self.memory.is_gone()
    }

    /// Bytes of memory that the kernel can't take back: all but the file cache. None once it has gone.
    pub fn memory_used(&self) -> Option<u64> {
        self.memory.used().ok()
    }

    /// Its memory limit as the kernel writes it; none once it has gone.
    pub fn memory_limit(&self) -> Option<String> {
        self.memory.limit().ok()
    }

    /// Leaves it without memory until the kernel has killed it, also if it never asks for more: its limit is lowered to
    /// `spare` bytes above what it uses now, and another process in its control group takes those. The kernel kills the
    /// largest process of the group. Ends when the result is dropped.
    ///
    /// # Panics
    /// As [`Container::squeeze`]; if the process can't be started.
    #[track_caller]
    pub fn starve(&self, spare: u64) -> Starvation {
        let limit = self.squeeze(spare);
        // tail keeps the last line, and this file is one line without end
        let join_and_take = "echo $$ >\"$1\" && exec tail /dev/zero";
        let mut taker = Command::new("sh");
        taker.args(["-c", join_and_take, "sh"]).arg(self.memory.processes_file());
        taker.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let taker = taker.spawn().unwrap_or_else(|error| panic!("sh: {error}"));
        Starvation { taker, _limit: limit }
    }

    /// Lowers its memory limit to `spare` bytes above what it uses now, until the result is dropped. With little to
    /// spare its next allocations are its last. If it has gone, nothing happens.
    ///
    /// # Panics
    /// If the kernel refuses the limit for a second, each time with new figures.
    #[track_caller]
    pub fn squeeze(&self, spare: u64) -> MemoryLimit {
        let Ok(before) = self.memory.limit() else { return MemoryLimit(None) };
        // without a limit the kernel writes a word, or more than there is memory
        let highest = before.parse().unwrap_or(u64::MAX);
        let mut tries = 0;
        while let Some(used) = self.memory_used() {
            match self.memory.set_limit(&(used + spare).min(highest).to_string()) {
                Ok(()) => break,
                // its use grew, or file cache could not be dropped at once
                Err(error) => assert!(tries < 50 || self.is_gone(), "{error:#}"),
            }
            tries += 1;
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        MemoryLimit(Some((self.memory.clone(), before)))
    }
}

/// A container without memory.
#[derive(Debug)]
#[must_use = "it ends when this is dropped"]
pub struct Starvation {
    /// Killed by the kernel too, once it is the largest process of the group.
    taker: Child,
    _limit: MemoryLimit,
}

impl Drop for Starvation {
    fn drop(&mut self) {
        // it may have ended already
        let _ = self.taker.kill();
        let _ = self.taker.wait();
    }
}

/// A lowered memory limit; dropped, the container has the former one, if it lives.
#[derive(Debug)]
#[must_use = "the limit is restored when this is dropped"]
pub struct MemoryLimit(Option<(Memory, String)>);

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        if let Some((memory, before)) = self.0.take() {
            let restored = memory.set_limit(&before);
            assert!(restored.is_ok() || memory.is_gone() || std::thread::panicking(), "{restored:?}");
        }
    }
}
