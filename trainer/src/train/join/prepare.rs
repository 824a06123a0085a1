//! The work of stage 0 before the group forms: tokenisation, then the plan.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::{LearningRateSpec, Precision, TrainingLength};
use stagecoach_checkpoint::{CheckpointError, Damage, Fence, VolumeContents};
use stagecoach_data::{DataConfig, Dataset, HeldOutSet, OnWait, PrepareProgress, PreparedCorpus, has_chat_template};
use stagecoach_engine::StageError;
use stagecoach_engine::state_dict::InitialWeights;
use stagecoach_group::{Coordinator, StepRules};
use stagecoach_kernels as kernels;
use stagecoach_model::{Architecture, SourceConfig};
use stagecoach_pipeline::Programs;
use stagecoach_planner::{JobConfig, Plan, PlannedSet, attempt_speeds, plan_pipeline, smaller_programs};

use crate::train::context::StageContext;
use crate::train::join::start_check::check_space;
use crate::train::leave::LeaveReason;
use crate::train::setup::resume::{choose_checkpoint, recorded_identity};

/// Minimum interval between progress reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// A plan, and messages for the user.
pub(in crate::train) struct PlannedRun {
    pub(in crate::train) plan: Plan,
    /// Damaged checkpoints.
    pub(in crate::train) damage: Vec<Damage>,
    pub(in crate::train) notes: Vec<String>,
}

/// Rules of the group's step decisions.
pub(in crate::train) fn decision_rules(config: &JobConfig) -> StepRules {
    StepRules { clip_norm: config.training.gradient_clip_norm, ..StepRules::default() }
}

/// A warning if bf16 saves memory but no time on this device.
fn bf16_warning(config: &JobConfig, device: tch::Device) -> Option<String> {
    let slow = config.training.precision == Precision::BFloat16
        && device == tch::Device::Cpu
        && !kernels::has_products(tch::Kind::BFloat16);
    slow.then(|| {
        format!(
            "this processor ({}) has neither AMX nor AVX512-BF16: BFloat16 is slower on it than Float32",
            kernels::cpu_capability()
        )
    })
}

/// Messages about settings that have no effect in this job, or no benefit on this device.
fn ignored_settings(config: &JobConfig, device: tch::Device) -> Vec<String> {
    let spec = &config.job.spec;
    let memory = spec.checkpoint.memory.is_some() && spec.memory_checkpoints().is_none();
    let audit = config.training.audit.is_some() && spec.audit().is_none();
    let memory = memory
        .then(|| "no checkpoints in memory: they need a second stage, and restart.reformTimeoutSeconds above 0".into());
    let audit = audit.then(|| {
        "nothing is audited: training.audit needs a second stage, which computes again what another has".into()
    });
    bf16_warning(config, device).into_iter().chain(memory).chain(audit).collect()
}

/// Messages about a length of training that its author may not have meant.
fn length_notes(config: &JobConfig, training_sequences: Option<u64>) -> Vec<String> {
    let (steps, training) = (config.steps(training_sequences), &config.training);
    let read = steps * u64::from(training.global_batch_size);
    let mut notes = Vec::new();
    if let (Some(TrainingLength::Epochs(epochs)), Some(training_sequences)) = (training.length(), training_sequences)
        && let Some(repeated @ 1..) = read.checked_sub(u64::from(epochs) * training_sequences)
    {
        notes.push(format!(
            "{epochs} x {training_sequences} sequences do not fill {steps} batches of {}: the last one is filled with {repeated} of \
             the next epoch",
            training.global_batch_size
        ));
    }
    let LearningRateSpec { warmup_steps, .. } = training.learning_rate;
    if warmup_steps >= steps {
        notes.push(format!(
            "training.learningRate.warmupSteps is {warmup_steps}, and training has {steps} steps: the learning rate never reaches \
             its peak"
        ));
    }
    notes
}

