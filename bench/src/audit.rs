//! Measures the cost of `training.audit`. In an audit, a stage computes a microbatch of another stage again, to detect
//! silent corruption.

use std::path::Path;

use serde_json::{Value, json};

use crate::job::BenchJob;
use crate::stats::{line, mean};

/// The number of rounds. In a round, a job without audits and a job with audits run once each.
const ROUNDS: u64 = 4;
/// The number of steps of a job, among them several audited steps. The first `WARM_UP` steps are not counted, because
/// they fill the caches.
const STEPS: u64 = 64;
const WARM_UP: usize = 4;
/// In 12 steps, the two stages compute 96 microbatches, and the audit repeats one of them: about one in a hundred.
const AUDIT_SPEC: &str = "{everySteps: 12}";

pub(crate) fn measure(folder: &Path) -> Value {
    println!("33 million parameters in two stages, with training.audit: {AUDIT_SPEC} and without");
    let mut seconds = [const { Vec::new() }; 2];
    let mut audits = Vec::new();
    for _ in 0..ROUNDS {
        for (index, audit) in [None, Some(AUDIT_SPEC)].into_iter().enumerate() {
            let job = BenchJob { name: "audited", steps: STEPS, batch: 8, audit, ..BenchJob::default() };
            let _ = std::fs::remove_dir_all(folder.join(job.name));
            job.run(folder);
            for line in job.metrics(folder).iter().skip(WARM_UP) {
                seconds[index].push(line["seconds"].as_f64().unwrap());
                audits.extend(line["audit"]["seconds"].as_f64());
            }
        }
    }
    // the mean, because most steps audit nothing
    let cost = mean(&seconds[1]) / mean(&seconds[0]) - 1.0;
    line(
        "training.audit",
        format!("{:+.2} %", 100.0 * cost),
        &format!(
            "steps of {:.3} s; {} audits of {:.3} s each, {:.2} % of a stage's time",
            mean(&seconds[0]),
            audits.len(),
            mean(&audits),
            100.0 * audits.iter().sum::<f64>() / seconds[1].iter().sum::<f64>()
        ),
    );
    json!({"audit": AUDIT_SPEC, "stepSeconds": {"without": seconds[0], "with": seconds[1]}, "auditSeconds": audits, "cost": cost})
}
