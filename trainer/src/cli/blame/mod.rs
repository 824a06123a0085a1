//! `stagecoach blame`

mod show;
mod without;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::Serialize;
use stagecoach_data::{DocumentName, PartText, document_numbers};
use stagecoach_replay::blame::{
    BlamedJob, RankBy, Spike, SpikeRule, StepBlame, TENSORS, document_gradients, find_spikes,
};
use stagecoach_replay::{RecordedCheckpoint, ReplayConfig, Replayed, RunRecord};

use super::job_args::parse_not_negative;
use super::output::{print_json, print_line};
use super::replay::{RunArgs, compare_with_record, note_environments, replay_or_fail, replaying};

/// Show the contribution of each document to a step's loss and gradient.
///
/// The command first trains the step again from the newest checkpoint before it, and compares it bit for bit with the
/// record. It exits with code 74 if they differ. Then it computes each document of the step alone, with the weights
/// from before the step. The run's folder stays unchanged.
///
/// A document's share of the loss is the sum of its cross-entropies over the sum of all cross-entropies of the step.
/// Its share of the gradient's norm is g_d . g / |g|^2, where g is the gradient of the step's loss and g_d the gradient
/// of the document's part of that loss. The shares add up to 1. The share is negative if the document's gradient points
/// against the step's gradient. A document raises the step's loss by the difference between that loss and the mean over
/// the targets of all other documents.
///
/// A step is a spike if its loss or gradient norm is more than K deviations above the median of the W steps before it.
/// A deviation is 1.4826 times the median of the distances of these steps from their median, and at least 1 % of that
/// median.
#[derive(Debug, Args)]
pub(in crate::cli) struct BlameCommand {
    #[command(flatten)]
    run: RunArgs,
    /// The step, from 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), required_unless_present = "spikes")]
    step: Option<u64>,
    /// The last step; `--step` by default.
    #[arg(long, value_name = "M", requires = "step")]
    until: Option<u64>,
    /// Find the steps that are spikes, and show the COUNT largest.
    #[arg(
        long, value_name = "COUNT", num_args = 0..=1, require_equals = true, default_missing_value = "5",
        conflicts_with = "step", value_parser = clap::value_parser!(u32).range(1..)
    )]
    spikes: Option<u32>,
    /// The number of preceding steps with which a step is compared.
    #[arg(long, value_name = "W", default_value_t = 50, requires = "spikes", value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,
    /// The number of deviations above the median of the preceding steps from which a step is a spike.
    #[arg(long, value_name = "K", default_value_t = 6.0, requires = "spikes", value_parser = parse_not_negative)]
    deviations: f64,
    #[arg(long, value_name = "FILE:DOC", requires = "step", help = without_help())]
    without: Vec<DocumentName>,
    /// Write the losses with and without the documents as SVG.
    #[arg(long, value_name = "FILE", requires = "without")]
    svg: Option<PathBuf>,
    /// The number of documents to show for each step.
    #[arg(long, value_name = "COUNT", default_value_t = 10, conflicts_with = "without")]
    top: usize,
    /// The key by which documents are ranked; by default `norm` for a spike of the gradient norm, otherwise `excess`.
    #[arg(long, value_enum, conflicts_with = "without")]
    by: Option<RankBy>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The help of `--without`, which depends on the formats of texts.
fn without_help() -> String {
    format!(
        "Also train the steps from the checkpoint on without this document, and show both losses; may be repeated. \
         DOC is {}. The document's tokens are no targets, and a step's loss is the mean over the remaining targets. \
         All other documents stay in their places",
        document_numbers()
    )
}

/// The JSON output.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    spikes: Option<&'a [Spike]>,
    steps: &'a [StepBlame],
}

/// A step whose documents the user requested.
#[derive(Clone, Copy, Debug)]
struct RequestedStep {
    step: u64,
    /// The key by which the step's documents are ranked.
    by: RankBy,
}

impl BlameCommand {
    pub(in crate::cli) fn main(self) -> anyhow::Result<()> {
        let (record, config) = self.run.open()?;
        record.damage.iter().for_each(|damage| self.print(format!("not used: {damage}")));
        let (spikes, requested) = match self.step {
            Some(step) => (None, self.requested_steps(&record, step)?),
            None => {
                let spikes = self.find_spikes(&record)?;
                let requested = self.largest(&spikes);
                (Some(spikes), requested)
            }
        };
        let mut blames = Vec::new();
        if !requested.is_empty() {
            let mut subject = BlamedJob::open(&record, &config.workspace)?;
            if !self.without.is_empty() {
                let steps: Vec<u64> = requested.iter().map(|requested| requested.step).collect();
                return self.train_without(&record, &mut subject, &config, &steps);
            }
            for (base, requested) in by_checkpoint(&record, &requested) {
                blames.extend(self.blame(&record, &mut subject, base, &requested, &config)?);
            }
        }
        match self.json {
            true => print_json(&Report { spikes: spikes.as_deref(), steps: &blames }),
            false => Ok(()),
        }
    }

