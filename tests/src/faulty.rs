//! A volume with a fault in one of its calls. The binary `faulty` is the trainer with such a volume. The launcher
//! passes the fault to its stages in the environment. A crash is a real SIGKILL.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Signal, getpid, kill_process};
use stagecoach_checkpoint::{FileSystemVolume, Volume, paths};
use stagecoach_test_volumes::{ENOSPC, EROFS, FaultInjector, FaultyVolume, VolumeCall, VolumeFault};

pub use crate::block_io::FAULT_VARIABLE;
use crate::block_io::{BLOCK_PREFIX, IoBlock};

/// The environment variable with the folder for the trace and for the record of a fault that has occurred.
pub const RECORDS_VARIABLE: &str = "STAGECOACH_FAULT_RECORDS";

/// The environment variable with a [`BitFlip`] as text.
pub const BIT_FLIP_VARIABLE: &str = "STAGECOACH_BIT_FLIP";

/// A stage that flips one bit of a kernel's result in some calls of the first attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitFlip {
    /// The stage.
    pub rank: u32,
    /// The result of the RMS norm kernels: `output`, `input-gradient` or `weight-gradient`.
    pub result: String,
    /// The calls in which the stage flips the bit. The process counts the calls with this result from 0.
    pub calls: Range<u64>,
}

impl fmt::Display for BitFlip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank={},result={},calls={}-{}", self.rank, self.result, self.calls.start, self.calls.end)
    }
}

impl FromStr for BitFlip {
    type Err = String;

    fn from_str(text: &str) -> Result<BitFlip, String> {
        let parse = || {
            let (rank, rest) = text.strip_prefix("rank=")?.split_once(",result=")?;
            let (result, calls) = rest.split_once(",calls=")?;
            let (start, end) = calls.split_once('-')?;
            let calls = start.parse().ok()?..end.parse().ok()?;
            Some(BitFlip { rank: rank.parse().ok()?, result: result.to_owned(), calls })
        };
        parse().ok_or_else(|| format!("{BIT_FLIP_VARIABLE} is {text:?}, expected rank=R,result=NAME,calls=FROM-TO"))
    }
}

/// A fault of one stage. The fault occurs once: a later attempt that makes the same call has no fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StageFault {
    /// The stage.
    pub rank: u32,
    /// The number of the call in the stage's process, from 0.
    pub call: usize,
    /// The effect.
    pub fault: VolumeFault,
}

impl fmt::Display for StageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank={},call={},fault=", self.rank, self.call)?;
        match self.fault {
            VolumeFault::CrashBefore => f.write_str("crash-before"),
            VolumeFault::CrashAfter => f.write_str("crash-after"),
            VolumeFault::CrashDuring => f.write_str("crash-during"),
            VolumeFault::Fail(number) => write!(f, "errno={number}"),
            VolumeFault::ErrorAfterSuccess(number) => write!(f, "late-errno={number}"),
        }
    }
}

impl FromStr for StageFault {
    type Err = String;

    fn from_str(text: &str) -> Result<StageFault, String> {
        let parse = || {
            let (rank, rest) = text.strip_prefix("rank=")?.split_once(",call=")?;
            let (call, fault) = rest.split_once(",fault=")?;
            let fault = match fault {
                "crash-before" => VolumeFault::CrashBefore,
                "crash-after" => VolumeFault::CrashAfter,
                "crash-during" => VolumeFault::CrashDuring,
                other => match other.strip_prefix("late-errno=") {
                    Some(number) => VolumeFault::ErrorAfterSuccess(number.parse().ok()?),
                    None => VolumeFault::Fail(other.strip_prefix("errno=")?.parse().ok()?),
                },
            };
            Some(StageFault { rank: rank.parse().ok()?, call: call.parse().ok()?, fault })
        };
        parse().ok_or_else(|| {
            format!(
                "{FAULT_VARIABLE} is {text:?}, expected trace, full, read-only or \
                 rank=R,call=N,fault=crash-before|crash-after|crash-during|errno=E|late-errno=E"
            )
        })
    }
}

