//! `stagecoach diff`

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use stagecoach_checkpoint::differences;
use stagecoach_planner::environment_differences;
use stagecoach_replay::{
    ReplayConfig, ReplayDifference, Replayed, RunRecord, compare_steps, compare_tensors, first_divergence,
    first_divergent_tensor, stage_of,
};

use super::output::print_line;
use super::replay::{differs, replay_or_fail};

/// Find the first step and the first tensor at which two runs differ.
///
/// The command compares the records of both runs, and bisects the checkpoints that both runs have, because weights may
/// differ although the records are equal. Then it trains the first step that differs again in both runs, and prints the
/// first tensor that differs, in the order of computation. It exits with code 74 if the runs differ.
#[derive(Debug, Args)]
pub(super) struct DiffCommand {
    /// A job's folder, or a copy of one.
    run: PathBuf,
    /// The folder of the other job, or a copy of it.
    other: PathBuf,
    /// The folder that contains the corpora; the parent of each job's folder by default.
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// The number of stages to train over; the number of each run by default.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    stages: Option<u32>,
}

impl DiffCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let [one, other] = [RunRecord::open(&self.run)?, RunRecord::open(&self.other)?];
        for (name, record) in [(&self.run, &one), (&self.other, &other)] {
            if record.steps.is_empty() {
                bail!("{} has no metrics.jsonl: the comparison needs the loss of each step", name.display());
            }
        }
        jobs_that_differ(&one, &other);
        let last = one.last_step().min(other.last_step());
        let line = compare_steps(&one.steps, &until(&other, last));
        let common: Vec<u64> = one.checkpoints.iter().map(|checkpoint| checkpoint.manifest.step).collect();
        let common: Vec<u64> = common.into_iter().filter(|step| other.checkpoint(*step).is_some()).collect();
        let tensors = |step| compare_tensors(&one.checkpoint(step)?.manifest, &other.checkpoint(step)?.manifest);
        let checkpoint = first_divergence(&common, |step| tensors(step).is_none());
        let step = match (&line, checkpoint) {
            (None, None) => {
                print_line(format!("equal: {last} steps and {} checkpoints of both runs", common.len()));
                return Ok(());
            }
            (Some(line), None) => line.step,
            (None, Some(step)) => step,
            (Some(line), Some(step)) => line.step.min(step),
        };
        if let Some(line) = line.filter(|line| line.step == step) {
            print_line(format!("the runs diverge at step {step}: {}", in_words(&one, &other, line.step)));
        } else {
            print_line(format!("the runs differ at the checkpoint of step {step}, although their records are equal"));
        }
        let [first, second] = [self.train(&one, step)?, self.train(&other, step)?];
        let parted = first_divergent_tensor(&first.tensors(step)?, &second.tensors(step)?);
        let what = match &parted {
            Some(tensor) => {
                let stage = one.checkpoints.iter().find_map(|checkpoint| stage_of(&checkpoint.manifest, &tensor.name));
                let stage = stage.map_or_else(String::new, |stage| format!(" (stage {stage} of the first run)"));
                format!("at step {step} the first tensor that differs is {tensor}{stage}")
            }
            None => match compare_tensors(&first.manifest, &second.manifest) {
                Some(_) => format!("the update of step {step} is the first that differs: gradients are equal"),
                None => not_here(&one, &other, step),
            },
        };
        bail!(differs(&ReplayDifference { step, what }))
    }

    /// Trains the step of a run again, and dumps all tensors of the step.
    fn train(&self, record: &RunRecord, step: u64) -> anyhow::Result<Replayed> {
        let workspace = self.workspace.clone().unwrap_or_else(|| record.workspace());
        let config = ReplayConfig { workspace, stages: self.stages, dump: vec!["*".into()], ..ReplayConfig::default() };
        replay_or_fail(record, record.newest_before(step), step, &config)
    }
}

/// Returns the lines of the metrics up to step `last`.
fn until(record: &RunRecord, last: u64) -> Vec<stagecoach_telemetry::StepRecord> {
    record.steps.iter().filter(|line| line.step <= last).cloned().collect()
}

/// Prints the fields in which two jobs differ.
fn jobs_that_differ(one: &RunRecord, other: &RunRecord) {
    let (Some(one), Some(other)) = (one.checkpoints.last(), other.checkpoints.last()) else { return };
    for different in differences(&other.manifest.metadata.identity, &one.manifest.metadata.identity) {
        let text = |value: Option<serde_json::Value>| value.map_or_else(|| "absent".into(), |value| value.to_string());
        print_line(format!("{} is {} and {}", different.path, text(different.recorded), text(different.current)));
    }
}

/// Describes the numbers of a step in both runs.
fn in_words(one: &RunRecord, other: &RunRecord, step: u64) -> String {
    let numbers = [one, other].map(|record| {
        let line = record.steps.iter().find(|line| line.step == step);
        line.map_or_else(
            || "no line".into(),
            |line| {
                let number = |value: Option<String>| value.unwrap_or_else(|| "none".into());
                format!(
                    "loss {}, gradient norm {}, learning rate {}",
                    number(line.loss.map(|loss| loss.to_string())),
                    number(line.gradient_norm.map(|norm| norm.to_string())),
                    line.learning_rate
                )
            },
        )
    });
    numbers.join(" and ")
}

/// Explains why the records of two runs differ, although this machine computes the same results for both runs.
fn not_here(one: &RunRecord, other: &RunRecord, step: u64) -> String {
    let manifest = |record: &RunRecord| {
        let after = record.checkpoints.iter().find(|checkpoint| checkpoint.manifest.step >= step);
        after.or(record.checkpoints.last()).map(|checkpoint| checkpoint.manifest.clone())
    };
    let changed = match (manifest(one), manifest(other)) {
        (Some(one), Some(other)) => environment_differences(&one.metadata.environment, &other.metadata.environment),
        _ => Vec::new(),
    };
    let why = match changed.is_empty() {
        true => "`stagecoach audit` finds the record that does not follow from its job".to_owned(),
        false => format!("they were trained in different environments ({})", changed.join(", ")),
    };
    format!("on this machine, step {step} of both runs gives equal results: {why}")
}
