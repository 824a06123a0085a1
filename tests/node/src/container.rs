//! A running container as a process of the machine, and its memory limit.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::cgroups::Memory;
use super::machine::send_signal;

/// A running container.
#[derive(Clone, Debug)]
pub struct Container {
    process: i32,
    memory: Memory,
}

impl Container {
    /// Returns the container whose first process has the id `process`.
    ///
    /// # Panics
    /// If the process has ended.
    #[track_caller]
    pub(crate) fn of(process: i32) -> Container {
        Container { process, memory: Memory::of(process).unwrap_or_else(|error| panic!("{error:#}")) }
    }

    /// Returns the process id, on the machine, of the container's first process.
    pub fn process_id(&self) -> i32 {
        self.process
    }

    /// Suspends the container's first process (SIGSTOP) until it is killed.
    pub fn freeze(&self) {
        send_signal(Signal::STOP, self.process);
    }

    /// Kills the container's first process (SIGKILL), and with it the container.
    pub fn kill(&self) {
        send_signal(Signal::KILL, self.process);
    }

    /// Whether the container has ended and containerd has removed its control group.
    pub fn is_gone(&self) -> bool {
        self.memory.is_gone()
    }

    /// Returns the memory in bytes that the kernel can't reclaim: all memory except the file cache. Returns `None` once
    /// the container has ended.
    pub fn memory_used(&self) -> Option<u64> {
        self.memory.used().ok()
    }

    /// Returns the memory limit as the kernel writes it, or `None` once the container has ended.
    pub fn memory_limit(&self) -> Option<String> {
        self.memory.limit().ok()
    }

    /// Starves the container of memory until the kernel has killed it, even if the container allocates no more. The
    /// method lowers the limit to `spare` bytes above the used memory, and another process in the control group
    /// allocates these bytes. The kernel kills the largest process of the group. Dropping the result ends the
    /// starvation.
    ///
    /// # Panics
    /// Like [`Container::squeeze`], and if the other process can't be started.
    #[track_caller]
    pub fn starve(&self, spare: u64) -> Starvation {
        let limit = self.squeeze(spare);
        // `tail` buffers the last line of its file, and /dev/zero is a single endless line
        let join_and_take = "echo $$ >\"$1\" && exec tail /dev/zero";
        let mut taker = Command::new("sh");
        taker.args(["-c", join_and_take, "sh"]).arg(self.memory.processes_file());
        taker.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let taker = taker.spawn().unwrap_or_else(|error| panic!("sh: {error}"));
        Starvation { taker, _limit: limit }
    }

    /// Lowers the container's memory limit to `spare` bytes above its used memory, until the result is dropped. With a
    /// small `spare`, the kernel kills the container at one of its next allocations. The method has no effect on a
    /// container that has ended.
    ///
    /// # Panics
    /// If the kernel refuses the limit for a second. Each attempt measures the used memory again.
    #[track_caller]
    pub fn squeeze(&self, spare: u64) -> MemoryLimit {
        let Ok(before) = self.memory.limit() else { return MemoryLimit(None) };
        // for an unlimited container, the kernel writes a word or a number above the machine's memory
        let highest = before.parse().unwrap_or(u64::MAX);
        let mut tries = 0;
        while let Some(used) = self.memory_used() {
            match self.memory.set_limit(&(used + spare).min(highest).to_string()) {
                Ok(()) => break,
                // the used memory has grown, or the kernel could not drop the file cache at once
                Err(error) => assert!(tries < 50 || self.is_gone(), "{error:#}"),
            }
            tries += 1;
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        MemoryLimit(Some((self.memory.clone(), before)))
    }
}

/// A container without free memory. Dropping this value ends the starvation.
#[derive(Debug)]
#[must_use = "it ends when this is dropped"]
pub struct Starvation {
    /// The process that allocates the memory. The kernel kills it too, once it is the largest process of the group.
    taker: Child,
    _limit: MemoryLimit,
}

impl Drop for Starvation {
    fn drop(&mut self) {
        // the process may have ended already
        let _ = self.taker.kill();
        let _ = self.taker.wait();
    }
}

/// A lowered memory limit. Dropping this value restores the former limit if the container still runs.
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
