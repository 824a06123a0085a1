//! The output of `stagecoach run` at the end of a run: its results, or the reason for its failure.

use std::path::Path;

use stagecoach_api::PipelineJob;
use stagecoach_api::contract::ExitCode;
use stagecoach_api::job::TrainingLength;
use stagecoach_engine::generate::{GenerationConfig, TextGenerator, parameter_count};
use stagecoach_launcher::{JobFolder, LauncherState, write_file};
use stagecoach_lifecycle::{JobOutcome, JobState};
use stagecoach_telemetry::{DataWait, RunReport, RunSummary, StepRecord, advice, curve, format_sample, read_metrics};

use super::{RunError, relative_to_working_directory};
use crate::cli::output::{print_error, print_line};

/// Describes the reason for which a job failed, as the continuation of a sentence.
pub(super) fn failure_reason(state: &JobState) -> String {
    let explanation = match state.outcome() {
        Some(JobOutcome::Failed(reason)) => format!(": {}", reason.explanation()),
        _ => String::new(),
    };
    let Some(failure) = &state.last_failure else { return explanation };
    let subject = failure.stage().unwrap_or_else(|| "the group".into());
    format!("{explanation}; {subject} failed ({}): {}", failure.label(), failure.message)
}

/// Whether the job has fewer steps than the run trained. Returns false for a length in epochs, because only the stages
/// know the number of steps in an epoch.
pub(super) fn is_shorter(job: &PipelineJob, summary: &RunSummary) -> bool {
    let length = job.spec.training.as_ref().and_then(|training| training.length());
    matches!(length, Some(TrainingLength::Steps(steps)) if steps < summary.steps)
}

/// Prints the results of an earlier complete run. Returns the exit code.
pub(super) fn print_earlier_results(
    job: &PipelineJob,
    folder: &JobFolder,
    workspace: &Path,
    summary: &RunSummary,
) -> Result<i32, RunError> {
    let restarts = LauncherState::load(folder)?.state.budget.total;
    print_results(job, folder, workspace, summary, restarts, None);
    Ok(ExitCode::Done.code())
}

/// Prints the loss curve, the report and a sample of generated text.
pub(super) fn print_results(
    job: &PipelineJob,
    folder: &JobFolder,
    workspace: &Path,
    summary: &RunSummary,
    restarts: u32,
    seconds: Option<f64>,
) {
    let records: Vec<StepRecord> = read_metrics(&folder.metrics()).unwrap_or_else(|error| {
        print_error(format!("no loss curve: {error}"));
        Vec::new()
    });
    print_line(curve::terminal(&records, summary.unigram_entropy));
    let picture = curve::svg(&job.metadata.name, &records, summary.unigram_entropy);
    if let Err(error) = write_file(&folder.loss_curve(), &picture) {
        print_error(error);
    }
    let model = folder.model(summary).unwrap_or_else(|| workspace.join(&summary.model));
    let advice = advice(records.iter().filter_map(|record| record.timeline.as_deref()));
    let report = RunReport {
        job: &job.metadata.name,
        summary,
        restarts,
        seconds,
        data_wait: DataWait::of_run(&records),
        advice: advice.as_ref(),
        model: &relative_to_working_directory(&model),
        loss_curve: &relative_to_working_directory(&folder.loss_curve()),
        metrics: &relative_to_working_directory(&folder.metrics()),
    };
    print_line(report);
    // The sample uses as many threads as a stage. With one thread for each core, the threads would spin at every
    // barrier while other processes compute.
    if let Some(built_in) = job.spec.built_in() {
        tch::set_num_threads(built_in.training.threads as i32);
    }
    if let Err(error) = print_sample(&model) {
        print_error(format!("no sample: {error:#}"));
    }
}

/// Prints a sample of text, which this process generates on the CPU. With a larger model the sample has fewer tokens,
/// so that it takes seconds. If the model is too large, prints the command that generates a sample.
fn print_sample(model: &Path) -> anyhow::Result<()> {
    /// The maximum product of the number of generated tokens and the number of parameters.
    const WORK: u64 = 4_000_000_000;
    const FEWEST_TOKENS: u64 = 16;
    let usual = GenerationConfig::default();
    let tokens = WORK / parameter_count(model)?.max(1);
    if tokens < FEWEST_TOKENS {
        print_line(format!(
            "  sample           stagecoach generate {}",
            relative_to_working_directory(model).display()
        ));
        return Ok(());
    }
    let generation = GenerationConfig { max_new_tokens: usual.max_new_tokens.min(tokens as usize), ..usual };
    let generator = TextGenerator::load(model, None, false)?;
    let continuation = generator.continue_from(&generator.prompt_ids("")?, &generation, &mut |_| Ok(()))?;
    print_line(format_sample(&continuation.text).trim_end());
    Ok(())
}
