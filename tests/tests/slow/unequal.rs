//! Stages on unequal machines: when the job starts again, the planner divides the layers according to the measured
//! times of the stages. This does not change a bit of the results.

use std::path::Path;

use serde_json::{Value, json};
use stagecoach_tests::fixture::records;
use stagecoach_tests::{Launched, TestJob, corpus, says, undisturbed};

use crate::replay::change_metrics;

/// Enough steps for three timelines in the metrics, since one step in ten has a timeline.
const STEPS: u64 = 30;

/// Changes the times of the stages in the metrics. The time of a stage becomes its work divided by its speed.
fn rewrite(records: &mut [Value], speeds: [f64; 3]) {
    for record in records.iter_mut().filter_map(|record| record.get_mut("timeline")) {
        let work: Vec<[f64; 3]> = serde_json::from_value(record["work"].clone()).unwrap();
        let layers: Vec<usize> = serde_json::from_value(record["partition"].clone()).unwrap();
        let mut modules = work.iter().map(|module| module.iter().sum::<f64>());
        for (rank, speed) in speeds.into_iter().enumerate() {
            // stage 0 also has the embedding, and stage 2 has the head
            let count = layers[rank] + usize::from(rank != 1);
            let seconds = modules.by_ref().take(count).sum::<f64>() / speed * 1e-9;
            let stage = &mut record["stages"][rank];
            let actions = stage["actions"].as_array().unwrap().len();
            let times: Vec<[f64; 2]> = (0..actions).map(|at| [at as f64, at as f64 + seconds]).collect();
            assert!(seconds < 1.0);
            stage["seconds"] = json!(times);
        }
    }
}

fn partition(folder: &Path) -> Value {
    records(folder).pop().unwrap()["timeline"]["partition"].clone()
}

#[test]
fn a_stage_that_was_slow_gets_fewer_layers_and_the_bits_stay() {
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let job = TestJob { layers: 8, steps: STEPS, decay_steps: Some(STEPS), ..TestJob::default() };
    let folder = workspace.join("small");
    Launched::start(workspace, &job, &[]).finish(workspace).hashes();
    let even = partition(&folder);
    for (steps, speeds, expected) in
        [(STEPS + 10, [1.0, 0.9, 1.0], None), (2 * STEPS, [1.0, 0.25, 1.0], Some([4, 1, 3]))]
    {
        change_metrics(&folder, |records| rewrite(records, speeds));
        let longer = TestJob { steps, ..job.clone() };
        let outcome = Launched::start(workspace, &longer, &[]).finish(workspace);
        assert_eq!(outcome.hashes(), undisturbed(&longer));
        assert_eq!(partition(&folder), expected.map_or(even.clone(), |layers| json!(layers)));
        match expected {
            Some(_) => {
                says(&outcome, "the stages are 1.00/0.25/1.00 times as fast as the fastest: their layers are 4/1/3")
            }
            None => assert!(!outcome.stdout.contains("times as fast"), "{}", outcome.stdout),
        }
    }
}
