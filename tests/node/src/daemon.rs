//! A process that outlives the command that started it. Another command finds the process by the node's folder.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::cgroups;
use super::machine::send_signal;
use super::place::NodeFolder;
use stagecoach_cluster::{GARBAGE_COLLECTION, attempt};

/// The time in seconds from SIGTERM to SIGKILL.
const GRACE_SECONDS: u64 = 15;

/// A process as recorded in `processes/NAME.json`. The record suffices to recognise the process and to start it again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Daemon {
    name: String,
    /// The program and its arguments.
    command: Vec<String>,
    /// The PATH of the process.
    path: String,
    id: i32,
    /// The time of its start, in the kernel's ticks since boot. An id alone does not identify a process, since the
    /// kernel reuses ids.
    started: u64,
}

impl Daemon {
    /// Starts the process in a new session and in the node's system group, appends its output to `logs/NAME.log`, and
    /// records the process.
    ///
    /// # Errors
    /// If the process can't be started or recorded.
    pub(crate) fn start(place: &NodeFolder, name: &str, command: Vec<String>, path: &str) -> Result<Daemon> {
        let log = place.logs().join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(&log).with_context(|| log.display().to_string())?;
        let groups = cgroups::system()?;
        let mut process = Command::new(&command[0]);
        process.args(&command[1..]).current_dir(place.path());
        process.env_clear().env("PATH", path).env("HOME", place.path()).env("TMPDIR", place.at("tmp"));
        process.envs([GARBAGE_COLLECTION]);
        process.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // SAFETY: setsid and write are async-signal-safe, and the files live until the child has been made.
        unsafe {
            process.pre_exec(move || {
                libc::setsid();
                // the process joins the group before it can fork, so the group also contains children that outlive
                // their recorded process
                match groups.iter().all(|file| libc::write(file.as_raw_fd(), c"0".as_ptr().cast(), 1) == 1) {
                    true => Ok(()),
                    false => Err(io::Error::last_os_error()),
                }
            })
        };
        let id = process.spawn().with_context(|| command[0].clone())?.id() as i32;
        let started = start_time(id).with_context(|| format!("{name} (process {id}) ended at once"))?;
        let daemon = Daemon { name: name.into(), command, path: path.into(), id, started };
        daemon.record(place)?;
        Ok(daemon)
    }

    /// Returns the process that is recorded under this name.
    ///
    /// # Errors
    /// If the record does not exist.
    pub(crate) fn read(place: &NodeFolder, name: &str) -> Result<Daemon> {
        let file = place.at("processes").join(format!("{name}.json"));
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        serde_json::from_str(&text).with_context(|| file.display().to_string())
    }

    /// Returns all recorded processes.
    pub(crate) fn all(place: &NodeFolder) -> Vec<Daemon> {
        let files = std::fs::read_dir(place.at("processes")).into_iter().flatten().flatten();
        let names = files.filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".json")?.to_owned()));
        names.filter_map(|name| Daemon::read(place, &name).ok()).collect()
    }

    /// Starts the process again with the same command after it has ended.
    ///
    /// # Errors
    /// If the process still runs or can't be started.
    pub(crate) fn start_again(&self, place: &NodeFolder) -> Result<Daemon> {
        if self.is_running() {
            bail!("{} runs already (process {})", self.name, self.id);
        }
        Daemon::start(place, &self.name, self.command.clone(), &self.path)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether this process runs. A zombie, or another process with the same id, does not count.
    pub(crate) fn is_running(&self) -> bool {
        start_time(self.id) == Some(self.started)
    }

    /// Sends a signal if the process runs.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.is_running() {
            send_signal(signal, self.id);
        }
    }

    /// Ends the process with SIGTERM, and after the grace period with SIGKILL. Returns after the process has ended.
    ///
    /// # Errors
    /// If the process survives SIGKILL.
    pub(crate) fn stop(&self) -> Result<()> {
        self.signal(Signal::TERM);
        if self.wait(GRACE_SECONDS).is_err() {
            self.kill()?;
        }
        Ok(())
    }

    /// Ends the process with SIGKILL. Returns after the process has ended.
    ///
    /// # Errors
    /// If the process survives.
    pub(crate) fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL);
        self.wait(GRACE_SECONDS)
    }

    fn wait(&self, seconds: u64) -> Result<()> {
        let what = format!("{} (process {}) to end", self.name, self.id);
        attempt(&what, Duration::from_secs(seconds), || Ok((!self.is_running()).then_some(())))
    }

    fn record(&self, place: &NodeFolder) -> Result<()> {
        let file = place.at("processes").join(format!("{}.json", self.name));
        let new = file.with_extension("new");
        std::fs::write(&new, serde_json::to_string(self)?)?;
        Ok(std::fs::rename(&new, &file)?)
    }
}

/// Returns the time of process `id`'s start, in ticks since boot, or `None` if the process does not run.
pub(crate) fn start_time(id: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // the name is in parentheses and may contain any characters; the state is field 3, and the time of the start is
    // field 22
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_and_a_zombie_is_gone() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let id = child.id() as i32;
        let started = start_time(id).unwrap();
        let daemon = Daemon { name: "sleep".into(), command: vec![], path: String::new(), id, started };
        let other = Daemon { started: started + 1, ..daemon.clone() };
        assert!(daemon.is_running() && !other.is_running());
        other.kill().unwrap();
        assert!(daemon.is_running(), "another process was killed");
        daemon.kill().unwrap();
        assert!(!daemon.is_running());
        child.wait().unwrap();
    }
}
