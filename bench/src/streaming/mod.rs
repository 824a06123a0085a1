//! Measures a job that streams 28 GB from a hub on this machine: the time to its first step, its waits for data, and
//! its memory and disk while it reads a hundred times the size of its cache.

mod hub;

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use stagecoach_test_hub::Hub;
use stagecoach_tests::{Launched, stagecoach, until_within};

use crate::job::json_lines;
use crate::machine::memory;
use crate::stats::line;

const REPO: &str = "org/web";
/// The limit for cached windows that are not in use, in bytes. A window is a number of consecutive sequences that the
/// job shuffles together. Two windows of the job `long` fit into the limit.
const CACHE_BYTES: u64 = 256 << 10;
const LENGTH: u64 = 512;
const BATCH: u64 = 32;

/// A job of two stages with a small model.
struct Streamed {
    name: &'static str,
    window_sequences: u64,
    steps: u64,
}

impl Streamed {
    fn start(&self, hub: &Hub, folder: &Path) -> Launched {
        let Streamed { name, window_sequences, steps } = self;
        let yaml = format!(
            "apiVersion: stagecoach.dev/v1alpha1
kind: PipelineJob
metadata: {{name: {name}}}
spec:
  stages: 2
  model: {{type: Llama, llama: {{hiddenSize: 64, numHiddenLayers: 2, numAttentionHeads: 4, intermediateSize: 128}}}}
  data:
    paths: [\"hf://datasets/{REPO}/sample/10BT/*.parquet\"]
    sequenceLength: {LENGTH}
    tokenizer: {{type: Train, train: {{vocabSize: 8000}}}}
    streaming: {{windowSequences: {window_sequences}}}
    cache: {{maxBytes: {CACHE_BYTES}}}
  training:
    steps: {steps}
    globalBatchSize: {BATCH}
    microbatches: 4
    learningRate: {{peak: 1e-3, warmupSteps: 5, decaySteps: 100000}}
  checkpoint: {{everySteps: 0}}
"
        );
        let file = folder.join(format!("{name}.yaml"));
        std::fs::write(&file, yaml).unwrap();
        let endpoint = hub.endpoint();
        let variables = [("HF_ENDPOINT", endpoint.as_str()), ("HF_HUB_CACHE", "/nowhere")];
        Launched::start_program(&stagecoach(), folder, &file, folder.join(name), &[], &variables)
    }

    fn metrics(&self, folder: &Path) -> Vec<Value> {
        json_lines(&folder.join(self.name).join("metrics.jsonl"))
    }
}

pub(crate) fn measure(folder: &Path) -> Value {
    let texts = folder.parent().unwrap().join("corpus/shakespeare");
    let (hub, bytes) = hub::start(&texts, REPO);
    println!("streaming {:.1} GB from a hub on this machine, two stages of one thread", bytes as f64 / 1e9);
    let first = first_step(&hub, folder);
    let mut report = long_run(&hub, folder, bytes);
    report["firstStep"] = first;
    report["corpusBytes"] = json!(bytes);
    report
}

/// Measures the time from the moment at which the tokenizer is ready to the end of the first step, with windows of the
/// default size.
fn first_step(hub: &Hub, folder: &Path) -> Value {
    let job = Streamed { name: "first", window_sequences: 4096, steps: 8 };
    let mut launched = job.start(hub, folder);
    let mut ready = None;
    let seconds = until_within("the first step", 1200, || {
        ready = ready.or_else(|| tokenizer_ready(folder));
        assert!(launched.child.try_wait().unwrap().is_none_or(|status| status.success()));
        (launched.steps() > 0).then(|| ready.unwrap().elapsed().as_secs_f64())
    });
    let step = job.metrics(folder)[0]["seconds"].as_f64().unwrap();
    launched.finish(folder);
    let beside = format!("of which {step:.1} s are the step; the window has {} tokens", 4096 * LENGTH);
    line("first step after the tokenizer", format!("{seconds:.1} s"), &beside);
    json!({ "seconds": seconds, "stepSeconds": step, "windowTokens": 4096 * LENGTH })
}

/// Returns the time at which the tokenizer was written into a cache; `None` before that.
fn tokenizer_ready(folder: &Path) -> Option<Instant> {
    let caches = std::fs::read_dir(folder.join("cache")).ok()?.flatten();
    let written =
        caches.filter_map(|cache| cache.path().join("tokenizer.json").metadata().ok()?.modified().ok()).max()?;
    Instant::now().checked_sub(SystemTime::now().duration_since(written).unwrap_or(Duration::ZERO))
}

/// Measures a job that reads a hundred times the size of its cache.
fn long_run(hub: &Hub, folder: &Path, corpus: u64) -> Value {
    let steps = (100 * CACHE_BYTES / 2).div_ceil(BATCH * LENGTH);
    let job = Streamed { name: "long", window_sequences: 128, steps };
    let mut launched = job.start(hub, folder);
    let windows = folder.join("long/windows");
    let (mut disk, mut early, mut late) = (0, 0, 0);
    let status = until_within("the end of a job", 2400, || {
        disk = disk.max(bytes_below(&windows));
        if let Some(resident) = launched.stages().first().and_then(|stage| memory(stage, "VmRSS:")) {
            match launched.steps() {
                done if done < steps / 10 => early = early.max(resident),
                done if done < steps => late = late.max(resident),
                _ => {}
            }
        }
        launched.child.try_wait().unwrap()
    });
    assert!(status.success(), "{status}");
    let metrics = job.metrics(folder);
    // omits the first steps, which wait for the first windows
    let sum = |field: &str| metrics.iter().skip(10).filter_map(|record| record[field].as_f64()).sum::<f64>();
    let (waited, seconds) = (sum("dataWaitSeconds"), sum("seconds"));
    let read = steps * BATCH * LENGTH * 2;
    line("waits for data", format!("{:.2} %", 100.0 * waited / seconds), &format!("{waited:.2} s of {seconds:.0} s"));
    let of = format!("of {:.0} MB of tokens; the cache may have {:.2} MB", read as f64 / 1e6, CACHE_BYTES as f64 / 1e6);
    line("largest size of the windows", format!("{:.2} MB", disk as f64 / 1e6), &of);
    let megabytes = |kibibytes: u64| kibibytes as f64 * 1024.0 / 1e6;
    let beside = format!("{:.0} MB in the first tenth of the job", megabytes(early));
    line("memory of stage 0", format!("{:.0} MB", megabytes(late)), &beside);
    json!({
        "steps": steps,
        "tokenBytesRead": read,
        "cacheBytes": CACHE_BYTES,
        "corpusOverCache": corpus / CACHE_BYTES,
        "dataWaitSeconds": waited,
        "trainingSeconds": seconds,
        "dataWaitShare": waited / seconds,
        "largestWindowBytes": disk,
        "earlyResidentKibibytes": early,
        "lateResidentKibibytes": late,
    })
}

/// Returns the bytes of all files below a folder. Another process may change the folder at the same time.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}
