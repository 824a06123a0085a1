//! `stagecoach init`: examines the machine and the workspace, and writes a job file for them.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use stagecoach_data::{RecordForm, Texts, find_texts, text_formats};
use stagecoach_engine::StageError;
use stagecoach_files::write_atomically;
use stagecoach_kernels::device::cuda_devices;
use stagecoach_launcher::JobFolder;
use stagecoach_os::memory_bytes;
use stagecoach_pipeline::RankSpeeds;
use stagecoach_planner::init::{Facts, MIN_CORPUS_BYTES, propose, propose_fine_tuning};
use stagecoach_planner::{JobConfig, plan_pipeline};

use super::output::print_line;

mod source_model;

/// The folder, relative to the workspace, in which the command first searches for texts.
const CORPUS: &str = "corpus";

/// The maximum number of skipped files, and of other text fields, that the output names.
const MAX_NAMED: usize = 3;

/// The assumed size of memory if the kernel does not report it.
const UNKNOWN_MEMORY_BYTES: u64 = 2 << 30;

/// Write a job file for the texts in the workspace and for this machine.
#[derive(Debug, Args)]
pub(super) struct InitCommand {
    /// The job file to write.
    #[arg(default_value = "job.yaml")]
    file: PathBuf,
    /// The folder with the texts, preferably in its folder `corpus`. `stagecoach run` creates the job's folder in it.
    #[arg(long, value_name = "DIR", default_value = "workspace")]
    workspace: PathBuf,
    /// The Hugging Face model directory, below the workspace, of a model to fine-tune. Without it, the job trains a new
    /// model.
    #[arg(long, value_name = "MODEL_DIR")]
    from: Option<PathBuf>,
    /// The job's name; by default derived from the file's name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The number of stages; by default one for each GPU, else 2 or 3.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    stages: Option<u32>,
    /// Replace the file if it exists.
    #[arg(long)]
    force: bool,
}

impl InitCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        if !self.force && self.file.symlink_metadata().is_ok() {
            return Err(self.exists().into());
        }
        let source = self.from.as_deref().map(|from| source_model::read(from, &self.workspace)).transpose()?;
        let texts = find_corpus(&self.workspace, self.from.as_deref())?;
        for skipped in texts.skipped.iter().take(MAX_NAMED) {
            print_line(format!("note: left out: {skipped}"));
        }
        if let Some(more @ 1..) = texts.skipped.len().checked_sub(MAX_NAMED) {
            print_line(format!("note: left out: {more} more"));
        }
        let facts = Facts {
            name: self.name.clone().unwrap_or_else(|| name_of(&self.file)),
            stages: self.stages,
            gpus: cuda_devices().unwrap_or(0),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes().unwrap_or(UNKNOWN_MEMORY_BYTES),
            texts,
        };
        print_line(format!("found {}: {}", facts.corpus(), facts.texts.patterns.join(", ")));
        if let Some(field) = &facts.texts.field {
            print_line(field_choice(field, &facts.texts.other_fields));
        }
        if let Some(sentence) = form_choice(&facts.texts) {
            print_line(sentence);
        }
        if let Some(source) = &source {
            print_line(format!("found the model {}: {}", source.path, source.size()));
        }
        print_line(format!("found {}", facts.machine()));
        let planned_bytes = |text: &str| planned_bytes(text, &self.file, &self.workspace);
        let text = match &source {
            Some(source) => propose_fine_tuning(&facts, source, &planned_bytes)?,
            None => propose(&facts, &planned_bytes)?,
        };
        self.write(&text)?;
        print_line(format!("wrote {}; train it, or look at its plan first:", self.file.display()));
        for command in ["run", "plan"] {
            let (file, workspace) = (quoted(&self.file), quoted(&self.workspace));
            print_line(format!("  stagecoach {command} {file} --workspace {workspace}"));
        }
        Ok(())
    }

    fn exists(&self) -> StageError {
        StageError::invalid(format!(
            "{} exists: give another file's name, or --force to replace it",
            self.file.display()
        ))
    }

    fn write(&self, text: &str) -> anyhow::Result<()> {
        let failed = || format!("could not write {}", self.file.display());
        if self.force {
            return write_atomically(&self.file, text.as_bytes()).with_context(failed);
        }
        // another program may have created the file since the check
        match File::create_new(&self.file) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(self.exists().into()),
            created => created.and_then(|mut file| file.write_all(text.as_bytes())).with_context(failed),
        }
    }
}

