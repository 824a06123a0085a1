//! The work of the leader before the group forms: the leader tokenises the corpus, and then plans.

use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::{Damage, Fence, VolumeContents};
use stagecoach_data::{DataConfig, Dataset, HeldOutSet, OnWait, PrepareProgress, PreparedCorpus};
use stagecoach_engine::StageError;
use stagecoach_group::{Coordinator, StepRules};
use stagecoach_model::Architecture;
use stagecoach_pipeline::Programs;
use stagecoach_planner::{JobConfig, Plan, PlannedSet, attempt_speeds, plan_pipeline, smaller_programs};

use crate::train::context::StageContext;
use crate::train::join::initial_model::resolve_initial_weights;
use crate::train::join::notes::{ignored_settings, length_notes, mixture_length};
use crate::train::join::start_check::check_space;
use crate::train::leave::LeaveReason;
use crate::train::monitor::REPORT_INTERVAL;
use crate::train::setup::resume::{choose_checkpoint, recorded_identity};

/// A plan, and messages for the user.
pub(in crate::train) struct PlannedRun {
    pub(in crate::train) plan: Plan,
    /// The damaged checkpoints that planning found.
    pub(in crate::train) damage: Vec<Damage>,
    pub(in crate::train) notes: Vec<String>,
}

/// Returns the rules by which the group decides whether and how a step updates the weights.
pub(in crate::train) fn decision_rules(config: &JobConfig) -> StepRules {
    StepRules { clip_norm: config.training.gradient_clip_norm, ..StepRules::default() }
}

/// Tokenises the corpus, unless the token cache has the tokens, and reports progress a few times a second.
fn prepare_corpus(
    context: &StageContext,
    data_config: &DataConfig,
    coordinator: &Coordinator,
) -> Result<PreparedCorpus, LeaveReason> {
    let monitor = context.monitor;
    monitor.set_activity("preparing the corpus");
    let report = &|text: &str, what: &str, done: u64, total: u64| {
        if let Some(failure) = coordinator.failure() {
            monitor.exit(FailureKind::PeerLost, &failure.message); // the token cache keeps the tokens so far
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
        let data_config = data_config; // the drop of this value ends the other thread
        let mut shown: Option<(&str, Instant)> = None;
        let prepared = stagecoach_data::prepare(&data_config, &mut |progress| {
            // `prepare` calls this closure for every piece of text, which is too often for a report
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

/// Prepares the corpus and plans for the whole group. Only the group's leader calls this.
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
    // A newer group may have acquired the fence during a long preparation. The plan of a group without the fence must
    // not reach any stage.
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

/// Checks with [`check_space`] that the volume has room for the first checkpoint. Skips the check if the stages may
/// have a memory checkpoint, because training can resume from it without a checkpoint on the volume.
fn check_room_for_first_checkpoint(context: &StageContext, architecture: &dyn Architecture) -> Result<(), StageError> {
    let StageContext { env, config, volume, monitor, .. } = *context;
    let is_first_group = env.incarnation == 0 && monitor.step().is_none();
    if config.job.spec.memory_checkpoints().is_some() && !is_first_group {
        return Ok(());
    }
    // the space of older groups' files counts as available, because this group removes these files while it trains
    let available = || VolumeContents::find(volume).ok()?.fences_only().available_bytes_without(volume);
    check_space(config, architecture, available)
}
