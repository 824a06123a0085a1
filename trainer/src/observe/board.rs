//! What `/status` and `/metrics` show: the newest state of this stage, written by training and read by anybody.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use stagecoach_api::contract::{StageEnv, StagePhase, StageStatus};
use stagecoach_api::job::{CheckpointStatus, FloatString};

use super::Event;
use super::lines::save_failed;

type Float = Gauge<f64, AtomicU64>;

/// Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct Board(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    status: Mutex<StageStatus>,
    registry: Registry,
    step: Gauge,
    loss: Float,
    evaluation_loss: Float,
    gradient_norm: Float,
    tokens_per_second: Float,
    bubble: Float,
    tokens: Counter,
    skipped: Counter,
    checkpoint_step: Gauge,
    checkpoint_bytes: Gauge,
    checkpoint_seconds: Float,
    checkpoint_stall: Float,
    checkpoints: Counter,
    checkpoint_failures: Counter,
}

impl Board {
    /// Of the stage that `env` describes, which is preparing.
    pub fn new(env: &StageEnv) -> Board {
        let status = StageStatus {
            job_uid: env.job_uid.clone(),
            attempt: env.attempt,
            pod_uid: env.pod_uid.clone(),
            stage: env.rank,
            ..StageStatus::default()
        };
        let mut inner = Inner {
            status: Mutex::new(status),
            registry: Registry::with_prefix("stagecoach"),
            step: Gauge::default(),
            loss: Float::default(),
            evaluation_loss: Float::default(),
            gradient_norm: Float::default(),
            tokens_per_second: Float::default(),
            bubble: Float::default(),
            tokens: Counter::default(),
            skipped: Counter::default(),
            checkpoint_step: Gauge::default(),
            checkpoint_bytes: Gauge::default(),
            checkpoint_seconds: Float::default(),
            checkpoint_stall: Float::default(),
            checkpoints: Counter::default(),
            checkpoint_failures: Counter::default(),
        };
        let registry = &mut inner.registry;
        registry.register("step", "Steps complete", inner.step.clone());
        registry.register("loss", "Training loss of the last step, in nats per token", inner.loss.clone());
        registry.register("evaluation_loss", "Held-out loss, in nats per token", inner.evaluation_loss.clone());
        registry.register(
            "gradient_norm",
            "Gradient norm of the last step, before clipping",
            inner.gradient_norm.clone(),
        );
        registry.register("tokens_per_second", "Target tokens per second", inner.tokens_per_second.clone());
        registry.register_with_unit(
            "bubble",
            "Share of the last step spent waiting, mean of all stages",
            Unit::Ratios,
            inner.bubble.clone(),
        );
        registry.register("tokens", "Target tokens trained on by this process", inner.tokens.clone());
        registry.register("skipped_steps", "Steps whose update was skipped", inner.skipped.clone());
        registry.register("checkpoint_step", "Step of the newest checkpoint", inner.checkpoint_step.clone());
        registry.register_with_unit("checkpoint", "Its size", Unit::Bytes, inner.checkpoint_bytes.clone());
        let took = "Wall time of the last save, from the boundary to the commit";
        registry.register_with_unit("checkpoint_save", took, Unit::Seconds, inner.checkpoint_seconds.clone());
        let waited = "Time of it that training waited for";
        registry.register_with_unit("checkpoint_stall", waited, Unit::Seconds, inner.checkpoint_stall.clone());
        registry.register("checkpoints", "Checkpoints committed by this process", inner.checkpoints.clone());
        registry.register("checkpoint_failures", "Saves that failed", inner.checkpoint_failures.clone());
        Board(Arc::new(inner))
    }

    /// The stage's phase.
    pub fn phase(&self, phase: StagePhase) {
        self.status().phase = phase;
    }

    /// Whether the group has formed and weights are loaded.
    pub fn is_ready(&self) -> bool {
        matches!(self.status().phase, StagePhase::Training | StagePhase::Draining | StagePhase::Done)
    }

    /// The answer of `/status`.
    pub fn snapshot(&self) -> StageStatus {
        self.status().clone()
    }

    /// The answer of `/metrics`, in OpenMetrics' text form.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        // writing to a String does not fail
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.0.registry);
        text
    }

    /// Takes note of what stage 0 tells.
    pub fn saw(&self, event: &Event) {
        let mut status = self.status();
        match event {
            Event::Preparing { what, done, total } => status.message = format!("{what}, {done} of {total}"),
            Event::Started(started) => {
                status.message.clear();
                status.progress.steps = Some(started.steps);
                status.progress.step = started.first_step.saturating_sub(1);
            }
            Event::Step(record) => {
                let bubble = record.bubble.iter().sum::<f64>() / record.bubble.len().max(1) as f64;
                let progress = &mut status.progress;
                progress.step = record.step;
                progress.loss = Some(FloatString(record.loss.map_or(f64::NAN, f64::from)).rounded(4));
                let evaluated = record.evaluation_loss.map(|loss| FloatString(loss).rounded(4));
                progress.evaluation_loss = evaluated.or(progress.evaluation_loss);
                progress.tokens_per_second = Some(FloatString(record.tokens_per_second).rounded(1));
                progress.seconds_per_step = Some(FloatString(record.seconds).rounded(4));
                progress.bubble = Some(FloatString(bubble).rounded(3));
                let left = progress.steps.unwrap_or(record.step).saturating_sub(record.step);
                progress.eta = Some(FloatString(record.seconds * left as f64).rounded(1));
                self.0.step.set(record.step as i64);
                self.0.loss.set(record.loss.map_or(f64::NAN, f64::from));
                self.0.gradient_norm.set(record.gradient_norm.unwrap_or(f64::NAN));
                self.0.tokens_per_second.set(record.tokens_per_second);
                self.0.bubble.set(bubble);
                self.0.tokens.inc_by(record.tokens);
                self.0.skipped.inc_by(u64::from(record.skipped));
                if let Some(loss) = record.evaluation_loss {
                    self.0.evaluation_loss.set(loss);
                }
            }
            Event::Saved(save) => {
                let attempt = Some(status.attempt);
                status.checkpoint = Some(CheckpointStatus { step: save.step, attempt, ..CheckpointStatus::default() });
                status.save_failure = None;
                self.0.checkpoint_step.set(save.step as i64);
                self.0.checkpoint_bytes.set(save.bytes as i64);
                self.0.checkpoint_seconds.set(save.seconds);
                self.0.checkpoint_stall.set(save.stall_seconds);
                self.0.checkpoints.inc();
            }
            Event::SaveFailed(save) => {
                status.save_failure = Some(save_failed(save));
                self.0.checkpoint_failures.inc();
            }
            Event::Note { message } => status.message.clone_from(message),
            Event::Finished(_) => status.phase = StagePhase::Done,
        }
    }

    fn status(&self) -> MutexGuard<'_, StageStatus> {
        self.0.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
