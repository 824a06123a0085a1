//! `stagecoach blame --without`: trains the same steps again without some documents.

use std::ops::RangeInclusive;

use anyhow::{Context, ensure};
use serde::Serialize;
use stagecoach_data::DocumentName;
use stagecoach_display::table;
use stagecoach_replay::blame::BlamedJob;
use stagecoach_replay::{ReplayConfig, RunRecord, compare_steps};
use stagecoach_telemetry::{StepRecord, curve};

use super::BlameCommand;
use crate::cli::output::print_json;
use crate::cli::replay::{replay_or_fail, replaying};

/// The minimum number of steps in the plot, if the command trains at least this many.
const MIN_DRAWN: u64 = 50;

/// The JSON output.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    documents: Vec<Presence>,
    /// All steps that were trained again.
    steps: Vec<ComparedStep>,
}

/// The steps that contain a document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Presence {
    document: String,
    /// The retrained steps that have targets of the document.
    steps: Vec<u64>,
}

/// A step with and without the documents. Numbers that are not finite are null.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ComparedStep {
    step: u64,
    loss: Option<f32>,
    gradient_norm: Option<f64>,
    targets: u64,
    loss_without: Option<f32>,
    gradient_norm_without: Option<f64>,
    targets_without: u64,
}

impl BlameCommand {
    /// Trains the steps from the checkpoint up to the last of `steps` twice: with all documents, and without the
    /// documents of `--without`. Shows the results of both trainings.
    pub(super) fn train_without(
        &self,
        record: &RunRecord,
        subject: &mut BlamedJob,
        config: &ReplayConfig,
        steps: &[u64],
    ) -> anyhow::Result<()> {
        let (Some(&step), Some(&until)) = (steps.first(), steps.last()) else { return Ok(()) };
        let indices = subject.document_indices(&self.without)?;
        let base = record.newest_before(step);
        let first = base.map_or(0, |checkpoint| checkpoint.manifest.step) + 1;
        let documents = presence(subject, (&self.without, &indices), first..=until)?;
        for Presence { document, steps } in &documents {
            let numbers: Vec<String> = steps.iter().map(u64::to_string).collect();
            self.print(match numbers.as_slice() {
                [] => format!("{document} is in none of the steps {first} to {until}"),
                [step] => format!("{document} is in step {step}"),
                numbers => format!("{document} is in steps {}", numbers.join(", ")),
            });
        }
        let all = self.replay_as_recorded(record, base, until, config)?.steps;
        self.print(format!("{} without the documents", replaying(base, until)));
        let config = ReplayConfig { without: indices.into_iter().collect(), ..config.clone() };
        let rest = replay_or_fail(record, base, until, &config)?.steps;
        let name = match self.without.as_slice() {
            [document] => format!("without {document}"),
            documents => format!("without {} documents", documents.len()),
        };
        self.print(format!("\n{}", step_table(&all, &rest, step)));
        self.print(match compare_steps(&all, &rest) {
            None => format!("equal: without the documents steps {first} to {until} are the same, bit for bit"),
            Some(difference) => format!("without the documents, the first step that differs is {}", difference.step),
        });
        // the plot shows the requested steps, and steps before them if the requested steps are few
        let from = step.min((until + 1).saturating_sub(MIN_DRAWN)).max(first);
        let drawn = |steps: &[StepRecord]| -> Vec<StepRecord> {
            steps.iter().filter(|line| line.step >= from).cloned().collect()
        };
        let [drawn, drawn_without] = [drawn(&all), drawn(&rest)];
        self.print(format!("\n{}", curve::comparison_terminal(&drawn, &drawn_without, &name)));
        if self.json {
            let compared = all.iter().zip(&rest).map(ComparedStep::of).collect();
            print_json(&Report { documents, steps: compared })?;
        }
        let Some(file) = &self.svg else { return Ok(()) };
        let title = format!("{}, steps {from} to {until}", record.name());
        std::fs::write(file, curve::comparison_svg(&title, &drawn, &drawn_without, &name))
            .with_context(|| format!("could not write {}", file.display()))?;
        self.print(format!("wrote {}", file.display()));
        Ok(())
    }
}

/// Returns, for each document of `names`, the steps among `steps` that contain it. `indices` are the indices of these
/// documents in the corpus.
///
/// # Errors
/// If a step contains only the named documents.
fn presence(
    subject: &mut BlamedJob,
    (names, indices): (&[DocumentName], &[u64]),
    steps: RangeInclusive<u64>,
) -> anyhow::Result<Vec<Presence>> {
    let presence = |name: &DocumentName| Presence { document: name.to_string(), steps: Vec::new() };
    let mut found: Vec<Presence> = names.iter().map(presence).collect();
    for step in steps {
        let parts = subject.document_parts(step)?;
        ensure!(
            parts.iter().any(|part| !indices.contains(&part.document)),
            "step {step} contains only the documents of --without, so nothing is left to train: name fewer documents"
        );
        for (presence, index) in found.iter_mut().zip(indices) {
            presence.steps.extend(parts.iter().any(|part| part.document == *index).then_some(step));
        }
    }
    Ok(found)
}

impl ComparedStep {
    fn of((all, rest): (&StepRecord, &StepRecord)) -> ComparedStep {
        ComparedStep {
            step: all.step,
            loss: all.loss,
            gradient_norm: all.gradient_norm,
            targets: all.tokens,
            loss_without: rest.loss,
            gradient_norm_without: rest.gradient_norm,
            targets_without: rest.tokens,
        }
    }
}

/// Returns a table of the steps from `first` on.
fn step_table(all: &[StepRecord], rest: &[StepRecord], first: u64) -> String {
    let row = |(all, rest): (&StepRecord, &StepRecord)| {
        let number = |value: Option<f64>| value.map_or_else(|| "not finite".into(), |value| format!("{value:.6}"));
        let numbers = |line: &StepRecord| [number(line.loss.map(f64::from)), number(line.gradient_norm)];
        let ([loss, norm], [loss_without, norm_without]) = (numbers(all), numbers(rest));
        let [targets, targets_without] = [all, rest].map(|line| line.tokens.to_string());
        vec![all.step.to_string(), loss, loss_without, norm, norm_without, targets, targets_without]
    };
    let header = ["step", "loss", "without", "gradient norm", "without", "targets", "without"];
    let rows = all.iter().zip(rest).filter(|(line, _)| line.step >= first).map(row).collect();
    table(Some(&header), &[0, 1, 2, 3, 4, 5, 6], rows)
}
