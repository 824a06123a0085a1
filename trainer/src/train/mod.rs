//! The life of a stage: join, plan (stage 0) or follow the plan, build, connect, train, save, leave.

mod batches;
mod behind;
mod finish;
mod join;
mod prepare;
mod resume;
mod save;
mod saver;
mod steps;
mod watch;

pub use resume::check_extension;
pub use watch::{Watch, last_words};

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use stagecoach_api::contract::{FailureKind, StageEnv, StagePhase};
use stagecoach_checkpoint::Volume;
use stagecoach_group::Member;

use crate::execute::{Shape, Stage};
use crate::fatal::Fatal;
use crate::folder::JobFolder;
use crate::links::{self, Links, Opening};
use crate::model::Architecture;
use crate::observe::{Event, Sink, Started};
use crate::plan::{Plan, Settings, Verified};

use batches::Batches;
use join::{Assigned, Joined};

/// How a stage's life ends well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Trained to the end, and the model is saved.
    Done,
    /// Asked to stop, and all stopped at one boundary.
    Drained,
}

/// What a stage is given, and what it is seen by.
#[derive(Clone, Copy)]
struct Around<'a> {
    env: &'a StageEnv,
    settings: &'a Settings,
    device: tch::Device,
    volume: &'a dyn Volume,
    watch: &'a Watch,
    sink: &'a Sink,
}

/// A stage at work: what the rooms of `train` share.
struct Run<'a> {
    env: &'a StageEnv,
    settings: &'a Settings,
    plan: &'a Plan,
    verified: &'a Verified,
    member: &'a Member,
    watch: &'a Watch,
    sink: &'a Sink,
    volume: &'a dyn Volume,
    stage: Stage,
    links: Links,
    /// On the first and the last stage.
    batches: Option<Batches>,
}

impl Run<'_> {
    fn tell(&self, event: &Event) {
        tell(self.watch, self.sink, event);
    }
}

/// Tells people, and whoever polls.
fn tell(watch: &Watch, sink: &Sink, event: &Event) {
    watch.board().saw(event);
    sink.emit(event);
}

/// What stages say to each other outside a step; each is an order of its own.
mod topic {
    /// Stage 0 tells the microbatches' layouts, a step ahead.
    pub(super) const LAYOUTS: u32 = 1;
    /// The held-out loss.
    pub(super) const EVALUATION: u32 = 2;
    /// How a save goes; from the thread behind training.
    pub(super) const SAVE: u32 = 3;
    /// Whether all have loaded their tensors.
    pub(super) const LOAD: u32 = 4;
    /// The end.
    pub(super) const FINISH: u32 = 5;
}

/// Every stage's part, by rank.
fn gather<T: Serialize + DeserializeOwned>(member: &Member, topic: u32, mine: &T) -> Result<Vec<T>, Fatal> {
    let bytes = serde_json::to_vec(mine).map_err(|e| Fatal::invalid(e.to_string()))?;
    let all = member.gather(topic, bytes)?;
    all.iter()
        .map(|bytes| serde_json::from_slice(bytes))
        .collect::<Result<_, _>>()
        .map_err(|e| Fatal::invalid(format!("a stage's report can't be read ({e}): all stages must run one version")))
}

/// How long a broken link waits for the group to say who broke it.
const PATIENCE: Duration = Duration::from_secs(4);

fn work(run: &mut Run, architecture: &dyn Architecture) -> Result<End, Fatal> {
    let progress = steps::train(run, architecture)?;
    if progress.step < run.plan.steps {
        return Ok(End::Drained);
    }
    finish::finish(run, &progress)?;
    Ok(End::Done)
}

