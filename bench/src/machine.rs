//! Describes the machine, and measures how fast it copies memory and how fast it writes and reads files. Other
//! measurements report ratios to these speeds.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use crate::stats::median;

/// Returns the processor, the number of cores, and the kernel's release.
pub(crate) fn describe() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':')).map(|(_, name)| name.trim());
    json!({ "processor": model, "cores": cores(), "kernel": read("/proc/sys/kernel/osrelease").trim() })
}

/// The end of [`commit`] if files differ from the commit.
pub(crate) const DIRTY: &str = "-dirty";

/// Returns the measured commit: the value of `STAGECOACH_COMMIT`, or the output of `git describe` if the variable is
/// not set. Git appends [`DIRTY`] if files differ from the commit. The text is empty if the variable is not set and git
/// fails.
pub(crate) fn commit() -> String {
    if let Ok(packed) = std::env::var("STAGECOACH_COMMIT") {
        return packed;
    }
    let git = Command::new("git").args(["describe", "--always", "--abbrev=40", "--dirty"]).output();
    git.map_or_else(|_| String::new(), |git| String::from_utf8_lossy(&git.stdout).trim().to_owned())
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64)
}

/// Copies `bytes` bytes seven times between two buffers that are already in memory, with one thread. Returns the median
/// time in seconds.
pub(crate) fn copy_seconds(bytes: usize) -> f64 {
    let from = vec![1u8; bytes];
    let mut to = vec![2u8; bytes];
    let once = |to: &mut Vec<u8>| {
        let started = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
        started.elapsed().as_secs_f64()
    };
    let times: Vec<f64> = (0..7).map(|_| once(&mut to)).collect();
    median(&times)
}

/// Returns the seconds in which `dd conv=fsync` writes `bytes` bytes to a file in `folder`. The file of the previous
/// call still exists during the write, as the previous checkpoint does during a save.
pub(crate) fn write_seconds(folder: &Path, bytes: u64) -> f64 {
    let (file, before) = (folder.join("dd.bin"), folder.join("dd.bin.before"));
    let started = Instant::now();
    let done = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "iflag=fullblock,count_bytes", "conv=fsync", "status=none"])
        .arg(format!("count={bytes}"))
        .arg(format!("of={}", file.display()))
        .status()
        .unwrap();
    assert!(done.success(), "dd failed");
    let seconds = started.elapsed().as_secs_f64();
    std::fs::rename(&file, &before).unwrap();
    seconds
}

/// Reads all files of `folder` five times, a mebibyte at a time. Returns the median time in seconds. The first pass
/// brings the files into the page cache.
pub(crate) fn read_seconds(folder: &Path) -> f64 {
    let mut buffer = vec![0; 1 << 20];
    let mut once = || {
        let started = Instant::now();
        for entry in std::fs::read_dir(folder).unwrap() {
            let mut file = File::open(entry.unwrap().path()).unwrap();
            while file.read(&mut buffer).unwrap() > 0 {}
        }
        started.elapsed().as_secs_f64()
    };
    let times: Vec<f64> = (0..5).map(|_| once()).collect();
    median(&times)
}

/// Returns the kibibytes of a process's memory. `field` is `VmRSS:` for the current size, and `VmHWM:` for the peak.
/// Returns `None` if the process has ended.
pub(crate) fn memory(process: impl std::fmt::Display, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().split(' ').next()?.parse().ok()
}

/// Returns the processor seconds (user and system) that a process has used so far.
pub(crate) fn processor_seconds(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}
