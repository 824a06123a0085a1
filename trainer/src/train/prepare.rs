//! Stage 0 before the group forms: tokens, then the plan.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::{CheckpointError, Damage, Volume};
use stagecoach_data::Dataset;
use stagecoach_group::{Coordinator, Rules};

use super::resume::{choose, take_fence};
use super::{Watch, tell};
use crate::fatal::Fatal;
use crate::model::{Architecture, LlamaConfig};
use crate::observe::{Event, Sink};
use crate::plan::{Plan, Settings, layout};
use crate::state::{self, Source};

/// Between two reports of the same work.
const REPORT_EVERY: Duration = Duration::from_millis(200);

/// A plan, and what a person should know about it.
pub(super) struct Planned {
    pub(super) plan: Plan,
    /// Checkpoints that can't be used.
    pub(super) damage: Vec<Damage>,
    pub(super) notes: Vec<String>,
}

/// What the group's verdicts go by.
pub(super) fn rules(settings: &Settings) -> Rules {
    Rules { clip_norm: settings.training.gradient_clip_norm, ..Rules::default() }
}

pub(super) fn prepare(
    settings: &Settings,
    stages: usize,
    coordinator: &Coordinator,
    volume: &dyn Volume,
    watch: &Watch,
    sink: &Sink,
) -> Result<Planned, Fatal> {
    watch.doing("preparing the corpus");
    let data = settings.data();
    let mut shown: Option<(&str, Instant)> = None;
    let prepared = stagecoach_data::prepare(&data, &mut |progress| {
        // the room reports every piece of text; people and members need a few reports a second
        let due = shown.is_none_or(|(what, at)| what != progress.what || at.elapsed() > REPORT_EVERY);
        if !due && progress.done < progress.total {
            return;
        }
        shown = Some((progress.what, Instant::now()));
        if let Some(failure) = coordinator.failure() {
            watch.end(FailureKind::PeerLost, &failure.message); // what is tokenised so far is kept
        }
        coordinator.preparing(&format!("{}, {} of {} bytes", progress.what, progress.done, progress.total));
        tell(
            watch,
            sink,
            &Event::Preparing { what: progress.what.to_owned(), done: progress.done, total: progress.total },
        );
    })?;
    watch.doing("planning");
    let vocab_size = settings.vocabulary(prepared.vocab_size)?;
    let architecture = settings.architecture(vocab_size, tch::Device::Cpu);
    let layout = layout(settings, architecture.as_ref(), stages)?;
    let dataset = Dataset::open(&data, &prepared)?;
    let held_out = dataset.evaluation(settings.rows());
    let has_held_out = !held_out.layouts.is_empty();
    let steps = settings.steps(dataset.training_sequences());
    let identity = settings.identity(&prepared, dataset.training_sequences());
    watch.doing("choosing the checkpoint");
    let mut notes = layout.notes.clone();
    let fence = take_fence(volume, &mut notes)?;
    let chosen = choose(volume, settings, &identity, steps, architecture.as_ref(), &[])?;
    notes.extend(chosen.notes);
    let progress = chosen.progress;
    let mut initial = None;
    if progress.step == 0 {
        initial = find_initial(settings, architecture.as_ref(), &dataset)?;
        notes.extend(initial.as_ref().map(|path| format!("starting from the weights in {}", path.display())));
    }
    let plan = Plan {
        vocab_size,
        steps,
        identity,
        fence,
        progress,
        initial,
        schedule: layout.schedule.name.clone(),
        partition: layout.partition.layers.clone(),
        programs: layout.programs.to_text(),
        evaluation: has_held_out.then(|| layout.evaluation(held_out.layouts.len()).to_text()),
        evaluation_layouts: held_out.layouts,
        expected_bubble: layout.bubble(),
        training_tokens: prepared.tokens.saturating_sub(held_out.targets),
        unigram_entropy: has_held_out.then(|| dataset.evaluation_unigram_entropy()),
        prepared,
    };
    Ok(Planned { plan, damage: chosen.damage, notes })
}

/// The model directory to start from, if the job names one, looked into before anybody loads from it.
fn find_initial(
    settings: &Settings,
    architecture: &dyn Architecture,
    dataset: &Dataset,
) -> Result<Option<PathBuf>, Fatal> {
    let Some(path) = &settings.initial else { return Ok(None) };
    let field = match settings.job.spec.checkpoint.init_from {
        Some(_) => "spec.checkpoint.initFrom.path",
        None => "spec.model.pretrained.path",
    };
    let unusable = |error: CheckpointError| match error {
        CheckpointError::Io { .. } => Fatal::from(error),
        other => Fatal::invalid(format!("{field}: could not start from {}: {other}", path.display())),
    };
    let path = state::find_model(&settings.workspace, path).map_err(unusable)?;
    let folder = settings.workspace.join(&path);
    let source = Source::open(&folder).map_err(unusable)?;
    let theirs = folder.join("tokenizer.json");
    let read = |path: &Path| -> Option<serde_json::Value> { serde_json::from_slice(&std::fs::read(path).ok()?).ok() };
    let (ours, _) = dataset.tokenizer_files();
    if let (Some(theirs_read), Some(ours)) = (read(&theirs), read(&ours))
        && theirs_read != ours
    {
        return Err(Fatal::invalid(format!(
            "the weights in {} were trained with another tokenizer than this job's: set spec.data.tokenizer to \
             {{type: File, file: {{path: {}}}}}",
            folder.display(),
            path.join("tokenizer.json").display()
        )));
    }
    let theirs = LlamaConfig::from_hugging_face(&folder).map_err(|e| Fatal::invalid(format!("{field}: {e}")))?;
    let ours = LlamaConfig { vocab_size: architecture.vocabulary(), ..settings.model.clone() };
    let different = ours.differences(&theirs);
    if !different.is_empty() {
        return Err(Fatal::invalid(format!(
            "{field}: the weights in {} are another model's than this job's: {}; set spec.model.llama to theirs",
            folder.display(),
            different.join(", ")
        )));
    }
    source.check(architecture).map_err(unusable)?;
    Ok(Some(path))
}