/// The number of steps, limited by the exhaustion of a source that stops, and messages about the epochs of the sources.
fn mixture_length(config: &JobConfig, dataset: &Dataset) -> (u64, Vec<String>) {
    let (steps, batch) = (config.steps(dataset.training_sequences()), u64::from(config.training.global_batch_size));
    let Some(sources) = &config.data.sources else { return (steps, Vec::new()) };
    let exhausted = dataset.exhausted_before(steps * batch);
    let end = exhausted.map_or(steps, |(position, _)| position / batch);
    let mut notes = Vec::new();
    if let Some((_, index)) = exhausted {
        let name = &sources[index].name;
        notes.push(format!("the source {name} is exhausted after step {end} of {steps}, and training ends there"));
    }
    let Some(lengths) = dataset.epoch_lengths() else { return (end, notes) };
    let epochs = sources.iter().zip(dataset.sequences_read(end * batch)).zip(lengths);
    let epochs: Vec<String> = epochs
        .map(|((source, read), epoch)| {
            format!("{} {:.2} epochs of {epoch} sequences", source.name, read as f64 / epoch as f64)
        })
        .collect();
    notes.push(format!("{end} steps read of the sources: {}", epochs.join(", ")));
    (end, notes)
}

/// Tokenises the corpus, unless the token cache has it, and reports progress a few times a second.
fn prepare_corpus(
    context: &StageContext,
    data_config: &DataConfig,
    coordinator: &Coordinator,
) -> Result<PreparedCorpus, LeaveReason> {
    let monitor = context.monitor;
    monitor.set_activity("preparing the corpus");
    let report = &|text: &str, what: &str, done: u64, total: u64| {
        if let Some(failure) = coordinator.failure() {
            monitor.exit(FailureKind::PeerLost, &failure.message); // the tokens so far are kept
        }
        coordinator.report_progress(text);
        monitor.preparing(what, done, total);
    };
    let (waits, received) = mpsc::channel::<String>();
    // a send fails only once the reporting thread has ended
    let on_wait = OnWait::new(move |sentence| drop(waits.send(sentence.to_owned())));
    let data_config = DataConfig { on_wait, ..data_config.clone() };
    thread::scope(|scope| {
        // this thread waits for a remote source, so another thread reports the wait
        scope.spawn(move || received.iter().for_each(|sentence| report(&sentence, &sentence, 0, 0)));
        let data_config = data_config; // its drop ends the other thread
        let mut shown: Option<(&str, Instant)> = None;
        let prepared = stagecoach_data::prepare(&data_config, &mut |progress| {
            // `prepare` reports every piece of text
            let due = shown.is_none_or(|(phase, at)| phase != progress.phase || at.elapsed() > REPORT_INTERVAL);
            if !due && progress.bytes_done < progress.bytes_total {
                return;
            }
            shown = Some((progress.phase, Instant::now()));
            let PrepareProgress { phase, bytes_done, bytes_total } = progress;
            report(&format!("{phase}, {bytes_done} of {bytes_total} bytes"), phase, bytes_done, bytes_total);
        });
        Ok(prepared?)
    })
}