/// A call on the volume by a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageCall {
    /// The stage.
    pub rank: u32,
    /// The number of the call in the stage's process, from 0.
    pub number: usize,
    /// The operation's name in [`Volume`], [`FileWriter`](stagecoach_checkpoint::FileWriter) or
    /// [`FileReader`](stagecoach_checkpoint::FileReader).
    pub operation: String,
    /// The number of bytes that a read asks for, or 0 for other calls.
    pub bytes_read: u64,
    /// The path of the call. For a rename, the new path.
    pub path: String,
}

impl StageCall {
    fn line(&self) -> String {
        let StageCall { rank, number, operation, bytes_read, path } = self;
        format!("{rank} {number} {operation} {bytes_read} {path}\n")
    }

    fn parse(line: &str) -> StageCall {
        let mut fields = line.splitn(5, ' ').map(str::to_owned);
        let mut field = || fields.next().unwrap();
        StageCall {
            rank: field().parse().unwrap(),
            number: field().parse().unwrap(),
            operation: field(),
            bytes_read: field().parse().unwrap(),
            path: field(),
        }
    }
}

/// Returns the recorded calls of all processes, in order: every call in the mode `trace`, and every read in the mode
/// `rate=N`.
pub fn traced(records: &Path) -> Vec<StageCall> {
    fs::read_to_string(records.join("trace")).unwrap_or_default().lines().map(StageCall::parse).collect()
}

/// Returns the number of bytes of weights and moments that each stage has read. `STAGES` is the number of stages.
pub fn tensor_bytes_read<const STAGES: usize>(records: &Path) -> [u64; STAGES] {
    let mut bytes = [0; STAGES];
    for call in traced(records).iter().filter(|call| call.path.ends_with(".safetensors")) {
        bytes[call.rank as usize] += call.bytes_read;
    }
    bytes
}

/// Returns the call at which the fault occurred, or `None` if it has not occurred.
pub fn fired(records: &Path) -> Option<StageCall> {
    fs::read_to_string(records.join("fired")).ok().map(|line| StageCall::parse(line.trim_end_matches('\n')))
}

/// Returns the trainer's volume. In a stage whose environment has [`FAULT_VARIABLE`], the volume has that fault.
pub fn mount(folder: &Path) -> Arc<dyn Volume> {
    let volume = Arc::new(FileSystemVolume::new(folder));
    let variable = |name: &str| std::env::var(name).ok();
    let (Some(fault), Some(records), Some(rank)) =
        (variable(FAULT_VARIABLE), variable(RECORDS_VARIABLE), variable("RANK"))
    else {
        return volume;
    };
    let mode = match fault.as_str() {
        "trace" => Mode::Trace,
        "full" => Mode::Full,
        "read-only" => Mode::ReadOnly,
        rate if rate.starts_with(RATE) => Mode::Rate(rate[RATE.len()..].parse().unwrap()),
        _ if fault.starts_with(BLOCK_PREFIX) => Mode::IoBlock(fault.parse().unwrap()),
        _ => Mode::Once(fault.parse().unwrap()),
    };
    let faults = StageFaults { rank: rank.parse().unwrap(), mode, records: records.into(), calls: AtomicUsize::new(0) };
    Arc::new(FaultyVolume::new(volume, faults))
}

/// The prefix of the mode that limits the bytes a second.
const RATE: &str = "rate=";

enum Mode {
    Trace,
    Full,
    ReadOnly,
    /// The limit in bytes a second.
    Rate(u64),
    Once(StageFault),
    IoBlock(IoBlock),
}

/// The faults of this process, which is one of the stages.
struct StageFaults {
    rank: u32,
    mode: Mode,
    records: PathBuf,
    calls: AtomicUsize,
}