/// Runs one stage from its first moment to its last.
///
/// # Errors
/// What ends the stage, ready for the termination message.
pub fn run(
    env: &StageEnv,
    settings: &Settings,
    mount: fn(&Path) -> Arc<dyn Volume>,
    watch: &Watch,
    sink: &Sink,
) -> Result<End, Fatal> {
    let rank = env.rank as usize;
    tch::set_num_threads(settings.training.threads as i32);
    tch::set_num_interop_threads(1);
    let device = settings.device(rank)?;
    if rank == 0 {
        JobFolder::open(&settings.folder(), None)?;
    }
    let volume = &*mount(&settings.folder());
    let around = Around { env, settings, device, volume, watch, sink };
    let Joined { member, coordinator, assigned, notes } = join::join(&around)?;
    notes.into_iter().for_each(|message| tell(watch, sink, &Event::Note { message }));
    let end = live(&around, &member, assigned);
    let code = match &end {
        Ok(End::Done) => FailureKind::Done.exit_code().code(),
        Ok(End::Drained) => FailureKind::Drained.exit_code().code(),
        Err(fatal) if fatal.kind == FailureKind::PeerLost => {
            // a link broke: the group knows who was first, and its word, within the heartbeat timeout, ends this process
            std::thread::sleep(PATIENCE);
            fatal.kind.exit_code().code()
        }
        // the others learn whose fault it is
        Err(fatal) => fatal.kind.exit_code().code(),
    };
    watch.leaving();
    let left = member.leave(code);
    drop(coordinator);
    let end = end?;
    left?;
    Ok(end)
}

/// From the plan to the end of training: whatever ends it, the group is told.
fn live(around: &Around, member: &Member, assigned: Assigned) -> Result<End, Fatal> {
    let Around { env, settings, device, volume, watch, sink } = *around;
    let Assigned { roster, mut plan, verified, listener, damage } = assigned;
    let rank = env.rank as usize;
    let note = |message| tell(watch, sink, &Event::Note { message });
    let architecture = settings.architecture(plan.vocab_size, device);
    let placement = &verified.training.placement;
    watch.board().phase(StagePhase::Forming);
    watch.doing("building the stage");
    let mut stage = Stage::build(
        rank,
        &Shape {
            architecture: architecture.as_ref(),
            placement,
            partition: &verified.partition,
            seed: settings.training.seed,
            hyper: settings.hyper(),
            recompute: settings.job.spec.pipeline.recompute == stagecoach_api::job::Recompute::Full,
            device,
        },
    );
    watch.doing("loading");
    let notes = resume::load(volume, member, &mut plan, settings, architecture.as_ref(), &mut stage, damage)?;
    notes.into_iter().for_each(note);
    let batches = Batches::open(settings, &plan, rank, placement, device)?;
    watch.doing("opening links");
    let addresses: Vec<String> = roster.members.iter().map(|hello| hello.data_address.clone()).collect();
    let links = links::open(Opening {
        rank,
        group: format!("{}/{}", env.job_uid, env.attempt),
        listener,
        addresses: &addresses,
        edges: &links::edges(placement, architecture.tied()),
        transport: settings.transport(),
        boundary_bytes: 4 * settings.rows() * settings.data.sequence_length as usize * architecture.hidden(),
        tied_bytes: 4 * architecture.vocabulary() * architecture.hidden(),
        timeout: join::timing(settings).startup,
    })?;
    member.form()?;
    watch.formed();
    if rank == 0 {
        tell(watch, sink, &Event::Started(started(env, settings, &plan, architecture.as_ref())));
    }
    let mut run =
        Run { env, settings, plan: &plan, verified: &verified, member, watch, sink, volume, stage, links, batches };
    work(&mut run, architecture.as_ref())
}

fn started(env: &StageEnv, settings: &Settings, plan: &Plan, architecture: &dyn Architecture) -> Started {
    let specs = architecture.all_parameters();
    Started {
        stages: env.world_size as usize,
        schedule: plan.schedule.clone(),
        partition: plan.partition.clone(),
        microbatches: settings.training.microbatches as usize,
        first_step: plan.progress.step + 1,
        steps: plan.steps,
        parameters: specs.iter().map(|s| s.shape.iter().product::<i64>() as u64).sum(),
        tokens: plan.training_tokens,
        vocab_size: plan.vocab_size,
        expected_bubble: plan.expected_bubble,
        unigram_entropy: plan.unigram_entropy,
    }
}
