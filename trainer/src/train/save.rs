//! One save: every stage writes its shards, stage 0 commits by one rename. All stages run it alike, on their main
//! threads or behind training; what comes of it is known to all at its end.

use std::iter::Sum;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stagecoach_api::contract::StageEnv;
use stagecoach_checkpoint::{About, CheckpointError, Dtype, Keep, StageFiles, View, Volume, prune};
use stagecoach_data::Tokenizer;
use stagecoach_group::Member;

use super::{Run, Watch, gather, tell, topic};
use crate::fatal::Fatal;
use crate::model::Architecture;
use crate::observe::{Event, SaveRecord, Sink};
use crate::plan::{Plan, Progress, Settings};
use crate::state::{Named, Snapshot};

/// The longest wait before a save that must succeed is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How one stage's part went; an error is its sentence.
pub(super) type Part<T> = Result<T, String>;

/// What a save took; nothing if its checkpoint was there already.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Saved {
    /// Of the whole checkpoint.
    bytes: u64,
    /// Of all stages.
    cpu_seconds: f64,
}

impl Sum for Saved {
    fn sum<I: Iterator<Item = Saved>>(parts: I) -> Saved {
        parts.fold(Saved::default(), |all, part| Saved {
            bytes: all.bytes + part.bytes,
            cpu_seconds: all.cpu_seconds + part.cpu_seconds,
        })
    }
}

/// Saves checkpoints; knows everything but the tensors.
pub(super) struct Writer<'a> {
    env: &'a StageEnv,
    settings: &'a Settings,
    plan: &'a Plan,
    member: &'a Member,
    watch: &'a Watch,
    sink: &'a Sink,
    volume: &'a dyn Volume,
    /// Name and content: on stage 0.
    small_files: Vec<(String, Vec<u8>)>,
    device: String,
}