impl FaultInjector for StageFaults {
    fn next(&self, call: VolumeCall) -> io::Result<Option<VolumeFault>> {
        let VolumeCall { operation, path: source, target, bytes_read } = call;
        let path = target.unwrap_or_else(|| source.clone());
        // a stage other than stage 0 lists `fences/` again and again until its group has begun; the number of these
        // calls depends on timing, so they are not counted
        let is_fence = path.starts_with(paths::FENCES_DIR) && path.matches('/').count() < 2;
        if self.rank > 0 && operation == "list" && is_fence {
            return Ok(None);
        }
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let call = StageCall { rank: self.rank, number, operation: operation.into(), bytes_read, path };
        Ok(match self.mode {
            Mode::Trace => {
                self.record(&call);
                None
            }
            Mode::Full => (operation == "write" && call.path.contains("/step-")).then_some(VolumeFault::Fail(ENOSPC)),
            Mode::ReadOnly => {
                let changes =
                    ["make_dir", "create", "write", "rename", "remove_file", "remove_dir"].contains(&operation);
                changes.then_some(VolumeFault::Fail(EROFS))
            }
            Mode::Rate(rate) => {
                if bytes_read > 0 {
                    self.record(&call);
                    self.wait_for_turn(bytes_read as f64 / rate as f64);
                }
                None
            }
            Mode::IoBlock(block) => {
                if block.rank == self.rank && block.is_at(operation, &source, &call.path) {
                    block.wait(&self.records);
                }
                None
            }
            Mode::Once(StageFault { rank, call: at, fault }) => {
                ((rank, at) == (self.rank, number) && self.is_first(&call)).then_some(fault)
            }
        })
    }

    fn crash(&self) -> io::Error {
        kill_process(getpid(), Signal::KILL).unwrap();
        loop {
            std::thread::park(); // another thread of this process may receive the signal; this thread must not continue
        }
    }
}

impl StageFaults {
    /// Appends the call to the trace. Writes the whole line at once, so that the lines of several stages do not mix.
    fn record(&self, call: &StageCall) {
        let file = OpenOptions::new().create(true).append(true).open(self.records.join("trace"));
        file.and_then(|mut file| file.write_all(call.line().as_bytes())).unwrap();
    }

    /// Waits until the volume has served all earlier callers, and then this caller for `seconds`.
    fn wait_for_turn(&self, seconds: f64) {
        let path = self.records.join("busy-until");
        let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path).unwrap();
        file.lock().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let idle_at = text.parse().map_or(now, |seconds| now.max(Duration::from_secs_f64(seconds)));
        let served_at = idle_at + Duration::from_secs_f64(seconds);
        file.set_len(0).unwrap();
        file.rewind().unwrap();
        write!(file, "{}", served_at.as_secs_f64()).unwrap();
        drop(file);
        std::thread::sleep(served_at.saturating_sub(now));
    }

    /// Whether the fault occurs for the first time. If so, this function records that it has occurred.
    fn is_first(&self, call: &StageCall) -> bool {
        match OpenOptions::new().write(true).create_new(true).open(self.records.join("fired")) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            file => file.and_then(|mut file| file.write_all(call.line().as_bytes())).map(|()| true).unwrap(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_reads_back() {
        use VolumeFault::{CrashAfter, CrashBefore, CrashDuring, ErrorAfterSuccess, Fail};
        for fault in [CrashBefore, CrashAfter, CrashDuring, Fail(28), ErrorAfterSuccess(2)] {
            let fault = StageFault { rank: 1, call: 37, fault };
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
        let flip = BitFlip { rank: 1, result: "output".into(), calls: 3..u64::MAX };
        assert_eq!(flip.to_string().parse(), Ok(flip));
        assert!("rank=1,call=x,fault=crash-before".parse::<StageFault>().unwrap_err().contains("crash-during"));
    }
}