/// Prepares the corpus and plans for the whole group, on its leader.
pub(in crate::train) fn prepare_and_plan(
    context: &StageContext,
    fence: Fence,
    coordinator: &Coordinator,
) -> Result<PlannedRun, LeaveReason> {
    let StageContext { env, volume, monitor, device, .. } = *context;
    let begun = recorded_identity(volume);
    let config = &begun.map_or_else(|| Ok(context.config.clone()), |identity| context.config.resuming(&identity))?;
    let data_config = config.data_config();
    let prepared = prepare_corpus(context, &data_config, coordinator)?;
    monitor.set_activity("planning");
    let vocab_size = config.vocab_size(prepared.vocab_size)?;
    let architecture = config.architecture(vocab_size, tch::Device::Cpu);
    let stages = config.job.spec.stages as usize;
    let speeds = attempt_speeds(config, env, volume, &fence)?;
    let layout = plan_pipeline(config, architecture.as_ref(), stages, &speeds)?;
    let programs: Vec<Programs> = std::iter::once(layout.programs.clone())
        .chain(smaller_programs(config, architecture.as_ref(), &layout)?)
        .collect();
    let dataset = Dataset::open(&data_config, &prepared)?;
    let held_out = dataset.evaluation_sets(config.microbatch_size());
    let has_held_out = !held_out.is_empty();
    let evaluation = layout.evaluation_programs(held_out.iter().map(|set| set.plan.layouts.len()));
    let (steps, source_notes) = mixture_length(config, &dataset);
    let identity = config.identity(&prepared, &dataset);
    monitor.set_activity("choosing the checkpoint");
    let length = [length_notes(config, dataset.training_sequences()), source_notes].concat();
    let mut notes = [prepared.notes.clone(), layout.notes.clone(), ignored_settings(config, device), length].concat();
    let chosen = choose_checkpoint(context, &identity, steps, architecture.as_ref(), &[])?;
    notes.extend(chosen.notes);
    let mut trainer_state = chosen.trainer_state;
    let mut initial_weights = None;
    let begins = trainer_state.step == 0;
    if begins {
        trainer_state.frozen_weights.clone_from(&context.replay.frozen_weights);
        check_room_for_first_checkpoint(context, architecture.as_ref())?;
    }
    if begins || config.training.freezes_weights() {
        let tokenizer = prepared.tokenizer_file(&data_config);
        let recorded = trainer_state.frozen_weights.as_ref().map(|frozen| frozen.path.clone());
        let from =
            &JobConfig { initial_weights: recorded.or_else(|| config.initial_weights.clone()), ..config.clone() };
        initial_weights = resolve_initial_weights(from, Some(vocab_size), Some(&tokenizer), &mut notes)?;
    }
    if let (true, Some(path)) = (begins, &initial_weights) {
        notes.push(format!("starting from the weights in {}", path.display()));
    }
    // preparation may have taken long: no stage finds a group that is fenced off
    fence.check(volume)?;
    if let (true, Some(path)) = (begins, &initial_weights) {
        config.record_initial_model(path)?;
    }
    let plan = Plan {
        vocab_size,
        steps,
        identity,
        fence,
        trainer_state,
        initial_weights,
        schedule: layout.schedule.name.clone(),
        partition: layout.program_partition().layers,
        parts: layout.parts.clone(),
        recompute: layout.recompute,
        in_flight: layout.programs.in_flight(),
        stage_bytes: layout.memory.iter().map(|stage| stage.parts.total()).collect(),
        gradient_blocks: config.gradient_blocks,
        data_parallel: config.job.spec.data_parallel as usize,
        microbatches: config.training.microbatches as usize,
        programs: programs.iter().map(Programs::to_text).collect(),
        evaluation: evaluation.iter().map(Programs::to_text).collect(),
        evaluation_sets: held_out.into_iter().map(planned_set).collect(),
        expected_bubble: layout.bubble(),
        training_tokens: dataset.training_tokens(),
        unigram_entropy: has_held_out.then(|| dataset.evaluation_unigram_entropy()),
        prepared,
    };
    Ok(PlannedRun { plan, damage: chosen.damage, notes })
}

fn planned_set(set: HeldOutSet) -> PlannedSet {
    let HeldOutSet { name, counts, plan } = set;
    PlannedSet { name, counts, layouts: plan.layouts, target_count: plan.target_count }
}

/// Like [`check_space`], unless the stages may have a checkpoint in memory: training can resume from that without a
/// checkpoint on the volume.
fn check_room_for_first_checkpoint(context: &StageContext, architecture: &dyn Architecture) -> Result<(), StageError> {
    let StageContext { env, config, volume, monitor, .. } = *context;
    let is_first_group = env.incarnation == 0 && monitor.step().is_none();
    if config.job.spec.memory_checkpoints().is_some() && !is_first_group {
        return Ok(());
    }
    // the space of older groups' files counts as available, because they are removed while this group trains
    let available = || VolumeContents::find(volume).ok()?.fences_only().available_bytes_without(volume);
    check_space(config, architecture, available)
}