    /// Prints a line of the text output.
    fn print(&self, text: impl std::fmt::Display) {
        if !self.json {
            print_line(text);
        }
    }

    /// Returns the steps from `--step` to `--until`.
    fn requested_steps(&self, record: &RunRecord, step: u64) -> anyhow::Result<Vec<RequestedStep>> {
        let until = self.until.unwrap_or(step);
        ensure!(step <= until, "--until is {until}, before --step {step}");
        record.check_trained(until)?;
        Ok((step..=until).map(|step| RequestedStep { step, by: self.by.unwrap_or_default() }).collect())
    }

    fn find_spikes(&self, record: &RunRecord) -> anyhow::Result<Vec<Spike>> {
        if record.steps.is_empty() {
            bail!("{} has no metrics.jsonl, and --spikes needs it: give a --step instead", record.folder.display());
        }
        let rule = SpikeRule { window: self.window as usize, deviations: self.deviations };
        let spikes = find_spikes(&record.steps, rule);
        self.print(show::spikes(&spikes, &record.steps, rule));
        Ok(spikes)
    }

    /// Returns the steps of the largest spikes, ascending.
    fn largest(&self, spikes: &[Spike]) -> Vec<RequestedStep> {
        let mut spikes = spikes.to_vec();
        spikes.sort_by(|a, b| b.deviations().total_cmp(&a.deviations()));
        spikes.truncate(self.spikes.unwrap_or(0) as usize);
        spikes.sort_by_key(|spike| spike.step);
        let by = |spike: &Spike| if spike.is_of_norm() { RankBy::Norm } else { RankBy::Excess };
        spikes
            .iter()
            .map(|spike| RequestedStep { step: spike.step, by: self.by.unwrap_or_else(|| by(spike)) })
            .collect()
    }

    /// Replays the steps up to the last requested one, and prints the contributions of the documents to each requested
    /// step.
    fn blame(
        &self,
        record: &RunRecord,
        subject: &mut BlamedJob,
        base: Option<&RecordedCheckpoint>,
        requested: &[RequestedStep],
        config: &ReplayConfig,
    ) -> anyhow::Result<Vec<StepBlame>> {
        let steps: Vec<u64> = requested.iter().map(|requested| requested.step).collect();
        let Some(&until) = steps.last() else { return Ok(Vec::new()) };
        let dump = TENSORS.map(str::to_owned).to_vec();
        let config = ReplayConfig { dump, dump_steps: steps.clone(), ..config.clone() };
        let replayed = self.replay_as_recorded(record, base, until, &config)?;
        // one call for the parts of all steps, because each call of `part_texts` is a pass over the corpus
        let parts_by_step = steps.iter().map(|&step| subject.document_parts(step)).collect::<Result<Vec<_>, _>>()?;
        let mut texts = subject.part_texts(&parts_by_step.concat())?.into_iter();
        let mut blames = Vec::new();
        for (RequestedStep { step, by }, parts) in requested.iter().zip(parts_by_step) {
            let line = replayed.steps.iter().find(|line| line.step == *step);
            let line = line.with_context(|| format!("the replay has no step {step}"))?;
            let texts: Vec<PartText> = texts.by_ref().take(parts.len()).collect();
            let gradients = document_gradients(subject, replayed.tensors(line.step)?, &parts, line.tokens)?;
            let step = (line.step, line.loss, line.gradient_norm);
            let mut blame = StepBlame::new(step, &gradients, (&parts, &texts), *by);
            blame.documents.truncate(self.top);
            self.print(format!("\n{}", show::step(&blame)));
            blames.push(blame);
        }
        Ok(blames)
    }

    /// Trains the steps after `base` (or from the initial weights, if it is `None`) up to `until` again. Returns an
    /// error if they differ from the record.
    fn replay_as_recorded(
        &self,
        record: &RunRecord,
        base: Option<&RecordedCheckpoint>,
        until: u64,
        config: &ReplayConfig,
    ) -> anyhow::Result<Replayed> {
        self.print(replaying(base, until));
        let replayed = replay_or_fail(record, base, until, config)?;
        let environments = if self.json { "" } else { note_environments(record, &replayed, until) };
        self.print(compare_with_record(record, &replayed, environments)?);
        Ok(replayed)
    }
}

/// Groups the requested steps by the checkpoint from which their replay starts.
fn by_checkpoint<'r>(
    record: &'r RunRecord,
    requested: &[RequestedStep],
) -> Vec<(Option<&'r RecordedCheckpoint>, Vec<RequestedStep>)> {
    let mut groups: BTreeMap<u64, Vec<RequestedStep>> = BTreeMap::new();
    for &requested in requested {
        let base = record.newest_before(requested.step).map_or(0, |checkpoint| checkpoint.manifest.step);
        groups.entry(base).or_default().push(requested);
    }
    groups.into_iter().map(|(base, requested)| (record.checkpoint(base), requested)).collect()
}
