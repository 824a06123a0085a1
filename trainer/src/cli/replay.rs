//! `stagecoach replay`

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::Args;
use stagecoach_api::contract::FailureKind;
use stagecoach_display::table;
use stagecoach_engine::StageError;
use stagecoach_pipeline::{Panel, timeline_trace};
use stagecoach_planner::environment_differences;
use stagecoach_replay::{
    RecordedCheckpoint, ReplayConfig, ReplayDifference, Replayed, RunRecord, compare_steps, replay,
};
use stagecoach_telemetry::{ProgressDisplay, StepRecord};
use tch::Tensor;

use super::output::{print_line, write_requested_file};

/// Train steps of a run again, and compare them bit for bit with the record.
///
/// The replay starts from the newest checkpoint before the step, or from the initial weights, over any number of stages
/// on this machine. The run's folder stays unchanged. The command exits with code 74 if a loss, a norm or a learning
/// rate differs.
#[derive(Debug, Args)]
pub(super) struct ReplayCommand {
    #[command(flatten)]
    run: RunArgs,
    /// The step, from 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    step: u64,
    /// The last step; `--step` by default.
    #[arg(long, value_name = "M")]
    until: Option<u64>,
    /// Write the timeline of the last step for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write tensors of the last step: `layer.N.output`, `layer.N.output.gradient`, `WEIGHT.value` (before the step)
    /// and `WEIGHT.gradient`, where `*` stands for any characters; may be repeated.
    #[arg(long, value_name = "NAME")]
    dump: Vec<String>,
    /// The file of the tensors, in safetensors format.
    #[arg(long, value_name = "FILE", default_value = "dump.safetensors", requires = "dump")]
    dump_file: PathBuf,
}

/// A run, and the settings of its replay.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// A job's folder, such as `workspace/NAME`, one checkpoint in it, or a copy of either.
    run: PathBuf,
    /// The folder that contains the corpus; the parent of the job's folder by default.
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// The number of stages to train over; the number of the run by default. Results are bit-identical for every
    /// number.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    stages: Option<u32>,
}

impl RunArgs {
    /// Opens the run's record. Returns it with the settings of its replay.
    pub(super) fn open(&self) -> anyhow::Result<(RunRecord, ReplayConfig)> {
        let record = RunRecord::open(&self.run)?;
        let workspace = self.workspace.clone().unwrap_or_else(|| record.workspace());
        Ok((record, ReplayConfig { workspace, stages: self.stages, ..ReplayConfig::default() }))
    }
}

impl ReplayCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let (record, mut config) = self.run.open()?;
        let until = self.until.unwrap_or(self.step);
        ensure!(self.step <= until, "--until is {until}, before --step {}", self.step);
        record.check_trained(until)?;
        record.damage.iter().for_each(|damage| print_line(format!("not used: {damage}")));
        let base = record.newest_before(self.step);
        config.dump.clone_from(&self.dump);
        print_line(replaying(base, until));
        let replayed = replay_or_fail(&record, base, until, &config)?;
        if !self.dump.is_empty() {
            let tensors = replayed.tensors(until)?;
            Tensor::write_safetensors(&tensors, &self.dump_file)
                .with_context(|| format!("could not write {}", self.dump_file.display()))?;
            print_line(format!("wrote {} tensors into {}", tensors.len(), self.dump_file.display()));
        }
        let asked: Vec<&StepRecord> = replayed.steps.iter().filter(|line| line.step >= self.step).collect();
        print_line(step_table(&record, &asked));
        if let Some(file) = &self.trace {
            let trace = trace(&replayed)?;
            write_requested_file(Some(file), || trace)?;
        }
        let environments = note_environments(&record, &replayed, until);
        print_line(compare_with_record(&record, &replayed, environments)?);
        Ok(())
    }
}

/// Describes the start and the end of a replay.
pub(super) fn replaying(base: Option<&RecordedCheckpoint>, until: u64) -> String {
    match base {
        None => format!("replaying to step {until} from the initial weights"),
        Some(base) => format!("replaying to step {until} from the checkpoint of step {}", base.manifest.step),
    }
}

/// Calls [`replay`]. Also returns an error for a difference that the replay itself finds.
pub(super) fn replay_or_fail(
    record: &RunRecord,
    base: Option<&RecordedCheckpoint>,
    until: u64,
    config: &ReplayConfig,
) -> anyhow::Result<Replayed> {
    let replayed = replay(record, base, until, config, &mut ProgressDisplay::notes())?;
    replayed.map_err(|difference| differs(&difference).into())
}

/// Returns the message that all steps equal the record, or that there is no record.
///
/// # Errors
/// If a step differs. The message ends with `environments`.
pub(super) fn compare_with_record(
    record: &RunRecord,
    replayed: &Replayed,
    environments: &str,
) -> anyhow::Result<String> {
    if record.steps.is_empty() {
        return Ok("there is no record to compare with: metrics.jsonl is not beside the checkpoints".to_owned());
    }
    if let Some(difference) = compare_steps(&record.steps, &replayed.steps) {
        bail!(differs(&ReplayDifference { what: format!("{difference}{environments}"), ..difference }));
    }
    let count = replayed.steps.len();
    Ok(format!("equal: {count} step{}, bit for bit", if count == 1 { "" } else { "s" }))
}

/// Returns the error for a record that its replay contradicts.
pub(super) fn differs(difference: &ReplayDifference) -> StageError {
    StageError::new(FailureKind::Storage, difference.to_string())
}

/// Prints a note if this environment differs from the one in which step `until` was trained. Returns the words that a
/// message about a difference appends in this case, or an empty text.
pub(super) fn note_environments(record: &RunRecord, replayed: &Replayed, until: u64) -> &'static str {
    let trained = record.checkpoints.iter().find(|checkpoint| checkpoint.manifest.step >= until);
    let Some(trained) = trained.or(record.checkpoints.last()) else { return "" };
    let [before, now] = [&trained.manifest, &replayed.manifest].map(|manifest| &manifest.metadata.environment);
    let changed = environment_differences(before, now);
    if changed.is_empty() {
        return "";
    }
    print_line(format!(
        "this is another environment than the run's ({}): the numbers may differ in their last bits",
        changed.join(", ")
    ));
    ", in another environment"
}

/// Returns a table of the replayed steps: their results, and whether these equal the record.
fn step_table(record: &RunRecord, steps: &[&StepRecord]) -> String {
    let row = |here: &&StepRecord| {
        let verdict = match record.steps.iter().any(|line| line.step == here.step) {
            false => "not recorded",
            true if compare_steps(&record.steps, std::slice::from_ref(*here)).is_none() => "equal",
            true => "DIFFERS",
        };
        let number = |value: Option<String>| value.unwrap_or_else(|| "not finite".into());
        vec![
            here.step.to_string(),
            number(here.loss.map(|loss| loss.to_string())),
            number(here.gradient_norm.map(|norm| norm.to_string())),
            verdict.into(),
        ]
    };
    table(Some(&["step", "loss", "gradient norm", "record"]), &[0], steps.iter().map(row).collect())
}

/// Returns the timeline of the last replayed step as a trace. The timeline exists because every group of stages records
/// its last step.
fn trace(replayed: &Replayed) -> anyhow::Result<String> {
    let record = replayed.steps.last().and_then(|line| line.timeline.as_ref());
    let timeline = record.context("the stages did not record the last step's timeline")?.timeline();
    Ok(timeline_trace(&[Panel { heading: "replayed", timeline: &timeline.map_err(anyhow::Error::msg)? }]))
}
