//! The training loop: a step's data, its program, its record.

use std::time::Instant;

use stagecoach_data::Layout;
use stagecoach_group::{Outcome, StepVote, Verdict};
use stagecoach_pipeline::Programs;

use super::batches::Tensors;
use super::save::Writer;
use super::saver::Saver;
use super::{Run, topic};
use crate::execute::{Batch, Executor, Finished};
use crate::fatal::Fatal;
use crate::folder::METRICS;
use crate::model::Architecture;
use crate::observe::{Event, Metrics, MetricsError, StepRecord};
use crate::plan::Progress;

/// Trains to the end, or to the boundary at which all were asked to stop: then `progress.step` is short of the plan's.
pub(super) fn train(run: &mut Run, architecture: &dyn Architecture) -> Result<Progress, Fatal> {
    let metrics = match run.env.rank {
        0 => Some(open_metrics(run)?),
        _ => None,
    };
    let writer = Writer::new(run, architecture)?;
    std::thread::scope(|scope| {
        let saver = Saver::start(scope, &writer, run.watch, run.settings, &run.stage)?;
        steps(run, saver, metrics)
    })
}

/// Started inside the fence: a group that has lost it since must not touch what a newer one writes.
fn open_metrics(run: &Run) -> Result<Metrics, Fatal> {
    let (folder, fence) = (run.settings.folder(), &run.plan.fence);
    let aside = folder.join(fence.work()).join(METRICS);
    let mut metrics = Metrics::new(&folder.join(METRICS), &aside, run.plan.progress.step)?;
    if let Err(error) = metrics.write() {
        fence.check(run.volume)?;
        if !error.is_full() {
            return Err(error.into());
        }
        tell_behind(run, &error);
    }
    Ok(metrics)
}

/// A full volume costs no step: the lines are kept, and people are told once.
fn tell_behind(run: &Run, error: &MetricsError) {
    run.tell(&Event::Note { message: format!("{error}; training goes on") });
}

fn steps(run: &mut Run, mut saver: Saver, mut metrics: Option<Metrics>) -> Result<Progress, Fatal> {
    let mut progress = run.plan.progress.clone();
    let every = run.settings.evaluate_every();
    let mut sent_before = 0;
    tell_layouts(run, progress.step)?;
    for index in progress.step..run.plan.steps {
        let started = Instant::now();
        let step = index + 1;
        let learning_rate = run.settings.learning_rate(progress.decay_steps_at(index)).at(index);
        run.watch.step(step);
        run.watch.doing("DATA");
        tell_layouts(run, step)?;
        let layouts: Vec<Layout> = told_layouts(run)?;
        let plan = run.batches.as_ref().map(|batches| batches.step(index));
        let Tensors { inputs, targets } = match (&run.batches, &plan) {
            (Some(batches), Some(plan)) => batches.tensors(plan),
            _ => Tensors::default(),
        };
        let count = plan.map_or(0, |plan| plan.targets);
        let (save, saving) = saver.ask(step)?;
        let (stop, skips_in_a_row) = (run.watch.stop_requested(), progress.skips_in_a_row);
        let vote = StepVote { stop, save, saving, skips_in_a_row, ..StepVote::default() };
        let batch = Batch { layouts: &layouts, inputs, targets, count, step: Some(step), learning_rate, vote };
        let finished = execute(run, &run.verified.training, &batch)?;
        let Some(verdict) = finished.verdict else { continue };
        progress.after(&verdict);
        let seconds = started.elapsed().as_secs_f64();
        let evaluate =
            run.verified.evaluation.is_some() && (step == run.plan.steps || (every > 0 && step % every == 0));
        let evaluation_loss = if evaluate { Some(evaluate_held_out(run)?) } else { None };
        progress.evaluation_loss = evaluation_loss.or(progress.evaluation_loss);
        if let Some(metrics) = &mut metrics {
            let sent = bytes_sent(&verdict);
            let record = StepRecord {
                evaluation_loss,
                learning_rate,
                tokens: count,
                tokens_per_second: count as f64 / seconds,
                seconds,
                bytes_sent: sent - sent_before,
                checkpoint: saver.take_record(),
                ..judged(&verdict)
            };
            sent_before = sent;
            let was_behind = metrics.is_behind();
            if let (Err(error), false) = (metrics.append(&record), was_behind) {
                tell_behind(run, &error);
            }
            run.tell(&Event::Step(record));
            if matches!(verdict.outcome, Outcome::Skip) {
                let message = format!("step {step} was skipped: its loss or gradient is not finite");
                run.tell(&Event::Note { message });
            }
        }
        if verdict.stop || step == run.plan.steps {
            saver.last(&run.stage, &progress, step < run.plan.steps)?;
            break;
        }
        saver.boundary(&verdict, &run.stage, &progress)?;
    }
    Ok(progress)
}

