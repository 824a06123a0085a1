//! The real volume, with a fault at one of its calls. The binary `faulty` is the whole trainer over it; its launcher's
//! stages inherit what is to happen through the environment. Deaths are real: SIGKILL, by one's own hand.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use stagecoach_checkpoint::{DirEntry, FileReader, FileSystemVolume, FileWriter, Volume};

/// The variable that holds a [`Fault`] as text, or what holds for all calls: `trace` writes them down, `slow=MS` makes
/// every file's sync take so much longer, `full` has no room for another byte of a checkpoint.
pub const FAULT: &str = "STAGECOACH_FAULT";
/// The variable that names a folder: for the trace, and for the note that the fault has happened.
pub const NOTES: &str = "STAGECOACH_FAULT_NOTES";

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// The process is killed before it.
    DieBefore,
    /// The process is killed after it.
    DieAfter,
    /// The process is killed when half of a write is there.
    DieWithin,
    /// It fails with this number of the operating system's; a write leaves its first half.
    Errno(i32),
}

/// A fault of one stage. It happens once: whoever comes to that call in a later attempt goes on unharmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// The stage.
    pub rank: u32,
    /// Which of a process's calls, from 0.
    pub call: usize,
    /// What happens.
    pub how: How,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank={},call={},how=", self.rank, self.call)?;
        match self.how {
            How::DieBefore => f.write_str("die-before"),
            How::DieAfter => f.write_str("die-after"),
            How::DieWithin => f.write_str("die-within"),
            How::Errno(number) => write!(f, "errno={number}"),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let wrong = || {
            format!(
                "{FAULT} is {text:?}, expected `trace` or rank=R,call=N,how=die-before|die-after|die-within|errno=E"
            )
        };
        let read = || {
            let (rank, rest) = text.strip_prefix("rank=")?.split_once(",call=")?;
            let (call, how) = rest.split_once(",how=")?;
            let how = match how {
                "die-before" => How::DieBefore,
                "die-after" => How::DieAfter,
                "die-within" => How::DieWithin,
                errno => How::Errno(errno.strip_prefix("errno=")?.parse().ok()?),
            };
            Some(Fault { rank: rank.parse().ok()?, call: call.parse().ok()?, how })
        };
        read().ok_or_else(wrong)
    }
}

/// One call that a stage made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The stage.
    pub rank: u32,
    /// Its number among the process's calls, from 0.
    pub number: usize,
    /// The operation's name in [`Volume`], [`FileWriter`] or [`FileReader`].
    pub operation: String,
    /// The path; for a rename, where to.
    pub path: String,
}

impl Call {
    fn line(&self) -> String {
        format!("{} {} {} {}\n", self.rank, self.number, self.operation, self.path)
    }

    fn parse(line: &str) -> Call {
        let mut words = line.splitn(4, ' ').map(str::to_owned);
        let mut word = || words.next().unwrap();
        Call { rank: word().parse().unwrap(), number: word().parse().unwrap(), operation: word(), path: word() }
    }
}

/// The calls of all processes that were told `trace`, in order.
pub fn traced(notes: &Path) -> Vec<Call> {
    fs::read_to_string(notes.join("trace")).unwrap_or_default().lines().map(Call::parse).collect()
}

/// The call at which the fault happened; none if it has not.
pub fn fired(notes: &Path) -> Option<Call> {
    fs::read_to_string(notes.join("fired")).ok().map(|line| Call::parse(line.trim_end_matches('\n')))
}

/// What the trainer mounts: in a stage the volume with the fault, elsewhere the real one.
pub fn mount(folder: &Path) -> Arc<dyn Volume> {
    let real = FileSystemVolume::new(folder);
    let told = |name: &str| std::env::var(name).ok();
    let (Some(fault), Some(notes), Some(rank)) = (told(FAULT), told(NOTES), told("RANK")) else {
        return Arc::new(real);
    };
    let mode = match (fault.as_str(), fault.strip_prefix("slow=")) {
        ("trace", _) => Mode::Trace,
        ("full", _) => Mode::Full,
        (_, Some(millis)) => Mode::Slow(Duration::from_millis(millis.parse().unwrap())),
        _ => Mode::Once(fault.parse().unwrap()),
    };
    let plan = Plan { rank: rank.parse().unwrap(), mode, notes: notes.into(), calls: AtomicUsize::new(0) };
    Arc::new(FaultyVolume { real, plan: Arc::new(plan) })
}

