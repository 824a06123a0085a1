//! `stagecoach timeline`. The command needs only the metrics of a job's folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use stagecoach_display::table;
use stagecoach_launcher::METRICS;
use stagecoach_pipeline::{
    Costs, Panel, Placement, RankBreakdown, Timeline, breakdown, simulate, timeline_svg, timeline_text, timeline_trace,
};
use stagecoach_telemetry::{DataWait, StepRecord, TimelineRecord, advice, read_metrics};

use super::output::{print_line, write_requested_file};

/// Show a trained step's timeline of every stage, above a simulation of it.
///
/// The simulation runs the same actions with the measured time of each kind of action. It therefore differs from the
/// step only by irregularities, such as slow microbatches and late messages. Training records the last step and every
/// tenth step, or fewer steps of a large pipeline.
#[derive(Debug, Args)]
pub(super) struct TimelineCommand {
    /// A job's folder, such as `workspace/NAME`.
    folder: PathBuf,
    /// The step; the newest recorded one by default.
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Write the timelines as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the timelines for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl TimelineCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let metrics = self.folder.join(METRICS);
        let (mut records, mut waits) = (Vec::new(), Vec::new());
        for StepRecord { step, timeline, data_wait_seconds, .. } in read_metrics(&metrics)? {
            let Some(timeline) = timeline else { continue };
            records.push((step, *timeline));
            waits.push(data_wait_seconds);
        }
        let index = select(&records, self.step, &metrics)?;
        let (step, record) = &records[index];
        let invalid = |error| anyhow!("{}: the timeline of step {step}: {error}", metrics.display());
        let (programs, measured) = (record.programs().map_err(invalid)?, record.timeline().map_err(invalid)?);
        let costs = Costs::measured(std::slice::from_ref(&measured), &programs.placement);
        let simulated = simulate(&programs, &costs);
        let panels = [
            Panel { heading: "measured", timeline: &measured },
            Panel { heading: "simulated with the measured costs", timeline: &simulated },
        ];
        let job = self.folder.canonicalize().unwrap_or(self.folder);
        let title = format!("{}, step {step}", job.file_name().unwrap_or_default().display());
        print_line(format!("{title}\n\n{}", timeline_text(&panels, 100)));
        print_line(stage_table(&measured, &programs.placement, &record.partition));
        if let Some(seconds) = waits[index] {
            print_line(format!("\n{}", DataWait::in_step(seconds)));
        }
        if let Some(advice) = advice(records[..=index].iter().map(|(_, record)| record)) {
            print_line(format!("\n{advice}"));
        }
        write_requested_file(self.svg.as_deref(), || timeline_svg(&panels, &title))?;
        write_requested_file(self.trace.as_deref(), || timeline_trace(&panels))
    }
}

/// Returns the index of the record of `step`, or of the newest record if `step` is `None`.
fn select(records: &[(u64, TimelineRecord)], step: Option<u64>, metrics: &Path) -> anyhow::Result<usize> {
    if !metrics.exists() {
        bail!("{} does not exist: expected a job's folder, such as workspace/NAME", metrics.display());
    }
    let newest = records.len().checked_sub(1).with_context(|| {
        format!(
            "{} has no timeline yet: training records at most every tenth step, and the last one",
            metrics.display()
        )
    })?;
    let Some(step) = step else { return Ok(newest) };
    match records.binary_search_by_key(&step, |(step, _)| *step) {
        Ok(index) => Ok(index),
        Err(after) => {
            let near = &records[after.saturating_sub(1)..(after + 1).min(records.len())];
            let near: Vec<String> = near.iter().map(|(step, _)| step.to_string()).collect();
            let subject = if near.len() == 1 { "step is" } else { "steps are" };
            let nearest = near.join(" and ");
            bail!("{} has no timeline of step {step}: the nearest recorded {subject} {nearest}", metrics.display())
        }
    }
}

/// Returns a table of the parts of each stage's time.
fn stage_table(timeline: &Timeline, placement: &Placement, partition: &[usize]) -> String {
    let ranks = breakdown(timeline, placement);
    let has_replicas = ranks.iter().any(|rank| rank.data_parallel_seconds > 0.0);
    let row = |(rank, times): (usize, RankBreakdown)| {
        let layers: Vec<String> = placement.chunks_of(rank).map(|chunk| partition[chunk].to_string()).collect();
        let percent = |seconds: f64| format!("{:.1}%", 100.0 * seconds / timeline.makespan);
        let mut row = vec![
            rank.to_string(),
            layers.join("+"),
            percent(times.compute_seconds),
            percent(times.bubble_seconds),
            percent(times.exposed_communication_seconds),
            format!("{:.2}x", times.imbalance),
        ];
        if has_replicas {
            let hidden = times.hidden_data_parallel_seconds / times.data_parallel_seconds.max(f64::MIN_POSITIVE);
            row.extend([percent(times.data_parallel_seconds), format!("{:.1}%", 100.0 * hidden)]);
        }
        row
    };
    let rows = ranks.into_iter().enumerate().map(row).collect();
    let header = [
        "stage",
        "layers",
        "computation",
        "bubble",
        "exposed communication",
        "imbalance",
        "data parallel",
        "overlapped",
    ];
    let columns = if has_replicas { header.len() } else { header.len() - 2 };
    table(Some(&header[..columns]), &(0..columns).collect::<Vec<usize>>(), rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A large pipeline records fewer timelines than one in ten steps.
    #[test]
    fn without_a_timeline_the_recorded_steps_are_explained() {
        let metrics = tempfile::NamedTempFile::new().unwrap();
        let error = select(&[], None, metrics.path()).unwrap_err().to_string();
        assert!(
            error.ends_with("no timeline yet: training records at most every tenth step, and the last one"),
            "{error}"
        );
    }
}