/// This rank's part of `programs`, over `batch`.
fn execute(run: &mut Run, programs: &Programs, batch: &Batch) -> Result<Finished, Fatal> {
    let program = &programs.ranks[run.stage.rank];
    let activity = &run.member.activity();
    let (stage, links, placement) = (&mut run.stage, &mut run.links, &programs.placement);
    Ok(Executor { stage, links, member: run.member, activity, placement }.run(program, batch)?)
}

/// Stage 0 tells all ranks the layouts of step `index` (from 0), a step before they are needed.
fn tell_layouts(run: &Run, index: u64) -> Result<(), Fatal> {
    match &run.batches {
        Some(batches) if run.env.rank == 0 && index < run.plan.steps => {
            let layouts = serde_json::to_vec(&batches.step(index).layouts);
            Ok(run.member.tell(topic::LAYOUTS, layouts.map_err(|e| Fatal::invalid(format!("layouts: {e}")))?)?)
        }
        _ => Ok(()),
    }
}

fn told_layouts(run: &Run) -> Result<Vec<Layout>, Fatal> {
    let bytes = run.member.told(topic::LAYOUTS)?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Fatal::invalid(format!("stage 0's layouts can't be read ({e}): all stages must run one version")))
}

/// What the verdict says of a step.
fn judged(verdict: &Verdict) -> StepRecord {
    StepRecord {
        step: verdict.step,
        loss: verdict.loss.is_finite().then_some(verdict.loss),
        gradient_norm: verdict.norm.is_finite().then_some(verdict.norm),
        bubble: bubbles(verdict),
        skipped: matches!(verdict.outcome, Outcome::Skip),
        ..StepRecord::default()
    }
}

/// Payload bytes that have left all stages so far.
fn bytes_sent(verdict: &Verdict) -> u64 {
    verdict.measures.iter().filter_map(|measures| measures.get(2)).map(|&bytes| bytes as u64).sum()
}

/// Share of the step in which each stage did not compute, by stage: all start together, the last one ends it.
fn bubbles(verdict: &Verdict) -> Vec<f64> {
    let measure = |measures: &Vec<f64>, at: usize| measures.get(at).copied().unwrap_or(0.0);
    let wall = verdict.measures.iter().map(|m| measure(m, 0)).fold(f64::MIN_POSITIVE, f64::max);
    verdict.measures.iter().map(|m| 1.0 - (measure(m, 0) - measure(m, 1)) / wall).collect()
}

/// The held-out loss, in nats per token, known to every rank.
fn evaluate_held_out(run: &mut Run) -> Result<f64, Fatal> {
    let Some(programs) = &run.verified.evaluation else { return Ok(f64::NAN) };
    let plan = run.batches.as_ref().map(|batches| batches.held_out());
    let Tensors { inputs, targets } = match (&run.batches, &plan) {
        (Some(batches), Some(plan)) => batches.tensors(plan),
        _ => Tensors::default(),
    };
    let count = plan.map_or(0, |plan| plan.targets);
    let layouts = &run.plan.evaluation_layouts;
    let batch = Batch { layouts, inputs, targets, count, step: None, learning_rate: 0.0, vote: StepVote::default() };
    let finished = execute(run, programs, &batch)?;
    run.watch.doing("gathering the held-out loss");
    let mine: f64 = finished.loss / count.max(1) as f64;
    let all = run.member.gather(topic::EVALUATION, mine.to_le_bytes().to_vec())?;
    let head = programs.placement.rank_of(programs.placement.chunks() - 1);
    let bytes: [u8; 8] = all.get(head).and_then(|b| b.as_slice().try_into().ok()).unwrap_or(f64::NAN.to_le_bytes());
    Ok(f64::from_le_bytes(bytes))
}
