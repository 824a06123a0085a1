//! Measures saves of checkpoints: the stall (the time for which training waits), the time lost because steps are slower
//! until the save is committed, the speed of the writes, and the extra memory.

use std::path::Path;

use serde_json::{Value, json};

use crate::job::BenchJob;
use crate::machine::{copy_seconds, cores, write_seconds};
use crate::stats::{fastest, line, median, rate};

/// The number of rounds. The compared measurements alternate, because on a virtual machine the same write takes several
/// times as long on pages that the machine has not touched recently.
const ROUNDS: usize = 3;

pub(crate) fn measure(folder: &Path) -> Value {
    println!("saving 33 million parameters and their moments, two stages of one thread");
    let job = |name, steps, checkpoint| BenchJob { name, steps, checkpoint, ..BenchJob::default() };
    let without = job("without", 30, "{everySteps: 0}").run(folder);
    let behind = |round| job("behind", 30 * round, "{everySteps: 10, keepLast: 1}");
    let waited = |round| job("waited", 10 * round, "{everySteps: 5, keepLast: 1, mode: Sync}");
    let mut with = 0;
    let (mut dd, mut copy) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let peak = behind(round as u64).run(folder);
        if round == 1 {
            with = peak; // later runs resume, so their peak includes the loaded checkpoint
        }
        waited(round as u64).run(folder);
        let bytes = records(&waited(1).metrics(folder)).0[0].bytes;
        dd.extend((0..4).map(|_| write_seconds(folder, bytes)));
        copy.push(copy_seconds(bytes as usize));
    }
    let (saves, steps) = records(&behind(1).metrics(folder));
    let (waited, _) = records(&waited(1).metrics(folder));
    report(&saves, &steps, &waited, &dd, &copy, [without, with])
}

// each step's number, and its time in seconds
type Steps = [(u64, f64)];

fn report(saves: &[Save], steps: &Steps, waited: &[Save], dd: &[f64], copy: &[f64], peak: [u64; 2]) -> Value {
    let bytes = saves[0].bytes as f64;
    let stalls: Vec<f64> = saves.iter().map(|save| save.stall).collect();
    let stalled = median(&stalls) / median(copy);
    line(
        "stall at the boundary",
        format!("{:.3} s", median(&stalls)),
        &format!("{stalled:.2} of a memcpy of the bytes ({:.3} s)", median(copy)),
    );

    let beside = |step: u64| saves.iter().any(|save| save.covers(step));
    let quiet: Vec<f64> = steps.iter().filter(|step| !beside(step.0)).map(|step| step.1).collect();
    let usual = median(&quiet);
    let lost =
        |save: &Save| -> f64 { steps.iter().filter(|step| save.covers(step.0)).map(|step| step.1 - usual).sum() };
    let losses: Vec<f64> = saves.iter().map(lost).collect();
    let slowdowns: Vec<f64> = saves.iter().map(|save| lost(save) / (save.cpu / cores())).collect();
    line(
        "lost by training until the commit",
        format!("{:.3} s", median(&losses)),
        &format!("{:.2} of the save's processor seconds divided by the cores", median(&slowdowns)),
    );

    let sync: Vec<f64> = waited.iter().map(|save| save.seconds).collect();
    let asynchronous: Vec<f64> = saves.iter().map(|save| save.seconds - save.stall).collect();
    // the times of dd vary fivefold on a shared machine, so both the usual speed (median) and the disk's best speed
    // (fastest) are reported
    for (which, of) in [("median", median as fn(&[f64]) -> f64), ("fastest", fastest)] {
        let write = of(dd);
        for (mode, seconds) in [("Sync", of(&sync)), ("Async", of(&asynchronous))] {
            line(
                &format!("written in mode {mode}, {which}"),
                rate(bytes, seconds),
                &format!("{:.0} % of dd conv=fsync ({})", 100.0 * write / seconds, rate(bytes, write)),
            );
        }
    }
    let extra = peak[1] as f64 - peak[0] as f64;
    line(
        "extra memory at the peak",
        format!("{:.0} MB", extra / 1e6),
        &format!("{:.2} of weights and moments", extra / bytes),
    );
    json!({
        "bytes": bytes,
        "stallSeconds": stalls,
        "memcpySeconds": copy,
        "stallOverMemcpy": stalled,
        "usualStepSeconds": usual,
        "lostSeconds": losses,
        "cpuSeconds": saves.iter().map(|save| save.cpu).collect::<Vec<_>>(),
        "lostOverCpuPerCore": slowdowns,
        "ddSeconds": dd,
        "syncSeconds": sync,
        "asyncSeconds": asynchronous,
        "syncOverDd": over(dd, &sync),
        "asyncOverDd": over(dd, &asynchronous),
        "peakBytesWithout": peak[0],
        "peakBytesWith": peak[1],
        "extraOverState": extra / bytes,
    })
}

/// Returns the speed of saves relative to `dd`, by the medians of both and by the fastest times of both.
fn over(dd: &[f64], saves: &[f64]) -> Value {
    json!({ "median": median(dd) / median(saves), "fastest": fastest(dd) / fastest(saves) })
}

/// One save, as the metrics record it. Times are in seconds.
struct Save {
    step: u64,
    /// The step during which the save was committed.
    until: u64,
    bytes: u64,
    seconds: f64,
    stall: f64,
    cpu: f64,
}

impl Save {
    /// Whether the save ran during `step`.
    fn covers(&self, step: u64) -> bool {
        (self.step + 1..=self.until).contains(&step)
    }
}

/// Returns the saves, and the seconds of each step without the first three steps, which warm up.
fn records(metrics: &[Value]) -> (Vec<Save>, Vec<(u64, f64)>) {
    let number = |value: &Value, field: &str| value[field].as_f64().unwrap();
    let save = |line: &Value| {
        let save = line.get("checkpoint")?;
        assert!(save.get("error").is_none(), "{save}");
        Some(Save {
            step: number(save, "step") as u64,
            until: number(line, "step") as u64,
            bytes: number(save, "bytes") as u64,
            seconds: number(save, "seconds"),
            stall: number(save, "stallSeconds"),
            cpu: number(save, "cpuSeconds"),
        })
    };
    let steps = metrics.iter().skip(3).map(|line| (number(line, "step") as u64, number(line, "seconds"))).collect();
    (metrics.iter().filter_map(save).collect(), steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saves_are_compared_with_dd_by_medians_and_by_the_fastest() {
        let (dd, saves) = ([1.0, 5.0, 2.0], [8.0, 4.0, 4.0]);
        assert_eq!(over(&dd, &saves), json!({ "median": 0.5, "fastest": 0.25 }));
    }
}
