//! `stagecoach plan`: how a job would run, before it does. Needs no corpus: the vocabulary is what the tokenizer asks for.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use stagecoach_pipeline::{Limits, balance_ratio, timeline_svg, timeline_text, timeline_trace, to_csv, verify};

use super::read::JobArgs;
use super::say;
use crate::fatal::Fatal;
use crate::plan::{JobConfig, MAX_SENDS_IN_FLIGHT, PipelineLayout, plan_pipeline, trained_vocab_size};

/// Show how a job would run: partition, timeline, bubble, memory.
#[derive(Debug, Args)]
pub(super) struct Plan {
    #[command(flatten)]
    job: JobArgs,
    /// Write the timeline as a picture.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the schedule as torch's CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the timeline for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl Plan {
    pub(super) fn main(self) -> anyhow::Result<()> {
        let config = JobConfig::new(self.job.read()?, &self.job.workspace)?;
        let stages = config.job.spec.stages as usize;
        let tokenizer = trained_vocab_size(&config.data).or(config.model_vocab_size);
        let vocab_size = config.vocab_size(tokenizer.ok_or_else(|| {
            Fatal::invalid("spec.model.llama.vocabSize: planning with a tokenizer file needs it written down")
        })?)?;
        let architecture = config.architecture(vocab_size, tch::Device::Cpu);
        let layout = plan_pipeline(&config, architecture.as_ref(), stages)?;
        let limits = Limits { sends_in_flight: MAX_SENDS_IN_FLIGHT, max_in_flight: None };
        let proof = verify(&layout.programs, &limits).map_err(|e| Fatal::invalid(e.to_string()))?;
        for note in &layout.notes {
            say(format!("note: {note}"));
        }
        say(table(&layout, &proof.peak_in_flight));
        say(timeline_text(&layout.timeline, 100));
        let title = format!("{}: {} over {stages} stages", config.job.metadata.name, layout.schedule.name);
        write(self.svg.as_deref(), || timeline_svg(&layout.timeline, &title))?;
        write(self.trace.as_deref(), || timeline_trace(&layout.timeline))?;
        write(self.csv.as_deref(), || to_csv(&layout.schedule))
    }
}

fn write(path: Option<&Path>, content: impl FnOnce() -> String) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, content()).with_context(|| format!("could not write {}", path.display()))?;
    say(format!("wrote {}", path.display()));
    Ok(())
}

/// One line a stage.
fn table(layout: &PipelineLayout, in_flight: &[usize]) -> String {
    let PipelineLayout { partition, programs, cost, timeline, schedule, .. } = layout;
    let mut text = format!(
        "{}, {} microbatches, balance {:.3}, bubble {:.1} %\n\n{:>5}  {:>6}  {:>7}  {:>9}  {:>9}  {:>6}\n",
        schedule.name,
        programs.microbatches,
        balance_ratio(cost, partition),
        100.0 * layout.bubble(),
        "stage",
        "layers",
        "work",
        "in flight",
        "memory",
        "bubble"
    );
    for (rank, bubble) in timeline.bubble.iter().enumerate() {
        let chunks: Vec<usize> = programs.placement.chunks_of(rank).collect();
        let layers: usize = chunks.iter().map(|&chunk| partition.range(chunk).len()).sum();
        let work: f64 = chunks.iter().map(|&chunk| partition.work(cost, chunk)).sum();
        text += &format!(
            "{rank:>5}  {layers:>6}  {:>6.1}%  {:>9}  {:>9}  {:>5.1}%\n",
            100.0 * work / cost.work(),
            in_flight.get(rank).copied().unwrap_or(0),
            indicatif::HumanBytes(timeline.peak_bytes.get(rank).copied().unwrap_or(0)).to_string(),
            100.0 * bubble,
        );
    }
    text
}