/// Finds the texts in the workspace's folder `corpus`, or in the whole workspace if that folder has none. Skips token
/// caches, jobs' folders and the directory of `model`.
fn find_corpus(workspace: &Path, model: Option<&Path>) -> anyhow::Result<Texts> {
    let remedy = format!("put {} below {}", text_formats(), workspace.join(CORPUS).display());
    if !workspace.is_dir() {
        return Err(StageError::invalid(format!(
            "the workspace {} is not a folder: create it and {remedy}, or set --workspace to another folder",
            workspace.display()
        ))
        .into());
    }
    let is_job = |path: &Path| matches!(JobFolder::existing(path), Ok(Some(_)));
    let model = model.and_then(|model| model.canonicalize().ok());
    let is_model = |path: &Path| model.is_some() && path.canonicalize().ok() == model;
    let is_cache = |path: &Path| path.file_name().is_some_and(|name| name == stagecoach_api::job::TOKEN_CACHE);
    // these folders contain files such as metrics.jsonl, which are not texts to train on
    let is_excluded = |path: &Path| is_cache(path) || is_job(path) || is_model(path);
    let mut texts = Texts::default();
    if workspace.join(CORPUS).is_dir() {
        texts = find_texts(workspace, Path::new(CORPUS), model.is_some(), &is_excluded)?;
    }
    if texts.files == 0 {
        texts = find_texts(workspace, Path::new(""), model.is_some(), &is_excluded)?;
    }
    if texts.bytes >= MIN_CORPUS_BYTES {
        return Ok(texts);
    }
    let found = match (texts.files, texts.skipped.first()) {
        (0, None) => "no text below".to_owned(),
        (0, Some(skipped)) => format!("no text that can be trained on ({skipped}) below"),
        (_, _) => format!("only {} bytes of text, and {MIN_CORPUS_BYTES} are needed at least, below", texts.bytes),
    };
    Err(StageError::invalid(format!("there is {found} {}: {remedy}", workspace.display())).into())
}

/// Derives the job's name from the file's name.
fn name_of(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().to_lowercase().replace(['_', '.', ' '], "-")
}

/// Validates a job as `stagecoach run` does, and plans it. Returns the sum of the planned peak memory of all stages, in
/// bytes.
fn planned_bytes(text: &str, file: &Path, workspace: &Path) -> Result<u64, StageError> {
    let job =
        stagecoach_api::parse(text, &file.display().to_string()).map_err(|e| StageError::invalid(e.to_string()))?;
    let stages = job.spec.stages as usize;
    let config = JobConfig::new(job, workspace)?;
    let vocab_size = config.vocab_size(config.planned_vocab_size()?)?;
    let architecture = config.architecture(vocab_size, tch::Device::Cpu);
    let layout = plan_pipeline(&config, architecture.as_ref(), stages, &RankSpeeds::default())?;
    Ok(layout.memory.iter().fold(0, |bytes, stage| stage.parts.total().saturating_add(bytes)))
}

/// Describes the field that holds the text, and the other fields with their shares of the bytes.
fn field_choice(field: &str, others: &[(String, f64)]) -> String {
    let percent = |share: f64| format!("{:.0}%", 100.0 * share);
    let named: Vec<String> =
        others.iter().take(MAX_NAMED).map(|(name, share)| format!("{name:?} ({})", percent(*share))).collect();
    let more = others.len().checked_sub(MAX_NAMED).filter(|more| *more > 0);
    let and_more = more.map_or(String::new(), |more| format!(" and {more} more"));
    let share = percent(1.0 - others.iter().map(|(_, share)| share).sum::<f64>());
    match others {
        [] => format!("the text is in the field {field:?}, the only field with text"),
        _ => format!(
            "the text is the field {field:?}, which has {share} of the bytes; there are also {}{and_more}: change \
             textField to train on another",
            named.join(", ")
        ),
    }
}

/// Describes records that are conversations, or pairs of a prompt and a completion. Returns `None` for plain texts.
fn form_choice(texts: &Texts) -> Option<String> {
    match (&texts.form, texts.field.as_deref()) {
        (RecordForm::Text, _) => None,
        (RecordForm::Conversation(name), None) => Some(format!(
            "the records are conversations in the field {name:?}: the assistant's messages are trained on"
        )),
        (RecordForm::PromptAndCompletion, None) => {
            Some("the records are pairs of a prompt and a completion: the completions are trained on".to_owned())
        }
        (RecordForm::Conversation(name), Some(field)) => Some(format!(
            "note: the records hold conversations in the field {name:?}, and this job trains on {field:?} alone; a \
             job that fine-tunes a model (--from) can train on conversations in the field \"messages\""
        )),
        (RecordForm::PromptAndCompletion, Some(field)) => Some(format!(
            "note: the records are pairs of a prompt and a completion, and this job trains on {field:?} alone; a job \
             that fine-tunes a model (--from) trains on the pairs"
        )),
    }
}

/// Returns the path, quoted as an argument of a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}