enum Mode {
    Trace,
    Slow(Duration),
    Full,
    Once(Fault),
}

struct Plan {
    rank: u32,
    mode: Mode,
    notes: PathBuf,
    calls: AtomicUsize,
}

impl Plan {
    fn call<T>(&self, operation: &str, path: &str, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.call_or(operation, path, act, || ())
    }

    /// `half` is what is left of the call if it fails half-way.
    fn call_or<T>(
        &self,
        operation: &str,
        path: &str,
        act: impl FnOnce() -> io::Result<T>,
        half: impl FnOnce(),
    ) -> io::Result<T> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let call = || Call { rank: self.rank, number, operation: operation.to_owned(), path: path.to_owned() }.line();
        let fault = match self.mode {
            Mode::Once(fault) => fault,
            Mode::Trace => {
                self.write_down(&call());
                return act();
            }
            Mode::Full if operation == "write" && path.contains("/step-") => {
                half();
                return Err(io::ErrorKind::StorageFull.into());
            }
            Mode::Slow(by) if operation == "sync" => {
                std::thread::sleep(by);
                return act();
            }
            Mode::Full | Mode::Slow(_) => return act(),
        };
        if (fault.rank, fault.call) != (self.rank, number) || !self.is_first(&call()) {
            return act();
        }
        match fault.how {
            How::DieBefore => die(),
            How::DieAfter => {
                let _done = act();
                die()
            }
            How::DieWithin => {
                half();
                die()
            }
            How::Errno(error) => {
                half();
                Err(io::Error::from_raw_os_error(error))
            }
        }
    }

    /// One write a line, so that the stages' lines don't mix.
    fn write_down(&self, line: &str) {
        let file = OpenOptions::new().create(true).append(true).open(self.notes.join("trace"));
        file.and_then(|mut file| file.write_all(line.as_bytes())).unwrap();
    }

    /// Whether the fault has not happened before; then it is noted that it has.
    fn is_first(&self, line: &str) -> bool {
        match OpenOptions::new().write(true).create_new(true).open(self.notes.join("fired")) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            file => file.and_then(|mut file| file.write_all(line.as_bytes())).map(|()| true).unwrap(),
        }
    }
}

fn die() -> ! {
    // SAFETY: a plain system call.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    loop {
        std::thread::park(); // another thread of this process took the signal; this one goes no further
    }
}

struct FaultyVolume {
    real: FileSystemVolume,
    plan: Arc<Plan>,
}

impl Volume for FaultyVolume {
    fn display(&self, path: &str) -> PathBuf {
        self.real.display(path)
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.plan.call("make_dir", path, || self.real.make_dir(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        self.plan.call("list", path, || self.real.list(path))
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn FileWriter>> {
        let real = self.plan.call("create", path, || self.real.create(path))?;
        Ok(Box::new(Faulty { real, plan: self.plan.clone(), path: path.to_owned() }))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn FileReader>> {
        let real = self.plan.call("open", path, || self.real.open(path))?;
        Ok(Box::new(Faulty { real, plan: self.plan.clone(), path: path.to_owned() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.plan.call("rename", to, || self.real.rename(from, to))
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.plan.call("remove_file", path, || self.real.remove_file(path))
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        self.plan.call("remove_dir", path, || self.real.remove_dir(path))
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.plan.call("sync_dir", path, || self.real.sync_dir(path))
    }
}

/// An open file.
struct Faulty<F> {
    real: F,
    plan: Arc<Plan>,
    path: String,
}

impl FileWriter for Faulty<Box<dyn FileWriter>> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let real = std::cell::RefCell::new(&mut self.real);
        let half = || drop(real.borrow_mut().write(&bytes[..bytes.len() / 2]));
        self.plan.call_or("write", &self.path, || real.borrow_mut().write(bytes), half)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.plan.call("sync", &self.path, || self.real.sync())
    }
}

impl FileReader for Faulty<Box<dyn FileReader>> {
    fn size(&self) -> io::Result<u64> {
        self.plan.call("size", &self.path, || self.real.size())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.plan.call("read_at", &self.path, || self.real.read_at(offset, buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_reads_back() {
        for how in [How::DieBefore, How::DieAfter, How::DieWithin, How::Errno(28)] {
            let fault = Fault { rank: 1, call: 37, how };
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
        assert!("rank=1,call=x,how=die-before".parse::<Fault>().unwrap_err().contains("die-within"));
    }
}