/// The model directory to start from, if the job names one. The check precedes the loading on any stage. If
/// `vocab_size` and the file of the `tokenizer` are not known yet, the model's own ones count.
pub(in crate::train) fn resolve_initial_weights(
    config: &JobConfig,
    vocab_size: Option<usize>,
    tokenizer: Option<&Path>,
    notes: &mut Vec<String>,
) -> Result<Option<PathBuf>, StageError> {
    let field = match config.job.spec.checkpoint.init_from {
        Some(_) => "spec.checkpoint.initFrom.path",
        None => "spec.model.pretrained.path",
    };
    let unusable = |error: CheckpointError| match error {
        // a missing file would not appear on a retry
        CheckpointError::Io { .. } if !error.is_not_found() => StageError::from(error),
        other => {
            let path = config.initial_weights.as_deref().unwrap_or(Path::new(""));
            StageError::invalid(format!("{field}: could not start from {}: {other}", path.display()))
        }
    };
    let Some(path) = config.initial_model().map_err(unusable)? else { return Ok(None) };
    let folder = config.workspace.join(&path);
    // a job names a copy by its URI
    let spec_path = match config.initial_weights_source() {
        Some(uri) if config.local_path(uri) != Path::new(uri) => Path::new(uri),
        _ => &path,
    };
    // the launcher checks a job before stage 0 has fetched the weights
    let weights = match config.lacks_initial_weights() {
        true => None,
        false => Some(InitialWeights::open(&folder).map_err(unusable)?),
    };
    let source_tokenizer = folder.join("tokenizer.json");
    let read = |path: &Path| -> Option<serde_json::Value> { serde_json::from_slice(&std::fs::read(path).ok()?).ok() };
    if let (Some(source_definition), Some(definition)) = (read(&source_tokenizer), tokenizer.and_then(read))
        && source_definition != definition
    {
        return Err(StageError::invalid(format!(
            "the weights in {} were trained with another tokenizer than this job's: set spec.data.tokenizer to \
             {{type: File, file: {{path: {}}}}}",
            folder.display(),
            spec_path.join("tokenizer.json").display()
        )));
    }
    let source = SourceConfig::read(&folder).map_err(|e| StageError::invalid(format!("{field}: {e}")))?;
    let source_architecture = source.config.architecture(tch::Device::Cpu);
    let vocab_size = vocab_size.unwrap_or(source_architecture.vocab_size());
    let different = config.model.with_vocab_size(vocab_size).differences(source.config.as_ref());
    if !different.is_empty() {
        let member = source.config.spec_member();
        let remedy = match source.config.unspecifiable_field() {
            None => format!("set spec.model.{member} to theirs"),
            Some(missing) => format!(
                "spec.model.{member} has no {missing}, so set spec.model to {{type: Pretrained, pretrained: {{path: {}}}}} \
                 and leave out spec.checkpoint.initFrom",
                spec_path.display()
            ),
        };
        return Err(StageError::invalid(format!(
            "{field}: the weights in {} are another model's than this job's: {}; {remedy}",
            folder.display(),
            different.join(", ")
        )));
    }
    if let Some(weights) = weights {
        weights.check(config.architecture(vocab_size, tch::Device::Cpu).as_ref()).map_err(unusable)?;
        notes.extend(weights.note());
    }
    notes.extend(lost_template(config, &folder, spec_path)?);
    Ok(Some(path))
}

/// A sentence if the model in `folder` has a chat template that the job's checkpoints will lack: they have the files
/// beside the job's tokenizer.
fn lost_template(config: &JobConfig, folder: &Path, spec_path: &Path) -> Result<Option<String>, StageError> {
    let source_tokenizer = folder.join("tokenizer.json");
    let Some(tokenizer) = config.tokenizer_file().filter(|path| *path != source_tokenizer) else { return Ok(None) };
    if config.data.chat_template.is_some() || has_chat_template(&tokenizer)? || !has_chat_template(&source_tokenizer)? {
        return Ok(None);
    }
    Ok(Some(format!(
        "the model in {} has a chat template, and the tokenizer {} has none beside it, so that the checkpoints have none: \
         set spec.data.tokenizer.file.path to {} to keep it",
        folder.display(),
        tokenizer.display(),
        spec_path.join("tokenizer.json").display()
    )))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn notes(set: &[(&str, &str)], training_sequences: u64) -> Vec<String> {
        let set: Vec<_> = set.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
        let sample = include_str!("../../../../manifests/samples/shakespeare.yaml");
        let job = stagecoach_api::parse_with(sample, "shakespeare.yaml", &set).unwrap();
        length_notes(&JobConfig::new(job, Path::new("/tmp")).unwrap(), Some(training_sequences))
    }

    #[test]
    fn a_length_that_its_author_may_not_have_meant_has_a_note() {
        let epoch = [("training.steps", "null"), ("training.epochs", "1"), ("training.globalBatchSize", "8")];
        let short = [&epoch[..], &[("training.learningRate.warmupSteps", "0")]].concat();
        let filled = notes(&short, 7);
        assert!(filled[0].contains("1 x 7 sequences do not fill 1 batches of 8: the last one is filled with 1 of"));
        assert_eq!((filled.len(), notes(&short, 8).len()), (1, 0));
        let warmup = |steps: &str| {
            let steps = ("training.steps", steps);
            notes(
                &[steps, ("training.learningRate.warmupSteps", "1000"), ("training.learningRate.decaySteps", "2000")],
                9,
            )
        };
        assert_eq!(warmup("1001"), Vec::<String>::new());
        assert!(
            warmup("5")[0].contains("warmupSteps is 1000, and training has 5 steps: the learning rate never reaches")
        );
    }
}
