//! Saving: what training waits for, what it loses until the commit, how fast the bytes go, what memory it takes.

use std::path::Path;

use serde_json::{Value, json};

use crate::job::Job;
use crate::machine::{copy_seconds, cores, write_seconds};
use crate::stats::{line, median, rate};

pub(crate) fn measure(folder: &Path) -> Value {
    println!("saving 33 million parameters and their moments, one stage on two threads");
    let job = |name, checkpoint| Job { name, stages: 1, large: true, steps: 40, checkpoint };
    let without = job("without", "{everySteps: 0}").run(folder);
    let behind = job("behind", "{everySteps: 10, keepLast: 1}");
    let with = behind.run(folder);
    let waited = job("waited", "{everySteps: 10, keepLast: 1, mode: Sync}");
    waited.run(folder);

    let (saves, steps) = records(&behind.metrics(folder));
    let bytes = saves[0].bytes;
    let copy = copy_seconds(bytes as usize);
    let stalls: Vec<f64> = saves.iter().map(|save| save.stall).collect();
    line(
        "stall at the boundary",
        format!("{:.3} s", median(&stalls)),
        &format!("{:.2} of a memcpy of the bytes ({copy:.3} s)", median(&stalls) / copy),
    );

    let quiet: Vec<f64> =
        steps.iter().filter(|step| !saves.iter().any(|save| save.covers(step.0))).map(|step| step.1).collect();
    let usual = median(&quiet);
    let lost =
        |save: &Save| -> f64 { steps.iter().filter(|step| save.covers(step.0)).map(|step| step.1 - usual).sum() };
    let slowdowns: Vec<f64> = saves.iter().map(|save| lost(save) / (save.cpu / cores())).collect();
    line(
        "lost by training until the commit",
        format!("{:.3} s", median(&saves.iter().map(lost).collect::<Vec<_>>())),
        &format!("{:.2} of the save's processor seconds over the cores", median(&slowdowns)),
    );

    let dd = write_seconds(folder, bytes);
    let (sync_saves, _) = records(&waited.metrics(folder));
    let sync = median(&sync_saves.iter().map(|save| save.seconds).collect::<Vec<_>>());
    let asynchronous = median(&saves.iter().map(|save| save.seconds - save.stall).collect::<Vec<_>>());
    line(
        "written while training waits",
        rate(bytes as f64, sync),
        &format!("{:.0} % of dd conv=fsync ({})", 100.0 * dd / sync, rate(bytes as f64, dd)),
    );
    line(
        "written behind training",
        rate(bytes as f64, asynchronous),
        &format!("{:.0} % of it", 100.0 * dd / asynchronous),
    );
    line(
        "extra memory at the peak",
        format!("{:.0} MB", (with as f64 - without as f64) / 1e6),
        &format!("{:.2} of the stage's weights and moments", (with as f64 - without as f64) / bytes as f64),
    );
    json!({
        "bytes": bytes,
        "stallSeconds": stalls,
        "memcpySeconds": copy,
        "stallOverMemcpy": median(&stalls) / copy,
        "usualStepSeconds": usual,
        "lostSeconds": saves.iter().map(lost).collect::<Vec<_>>(),
        "cpuSeconds": saves.iter().map(|save| save.cpu).collect::<Vec<_>>(),
        "lostOverCpuPerCore": slowdowns,
        "ddSeconds": dd,
        "syncSeconds": sync,
        "asyncSeconds": asynchronous,
        "syncOverDd": dd / sync,
        "asyncOverDd": dd / asynchronous,
        "peakBytesWithout": without,
        "peakBytesWith": with,
        "extraOverState": (with as f64 - without as f64) / bytes as f64,
    })
}

/// One save, from the metrics.
struct Save {
    step: u64,
    /// The step in whose course it was committed.
    until: u64,
    bytes: u64,
    seconds: f64,
    stall: f64,
    cpu: f64,
}

impl Save {
    /// Whether it ran beside that step.
    fn covers(&self, step: u64) -> bool {
        (self.step + 1..=self.until).contains(&step)
    }
}

/// The saves, and every step with its seconds; the first few, which warm up, left out.
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