impl<'a> Writer<'a> {
    /// For `run`.
    pub(super) fn new(run: &Run<'a>, architecture: &dyn Architecture) -> Result<Writer<'a>, Fatal> {
        let Run { env, settings, plan, member, watch, sink, volume, .. } = *run;
        let small_files = if env.rank == 0 { small_files(run, architecture)? } else { Vec::new() };
        let device = format!("{:?}", run.stage.device);
        Ok(Writer { env, settings, plan, member, watch, sink, volume, small_files, device })
    }

    /// Saves once, and tells what came of it.
    ///
    /// # Errors
    /// As [`Writer::attempt`].
    pub(super) fn save(
        &self,
        snapshot: &Snapshot,
        progress: &Progress,
        doing: &dyn Fn(&str),
        record: SaveRecord,
        started: Instant,
    ) -> Result<SaveRecord, Fatal> {
        let saved = self.attempt(snapshot, progress, doing)?;
        Ok(self.conclude(record, started, saved))
    }

    /// Tells what came of a save that began at `started`.
    pub(super) fn conclude(&self, mut record: SaveRecord, started: Instant, saved: Part<Saved>) -> SaveRecord {
        record.seconds = started.elapsed().as_secs_f64();
        match saved {
            Ok(Saved { bytes, cpu_seconds }) => {
                (record.bytes, record.cpu_seconds) = (bytes, cpu_seconds);
                self.tell(&Event::Saved(record.clone()));
            }
            Err(why) => {
                record.error = Some(why);
                self.tell(&Event::SaveFailed(record.clone()));
            }
        }
        record
    }

    /// Saves `snapshot` as the checkpoint of `progress`; `doing` hears what it is at. `Ok(Err(why))` is a save that failed:
    /// what was committed before stays.
    ///
    /// # Errors
    /// If the group is gone, or a newer group has taken the job over.
    fn attempt(&self, snapshot: &Snapshot, progress: &Progress, doing: &dyn Fn(&str)) -> Result<Part<Saved>, Fatal> {
        let before = cpu_seconds();
        let (volume, coordinator) = (self.volume, self.env.rank == 0);
        let save = self.plan.fence.save(progress.step);
        doing("save");
        let begun = if coordinator { save.begin(volume, &self.plan.identity) } else { Ok(true) };
        match first(self.agree(begun)?) {
            Ok(true) => {}
            Ok(false) => return Ok(Ok(Saved::default())),
            Err(why) => return Ok(Err(why)),
        }
        let (weights, moments) = (told(&snapshot.weights, doing), told(&snapshot.moments, doing));
        let written = save.write_stage(volume, self.env.rank as usize, &weights, &moments);
        doing("save: others");
        let parts: Vec<Part<StageFiles>> = self.agree(written)?;
        let files: Part<Vec<StageFiles>> = parts.into_iter().collect();
        let committed = match (&files, coordinator) {
            (Ok(files), true) => {
                doing("commit");
                save.commit(volume, self.about(progress), files, &self.small_files).map(|manifest| manifest.bytes())
            }
            _ => Ok(0),
        };
        doing("save: others");
        let each: Vec<Part<Saved>> =
            self.agree(committed.map(|bytes| Saved { bytes, cpu_seconds: cpu_seconds() - before }))?;
        let saved = files.and_then(|_| each.into_iter().sum());
        if coordinator {
            doing("prune");
            self.tidy(progress.step, saved.is_ok())?;
        }
        Ok(saved)
    }

    /// Saves, again and again until it succeeds or `deadline` is past.
    ///
    /// # Errors
    /// As [`Writer::attempt`].
    pub(super) fn save_by(
        &self,
        snapshot: &Snapshot,
        progress: &Progress,
        doing: &dyn Fn(&str),
        deadline: Instant,
    ) -> Result<Part<Saved>, Fatal> {
        let mut pause = Duration::from_millis(100);
        loop {
            let why = match self.attempt(snapshot, progress, doing)? {
                Err(why) => why,
                saved => return Ok(saved),
            };
            if first(self.agree(Ok(Instant::now() + pause < deadline))?) != Ok(true) {
                return Ok(Err(why));
            }
            if self.env.rank == 0 {
                let message = format!("the checkpoint of step {} failed and is tried again: {why}", progress.step);
                self.tell(&Event::Note { message });
                std::thread::sleep(pause); // the others wait for stage 0
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Tells from stage 0 what all know.
    pub(super) fn tell(&self, event: &Event) {
        if self.env.rank == 0 {
            tell(self.watch, self.sink, event);
        }
    }

    /// Removes what need not be kept: after a commit older checkpoints, after a failed save its leftovers, whose room may
    /// be just what the next one lacks. A failure here is told, and costs nothing but room;
    /// a lost fence ends the stage.
    fn tidy(&self, step: u64, saved: bool) -> Result<(), Fatal> {
        let fence = &self.plan.fence;
        let keep = &self.settings.job.spec.checkpoint;
        let keep = Keep { last: keep.keep_last as usize, every: keep.keep_every };
        let tidied = if saved { prune(self.volume, fence, keep, step).map(|_| ()) } else { fence.clear(self.volume) };
        match tidied {
            Err(fenced @ CheckpointError::FencedOff { .. }) => return Err(fenced.into()),
            Err(error) => {
                let message = format!("could not tidy up after the save of step {step}: {error}");
                self.tell(&Event::Note { message });
            }
            Ok(()) => {}
        }
        Ok(())
    }

    /// Every stage's result, by rank, the same on all. A lost fence ends the stage: a newer group works on this job.
    fn agree<T: Serialize + DeserializeOwned>(&self, mine: Result<T, CheckpointError>) -> Result<Vec<Part<T>>, Fatal> {
        let mine: Part<T> = match mine {
            Err(fenced @ CheckpointError::FencedOff { .. }) => return Err(fenced.into()),
            other => other.map_err(|e| e.to_string()),
        };
        gather(self.member, topic::SAVE, &mine)
    }

    fn about(&self, progress: &Progress) -> About {
        let batch = u64::from(self.settings.training.global_batch_size);
        let mut seen = serde_json::json!(progress);
        seen["sequences"] = (progress.step * batch).into();
        About {
            attempt: self.env.attempt,
            identity: self.plan.identity.clone(),
            plan: serde_json::json!({ "schedule": self.plan.schedule, "partition": self.plan.partition }),
            environment: serde_json::json!({
                "version": env!("CARGO_PKG_VERSION"),
                "isa": crate::autograd::cpu_capability(),
                "device": self.device,
                "threads": self.settings.training.threads,
            }),
            progress: seen,
            job: serde_json::json!(self.settings.job.spec),
        }
    }
}

/// Processor time of this thread: nearly all that a save takes, since what passes bytes on to the device mostly waits.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Stage 0's own part.
fn first<T>(parts: Vec<Part<T>>) -> Part<T> {
    parts.into_iter().next().unwrap_or_else(|| Err("stage 0 said nothing".into()))
}

/// Hugging Face's files beside the weights.
fn small_files(run: &Run, architecture: &dyn Architecture) -> Result<Vec<(String, Vec<u8>)>, Fatal> {
    let mut config = architecture.config();
    let mut files = Vec::new();
    if let Some(batches) = &run.batches {
        let (tokenizer, tokenizer_config) = batches.tokenizer_files();
        // where a text ends is the tokenizer's to know, and generating tools look for it here
        let special = Tokenizer::load(&tokenizer)?.special_tokens();
        special.into_iter().for_each(|(name, id)| config[format!("{name}_id")] = id.into());
        for (name, path) in [("tokenizer.json", tokenizer), ("tokenizer_config.json", tokenizer_config)] {
            files.push((name.to_owned(), std::fs::read(&path).map_err(|e| Fatal::storage("read", &path, e))?));
        }
    }
    files.push(("config.json".to_owned(), format!("{config:#}\n").into_bytes()));
    Ok(files)
}

/// A tensor that tells when its turn to be written has come.
struct Told<'a> {
    tensor: &'a Named,
    turn: String,
    doing: &'a dyn Fn(&str),
}

/// The tensors by name, as the checkpoint room takes them.
fn told<'a>(tensors: &'a [Named], doing: &'a dyn Fn(&str)) -> Vec<(String, Told<'a>)> {
    let all = tensors.len();
    let turn = |at: usize| format!("write {} of {all}", at + 1);
    tensors
        .iter()
        .enumerate()
        .map(|(at, tensor)| (tensor.name.clone(), Told { tensor, turn: turn(at), doing }))
        .collect()
}

impl View for Told<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        (self.doing)(&self.turn);
        std::borrow::Cow::Borrowed(self.tensor.bytes())
    }

    fn data_len(&self) -> usize {
        self.tensor.bytes().len()
    }
}
