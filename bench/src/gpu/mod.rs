//! `make gpu`: the measurements that need a GPU. They are divided into parts, and the most valuable part comes first.
//! Each part updates the report on disk. The report gives the reason for each omitted measurement. Without a GPU, the
//! run is a rehearsal: the same parts run on the CPU, with a stand-in for NCCL and with models of toy size.

mod bits;
mod faults;
mod gpu_run;
mod host_waits;
mod kernels;
mod libraries;
mod loss;
mod model;
mod paths;
mod speed;
mod stall;
mod torch;

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::report_file::ReportFile;
use gpu_run::{GpuRun, measured_or_failure};

/// The default time limit for the measurements of one `make gpu`, in seconds. With this limit, `make gpu` ends within
/// ten minutes.
const USUAL_BUDGET: u64 = 540;
/// The environment variable that replaces `USUAL_BUDGET`, in seconds. Measurements that need more time are omitted.
const BUDGET: &str = "STAGECOACH_GPU_SECONDS";

fn budget() -> Duration {
    let seconds = std::env::var(BUDGET).ok().map(|text| {
        text.parse().unwrap_or_else(|_| {
            eprintln!("{BUDGET} is {text:?}: expected a number of seconds");
            std::process::exit(2);
        })
    });
    Duration::from_secs(seconds.unwrap_or(USUAL_BUDGET))
}

const REHEARSAL: &str = "This is a rehearsal without a GPU. It shows that all parts run, with toys on the CPU and a \
                         stand-in for NCCL; none of its figures is of a GPU.";

struct Part {
    name: &'static str,
    /// The part begins only if this number of seconds remains.
    seconds: u64,
    measure: fn(&GpuRun) -> Value,
}

/// The parts in the order of measurement. The parts that reveal most about a new GPU come first.
const PARTS: [Part; 13] = [
    Part { name: "kernels", seconds: 20, measure: kernels::measure_tests },
    Part { name: "speed", seconds: 40, measure: speed::measure_models },
    Part { name: "torch", seconds: 30, measure: torch::measure },
    Part { name: "operations", seconds: 10, measure: kernels::measure_operations },
    Part { name: "determinism", seconds: 10, measure: kernels::measure_determinism },
    Part { name: "bitsOverTcp", seconds: 20, measure: bits::measure_tcp },
    Part { name: "bitsOverNccl", seconds: 40, measure: bits::measure_nccl },
    Part { name: "kills", seconds: 30, measure: faults::measure },
    Part { name: "stall", seconds: 20, measure: stall::measure },
    Part { name: "hostWaits", seconds: 25, measure: host_waits::measure },
    Part { name: "stages", seconds: 20, measure: speed::measure_stages },
    Part { name: "loss", seconds: 15, measure: loss::measure },
    Part { name: "libraries", seconds: 10, measure: libraries::measure },
];

/// Returns the parts with these names, or all parts.
fn select(names: &[String]) -> Vec<&'static Part> {
    let is_known = |name: &&String| PARTS.iter().any(|part| part.name == name.as_str());
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        let known: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        eprintln!("`make gpu` has no part {unknown:?}: its parts are {}", known.join(", "));
        std::process::exit(2);
    }
    PARTS.iter().filter(|part| names.is_empty() || names.iter().any(|name| name == part.name)).collect()
}

/// Returns the report's name. A rehearsal has another name, so that it does not replace the figures of a GPU.
pub(crate) fn report_name() -> &'static str {
    if gpu_run::has_gpu() { "gpu" } else { "gpu-rehearsal" }
}

/// Measures the parts with these names, or all parts if there are no names. For the other parts, the report keeps the
/// measurements of an earlier call at the same clean commit with the same GPU model and driver.
pub(crate) fn measure(folder: &Path, file: &ReportFile, names: &[String]) -> Value {
    let parts = select(names);
    let budget = budget();
    let run = GpuRun::begin(folder, file.path().with_file_name("gpu-failures.log"), Instant::now() + budget);
    let gpu = run.gpu();
    println!("{}", gpu.map_or("a rehearsal: there is no GPU", |gpu| &gpu.name));
    if gpu.is_none() {
        run.not_measured("NCCL and the driver", "there is no GPU: a stand-in replaces them");
        run.not_measured("speeds of the models on a GPU, and MFU", "there is no GPU: toys are trained on the CPU");
        run.not_measured(
            "how often the host waits for a GPU",
            "there is no GPU, so the run records no CUDA calls that wait",
        );
    }
    let described = json!({
        "isRehearsal": gpu.is_none(),
        "note": gpu.is_none().then_some(REHEARSAL),
        "gpu": gpu.map(|gpu| json!({ "name": gpu.name, "driver": gpu.driver })),
        "budgetSeconds": budget.as_secs(),
    });
    let earlier = file.read().filter(|report| !names.is_empty() && report["gpu"] == described["gpu"]);
    let mut report = earlier.unwrap_or_else(|| described.clone());
    run.keep_earlier(&report, &parts.iter().map(|part| part.name).collect::<Vec<_>>());
    for Part { name, seconds, measure } in parts {
        run.begin_part(name);
        if run.has_time_for(name, *seconds) {
            println!("{name}");
            let started = Instant::now();
            report[*name] = measured_or_failure(name, || measure(&run));
            report["partSeconds"][*name] = started.elapsed().as_secs().into();
        }
        run.tell(&mut report);
        paths::shorten(&mut report);
        file.write(&report);
    }
    report
}

/// Whether the run recorded an error: for example, different bits, a failed kernel test, or a job that did not recover
/// from the kill of a stage.
pub(crate) fn is_wrong(report: &Value) -> bool {
    report["wrong"].as_array().is_some_and(|wrong| !wrong.is_empty())
}
