//! `stagecoach run`: train a job on this machine.

use std::time::Instant;

use clap::Args;
use stagecoach_api::PipelineJob;
use stagecoach_api::contract::ExitCode;

use super::read::JobArgs;
use crate::fatal::Fatal;
use crate::generate::{self, Sampling};
use crate::launch::{Ending, Folder, LaunchError, Lock, Supervisor};
use crate::observe::{Closing, Summary, curve, read_metrics, sample};
use crate::plan::Settings;

/// Train a job on this machine, a process per stage.
#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    job: JobArgs,
    /// Remove what earlier runs of this job made, and start afresh.
    #[arg(long)]
    fresh: bool,
}

impl Run {
    pub(super) fn main(self) -> i32 {
        self.run().unwrap_or_else(|(code, sentence)| {
            eprintln!("stagecoach: {sentence}");
            code.code()
        })
    }

    fn run(self) -> Result<i32, (ExitCode, String)> {
        let invalid = |fatal: Fatal| (fatal.kind.exit_code(), fatal.message);
        let failed = |error: LaunchError| (error.exit_code(), error.to_string());
        let job = self.job.read().map_err(invalid)?;
        Settings::new(job.clone(), &self.job.workspace).map_err(invalid)?;
        let folder = Folder::create(&self.job.workspace, &job).map_err(failed)?;
        let _lock = Lock::take(&folder).map_err(failed)?;
        if self.fresh {
            folder.clear().map_err(failed)?;
        }
        if let Some(summary) = folder.finished(&job).map_err(failed)? {
            println!("{} has already been trained to the end; --fresh trains it again", job.metadata.name);
            close(&job, &folder, &summary, 0, None);
            return Ok(ExitCode::Done.code());
        }
        folder.write_job(&job).map_err(failed)?;
        let started = Instant::now();
        let mut supervisor = Supervisor::new(&job, &self.job.workspace, &folder).map_err(failed)?;
        match supervisor.run().map_err(failed)? {
            Ending::Complete(summary) => {
                close(&job, &folder, &summary, supervisor.restarts(), Some(started.elapsed().as_secs_f64()));
                Ok(ExitCode::Done.code())
            }
            Ending::Stopped => {
                println!("stopped; without a checkpoint, the next run starts again at step 0");
                Ok(ExitCode::Drained.code())
            }
            Ending::Failed { code } => Ok(code),
            Ending::Killed => Ok(ExitCode::Killed.code()),
        }
    }
}

/// The last lines of a run: curve, losses, hashes, where everything is, and a sample of text.
fn close(job: &PipelineJob, folder: &Folder, summary: &Summary, restarts: u32, seconds: Option<f64>) {
    let records = read_metrics(&folder.metrics()).unwrap_or_default();
    let (curve_file, metrics, model) = (folder.curve(), folder.metrics(), folder.model());
    println!("{}", curve::terminal(&records, summary.unigram_entropy));
    if let Err(error) = std::fs::write(&curve_file, curve::svg(&job.metadata.name, &records, summary.unigram_entropy)) {
        eprintln!("stagecoach: could not write {}: {error}", curve_file.display());
    }
    let closing = Closing {
        job: &job.metadata.name,
        summary,
        restarts,
        seconds,
        model: &model,
        curve: &curve_file,
        metrics: &metrics,
    };
    print!("{}", closing.text());
    tch::set_num_threads(1);
    match generate::sample(&model, "", Sampling::default()) {
        Ok(text) => print!("{}", sample(&text)),
        Err(error) => eprintln!("stagecoach: no sample: {error:#}"),
    }
}
