//! The files of a job's folder, in one place.

use std::fs;
use std::path::{Path, PathBuf};

use stagecoach_api::PipelineJob;
use stagecoach_api::contract::ExitCode;
use stagecoach_checkpoint::write_atomically;

use crate::observe::Summary;

/// What keeps a run from starting or going on. Exit codes are the contract's.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The workspace fails.
    #[error("could not {doing} {}: {source}", path.display())]
    Storage {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What came back.
        source: std::io::Error,
    },
    /// Another run holds the job.
    #[error("{} is held by another run (process {holder}): wait for it, or stop it", folder.display())]
    Held {
        /// The job's folder.
        folder: PathBuf,
        /// Its process id, as far as it is known.
        holder: String,
    },
    /// The folder holds another job's results.
    #[error("{} holds the results of a job with another {field}: --fresh removes them, another storage.path keeps them", folder.display())]
    Another {
        /// The job's folder.
        folder: PathBuf,
        /// The first field that differs.
        field: String,
    },
    /// A process could not be started, or signals not be had.
    #[error("could not {doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What came back.
        source: std::io::Error,
    },
}

impl LaunchError {
    /// The exit code that goes with it.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            LaunchError::Storage { .. } => ExitCode::Storage,
            LaunchError::Another { .. } => ExitCode::InvalidConfig,
            LaunchError::Held { .. } | LaunchError::System { .. } => ExitCode::Failure,
        }
    }
}

/// For `map_err`: what was being done to which path.
pub(super) fn storage(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> LaunchError {
    move |source| LaunchError::Storage { doing, path: path.to_owned(), source }
}

/// A job's own folder: `<workspace>/<storage.path>`.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes the folder, and its places for logs and plots.
    ///
    /// # Errors
    /// If the workspace can't be written.
    pub fn create(workspace: &Path, job: &PipelineJob) -> Result<Folder, LaunchError> {
        let folder = Folder(workspace.join(job.folder()));
        for path in [&folder.0, &folder.logs(), &folder.0.join("plots"), &folder.0.join("termination")] {
            fs::create_dir_all(path).map_err(storage("create", path))?;
        }
        Ok(folder)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Held by the run that runs the job.
    pub fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// The job as it runs, overrides applied: what stages read.
    pub fn job(&self) -> PathBuf {
        self.0.join("job.yaml")
    }

    /// The launcher's record of the job's life.
    pub fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// A line a step.
    pub fn metrics(&self) -> PathBuf {
        self.0.join("metrics.jsonl")
    }

    /// The end of a finished job.
    pub fn result(&self) -> PathBuf {
        self.0.join("result.json")
    }

    /// The loss curve.
    pub fn curve(&self) -> PathBuf {
        self.0.join("plots/loss.svg")
    }

    /// The trained model.
    pub fn model(&self) -> PathBuf {
        self.0.join("model")
    }

    /// What stage `stage` complains of.
    pub fn log(&self, stage: u32) -> PathBuf {
        self.logs().join(format!("stage-{stage}.log"))
    }

    /// Stage `stage`'s last words.
    pub fn last_words(&self, stage: u32) -> PathBuf {
        self.0.join(format!("termination/stage-{stage}.json"))
    }

    fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// Removes what earlier runs of the job made. Corpus and token caches are not in here.
    ///
    /// # Errors
    /// If the workspace refuses.
    pub fn clear(&self) -> Result<(), LaunchError> {
        for file in [self.result(), self.metrics(), self.state(), self.job(), self.curve()] {
            remove(fs::remove_file(&file), &file)?;
        }
        for folder in [self.model(), self.model().with_extension("partial")] {
            remove(fs::remove_dir_all(&folder), &folder)?;
        }
        Ok(())
    }

    /// The result of an earlier run, if there is one and it is this job's.
    ///
    /// # Errors
    /// If it is another job's.
    pub fn finished(&self, job: &PipelineJob) -> Result<Option<Summary>, LaunchError> {
        let read = |path: PathBuf| fs::read_to_string(path).ok();
        let Some(summary) = read(self.result()).and_then(|text| serde_json::from_str(&text).ok()) else {
            return Ok(None);
        };
        let before = read(self.job()).and_then(|text| stagecoach_api::parse(&text, "job.yaml").ok());
        match before.and_then(|before| first_difference(&before, job)) {
            Some(field) => Err(LaunchError::Another { folder: self.0.clone(), field }),
            None => Ok(Some(summary)),
        }
    }

    /// Writes the job for its stages to read.
    ///
    /// # Errors
    /// If the workspace refuses.
    pub fn write_job(&self, job: &PipelineJob) -> Result<(), LaunchError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| LaunchError::Storage {
            doing: "write",
            path: self.job(),
            source: std::io::Error::other(source),
        };
        let yaml = job.to_yaml().map_err(|e| failed(e.to_string().into()))?;
        write_atomically(&self.job(), yaml.as_bytes()).map_err(|e| failed(e.into()))
    }
}

/// Missing is as good as removed.
fn remove(result: std::io::Result<()>, path: &Path) -> Result<(), LaunchError> {
    match result {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(storage("remove", path)(e)),
        _ => Ok(()),
    }
}

/// The first of the fields that decide the result in which two jobs differ. Stages, schedule and partition don't.
fn first_difference(a: &PipelineJob, b: &PipelineJob) -> Option<String> {
    let (a, b) = (&a.spec, &b.spec);
    [("model", a.model == b.model), ("data", a.data == b.data), ("training", a.training == b.training)]
        .into_iter()
        .find_map(|(field, same)| (!same).then(|| format!("spec.{field}")))
}
