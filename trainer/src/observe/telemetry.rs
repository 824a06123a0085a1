//! The state of this stage behind `/status` and `/metrics`.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use stagecoach_api::contract::{AuditStatus, GroupStatus, LostStage, StageEnv, StagePhase, StageStatus, StatusQuery};
use stagecoach_api::job::{CheckpointStatus, FloatString};
use tokio::sync::watch;

use super::event_formatter::format_save_failure;
use super::group_recovery::{GroupRecoveries, GroupRecovery, standing};
use super::traces::Traces;
use super::{StepRecord, TrainingEvent};
use crate::plan::keep_audit_difference;

type FloatGauge = Gauge<f64, AtomicU64>;
/// By stage: `stage="0"` and so on.
type StageGauges = Family<[(&'static str, usize); 1], FloatGauge>;

/// Status and metrics of a stage. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct StageTelemetry(Arc<TelemetryState>);

#[derive(Debug)]
struct TelemetryState {
    status: Mutex<StageStatus>,
    recoveries: Mutex<GroupRecoveries>,
    traces: Traces,
    /// The status's revision.
    revision: watch::Sender<u64>,
    registry: Registry,
    step: Gauge,
    loss: FloatGauge,
    evaluation_loss: FloatGauge,
    gradient_norm: FloatGauge,
    tokens_per_second: FloatGauge,
    mfu: FloatGauge,
    bubble: FloatGauge,
    stage_bubble: StageGauges,
    stage_exposed_communication: StageGauges,
    stage_imbalance: StageGauges,
    tokens: Counter,
    skipped: Counter,
    checkpoint_step: Gauge,
    checkpoint_bytes: Gauge,
    checkpoint_seconds: FloatGauge,
    checkpoint_stall: FloatGauge,
    memory_checkpoint_stall: FloatGauge,
    memory_checkpoint_bytes: Counter,
    checkpoints: Counter,
    checkpoint_failures: Counter,
    rejected_connections: Counter,
    reproducible: Gauge,
    audits: Counter,
    audit_differences: Counter,
}

impl StageTelemetry {
    /// Telemetry of the stage that `env` describes.
    pub(crate) fn new(env: &StageEnv) -> StageTelemetry {
        let status = StageStatus {
            job_uid: env.job_uid.clone(),
            attempt: env.attempt,
            pod_uid: env.pod_uid.clone(),
            stage: env.rank,
            incarnation: env.incarnation,
            spare: env.spare,
            ..StageStatus::default()
        };
        let mut state = TelemetryState {
            status: Mutex::new(status),
            recoveries: Mutex::new(GroupRecoveries::new(env, unix_millis())),
            traces: Traces::new(env),
            revision: watch::Sender::new(0),
            registry: Registry::with_prefix("stagecoach"),
            step: Gauge::default(),
            loss: FloatGauge::default(),
            evaluation_loss: FloatGauge::default(),
            gradient_norm: FloatGauge::default(),
            tokens_per_second: FloatGauge::default(),
            mfu: FloatGauge::default(),
            bubble: FloatGauge::default(),
            stage_bubble: StageGauges::default(),
            stage_exposed_communication: StageGauges::default(),
            stage_imbalance: StageGauges::default(),
            tokens: Counter::default(),
            skipped: Counter::default(),
            checkpoint_step: Gauge::default(),
            checkpoint_bytes: Gauge::default(),
            checkpoint_seconds: FloatGauge::default(),
            checkpoint_stall: FloatGauge::default(),
            memory_checkpoint_stall: FloatGauge::default(),
            memory_checkpoint_bytes: Counter::default(),
            checkpoints: Counter::default(),
            checkpoint_failures: Counter::default(),
            rejected_connections: Counter::default(),
            reproducible: Gauge::default(),
            audits: Counter::default(),
            audit_differences: Counter::default(),
        };
        let registry = &mut state.registry;
        registry.register("step", "Steps complete", state.step.clone());
        registry.register("loss", "Training loss of the last step, in nats per token", state.loss.clone());
        registry.register("evaluation_loss", "Held-out loss, in nats per token", state.evaluation_loss.clone());
        registry.register(
            "gradient_norm",
            "Gradient norm of the last step, before clipping",
            state.gradient_norm.clone(),
        );
        registry.register("tokens_per_second", "Target tokens per second", state.tokens_per_second.clone());
        registry.register_with_unit(
            "mfu",
            "Model FLOPs utilization of the last step on GPUs whose peak is known, else 0",
            Unit::Ratios,
            state.mfu.clone(),
        );
        registry.register_with_unit(
            "bubble",
            "Share of the last step without computation, mean of all stages",
            Unit::Ratios,
            state.bubble.clone(),
        );
        for (name, help, gauges) in [
            ("stage_bubble", "Share of the last step without computation", &state.stage_bubble),
            (
                "stage_exposed_communication",
                "The part of the bubble that waited for an input under way",
                &state.stage_exposed_communication,
            ),
            (
                "stage_imbalance",
                "Time of computation in the last step over the mean of all stages",
                &state.stage_imbalance,
            ),
        ] {
            registry.register_with_unit(name, help, Unit::Ratios, gauges.clone());
        }
        registry.register("tokens", "Target tokens trained on by this process", state.tokens.clone());
        registry.register("skipped_steps", "Steps whose update was skipped", state.skipped.clone());
        registry.register("checkpoint_step", "Step of the newest checkpoint", state.checkpoint_step.clone());
        registry.register_with_unit("checkpoint", "Its size", Unit::Bytes, state.checkpoint_bytes.clone());
        let seconds_help = "Wall time of the last save, from the boundary to the commit";
        registry.register_with_unit("checkpoint_save", seconds_help, Unit::Seconds, state.checkpoint_seconds.clone());
        let stall_help = "Time of it that training waited for";
        registry.register_with_unit("checkpoint_stall", stall_help, Unit::Seconds, state.checkpoint_stall.clone());
        let copies_help = "Time of the last step that training waited for copies of checkpoints in memory";
        let stall = state.memory_checkpoint_stall.clone();
        registry.register_with_unit("memory_checkpoint_stall", copies_help, Unit::Seconds, stall);
        let sent = state.memory_checkpoint_bytes.clone();
        registry.register_with_unit("memory_checkpoint_sent", "Copies sent to the next stage", Unit::Bytes, sent);
        registry.register("checkpoints", "Checkpoints committed by this process", state.checkpoints.clone());
        registry.register("checkpoint_failures", "Saves that failed", state.checkpoint_failures.clone());
        registry.register(
            "rejected_connections",
            "Connections of peers that did not prove that they belong to the group",
            state.rejected_connections.clone(),
        );
        registry.register("audits", "Microbatches that a second stage has computed again", state.audits.clone());
        let differ_help = "Those of them that came to something else";
        registry.register("audit_differences", differ_help, state.audit_differences.clone());
        state.reproducible.set(1);
        registry.register(
            "reproducible",
            "1 if the run was trained in one environment so far, 0 if its numbers may be others than those of such a run",
            state.reproducible.clone(),
        );
        StageTelemetry(Arc::new(state))
    }

    /// Sets the stage's phase.
    pub(crate) fn set_phase(&self, phase: StagePhase) {
        self.update(|status| {
            status.phase = phase;
            if phase == StagePhase::Training {
                status.lost = None;
            }
        });
    }

    /// This stage leads the group that is about to begin, with this fence.
    pub(crate) fn set_leader(&self, fence: u64) {
        self.update(|status| status.leader_fence = fence);
    }

    /// The group with this fence has joined, with these incarnations of its stages.
    pub(crate) fn group_joined(&self, fence: u64, incarnations: Vec<Option<u32>>) {
        let joined = GroupStatus { fence, incarnations, joined_at: unix_millis(), ..GroupStatus::default() };
        self.update(|status| status.group = Some(joined));
    }

    /// The group has loaded.
    pub(crate) fn group_loaded(&self) {
        self.update(|status| {
            if let Some(group) = &mut status.group {
                group.loaded_at = unix_millis();
            }
        });
    }

    /// The group has finished a step, which took as long as `took` on this stage.
    pub(crate) fn group_finished_step(&self, step: u64, took: Duration) {
        self.0.traces.step(&self.snapshot(), step, took);
        self.update(|status| {
            if let Some(group) = status.group.as_mut().filter(|group| group.first_step_at == 0) {
                group.first_step_at = unix_millis();
            }
        });
    }

    /// The group is lost.
    pub(crate) fn group_lost(&self) {
        self.update(|status| status.group = None);
    }

    /// Whether the weights are loaded and the group has formed, or a spare would take a place at once.
    pub(super) fn is_ready(&self) -> bool {
        use StagePhase::{Done, Draining, StandingBy, Training};
        matches!(self.status().phase, StandingBy | Training | Draining | Done)
    }

    /// The status as it is now.
    pub(crate) fn snapshot(&self) -> StageStatus {
        self.status().clone()
    }

    /// How the job stands, in a sentence or two.
    pub(crate) fn standing(&self) -> String {
        standing(&self.status())
    }

    /// The recoveries that this process has seen, the newest last.
    pub(crate) fn recoveries(&self) -> Vec<GroupRecovery> {
        self.0.recoveries.lock().unwrap_or_else(PoisonError::into_inner).all()
    }

    /// The response of `/status` to `query`.
    pub(super) async fn answer(&self, query: StatusQuery) -> StageStatus {
        if let Some(known) = query.revision {
            let mut revision = self.0.revision.subscribe();
            // the sender lives as long as this
            let _ = tokio::time::timeout(query.timeout(), revision.wait_for(|revision| *revision != known)).await;
        }
        self.snapshot()
    }

    /// The response of `/metrics`, in the OpenMetrics text format.
    pub(super) fn openmetrics(&self) -> String {
        let mut text = String::new();
        // writing to a String does not fail
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.0.registry);
        text
    }

    /// Where traces go to.
    pub(super) fn traces(&self) -> &Traces {
        &self.0.traces
    }

    /// Counts a connection that was closed because its peer did not prove that it belongs to the group.
    pub(crate) fn count_rejected_connection(&self) {
        self.0.rejected_connections.inc();
    }

    /// Updates status and metrics.
    pub(crate) fn record(&self, event: &TrainingEvent) {
        self.0.recoveries.lock().unwrap_or_else(PoisonError::into_inner).note_event(event, unix_millis());
        self.0.traces.event(&self.snapshot(), event);
        self.update(|status| match event {
            TrainingEvent::Preparing { what, done, total } => status.message = format!("{what}, {done} of {total}"),
            TrainingEvent::Started(started) => {
                status.message.clear();
                status.progress.steps = Some(started.steps);
                status.progress.step = started.first_step.saturating_sub(1);
                self.0.reproducible.set(started.environment_differences.is_empty().into());
                status.environment_differences = Some(started.environment_differences.clone());
                if !started.audit_differences.is_empty() {
                    let differences = started.audit_differences.clone();
                    status.audit = Some(AuditStatus { differences, suspects: Vec::new() });
                }
            }
            TrainingEvent::Step(record) => {
                let bubble = record.mean_bubble().unwrap_or(0.0);
                let progress = &mut status.progress;
                progress.step = record.step;
                progress.loss = Some(FloatString(record.loss.map_or(f64::NAN, f64::from)).rounded(4));
                let evaluated = record.evaluation_loss.map(|loss| FloatString(loss).rounded(4));
                progress.evaluation_loss = evaluated.or(progress.evaluation_loss);
                progress.tokens_per_second = Some(FloatString(record.tokens_per_second).rounded(1));
                progress.mfu = record.mfu.map(|mfu| FloatString(mfu).rounded(3));
                progress.seconds_per_step = Some(FloatString(record.seconds).rounded(4));
                progress.bubble = Some(FloatString(bubble).rounded(3));
                progress.exposed_communication =
                    record.mean_exposed_communication().map(|share| FloatString(share).rounded(3));
                progress.imbalance = record.largest_imbalance().map(|ratio| FloatString(ratio).rounded(3));
                let left = progress.steps.unwrap_or(record.step).saturating_sub(record.step);
                progress.eta = Some(FloatString(record.seconds * left as f64).rounded(1));
                self.0.step.set(record.step as i64);
                self.0.loss.set(record.loss.map_or(f64::NAN, f64::from));
                self.0.gradient_norm.set(record.gradient_norm.unwrap_or(f64::NAN));
                self.0.tokens_per_second.set(record.tokens_per_second);
                self.0.mfu.set(record.mfu.unwrap_or(0.0));
                self.0.bubble.set(bubble);
                self.0.record_stages(record);
                self.0.tokens.inc_by(record.tokens);
                self.0.skipped.inc_by(u64::from(record.skipped));
                if let Some(copies) = record.memory_checkpoint {
                    self.0.memory_checkpoint_stall.set(copies.stall_seconds);
                    self.0.memory_checkpoint_bytes.inc_by(copies.bytes_sent);
                }
                if let Some(loss) = record.evaluation_loss {
                    self.0.evaluation_loss.set(loss);
                }
                if record.audit.is_some() {
                    self.0.audits.inc();
                    status.audit.get_or_insert_default();
                }
            }
            TrainingEvent::AuditDiffers(difference) => {
                self.0.audit_differences.inc();
                let found = status.audit.get_or_insert_default();
                // not all of them: the operator reads answers up to a size
                keep_audit_difference(&mut found.differences, &difference.message);
                found.suspects.clone_from(&difference.suspects);
            }
            TrainingEvent::Saved(save) => {
                let attempt = Some(status.attempt);
                status.checkpoint = Some(CheckpointStatus { step: save.step, attempt, ..CheckpointStatus::default() });
                status.save_failure = None;
                self.0.checkpoint_step.set(save.step as i64);
                self.0.checkpoint_bytes.set(save.bytes as i64);
                self.0.checkpoint_seconds.set(save.seconds);
                self.0.checkpoint_stall.set(save.stall_seconds);
                self.0.checkpoints.inc();
            }
            TrainingEvent::SaveFailed(save) => {
                status.save_failure = Some(format_save_failure(save));
                self.0.checkpoint_failures.inc();
            }
            TrainingEvent::Note { message } => status.message.clone_from(message),
            TrainingEvent::StageLost { stage, incarnation, has_ended, message } => {
                status.lost = Some(LostStage { stage: *stage, incarnation: *incarnation, has_ended: *has_ended });
                status.message.clone_from(message);
            }
            TrainingEvent::StandingBy { .. } => status.phase = StagePhase::StandingBy,
            TrainingEvent::TookPlace { stage, incarnation, .. } => {
                (status.stage, status.incarnation, status.spare) = (*stage, *incarnation, None);
                status.phase = StagePhase::Preparing;
            }
            TrainingEvent::Finished(_) => status.phase = StagePhase::Done,
        });
    }

    /// Changes the status. Those who wait for news are woken if it is news.
    fn update(&self, change: impl FnOnce(&mut StageStatus)) {
        let mut status = self.status();
        let before = status.clone();
        change(&mut status);
        let recovery =
            self.0.recoveries.lock().unwrap_or_else(PoisonError::into_inner).note_group(status.group.as_ref());
        if let Some(recovery) = recovery {
            self.0.traces.recovery(&status, &recovery);
        }
        if status.is_news_after(&before) {
            status.revision += 1;
            self.0.revision.send_replace(status.revision);
        }
    }

    fn status(&self) -> MutexGuard<'_, StageStatus> {
        self.0.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Milliseconds since 1970.
fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl TelemetryState {
    fn record_stages(&self, record: &StepRecord) {
        for (gauges, values) in [
            (&self.stage_bubble, &record.bubble),
            (&self.stage_exposed_communication, &record.exposed_communication),
            (&self.stage_imbalance, &record.imbalance),
        ] {
            for (stage, value) in values.iter().enumerate() {
                gauges.get_or_create(&[("stage", stage)]).set(*value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stagecoach_api::contract::env;

    use super::super::event_formatter::tests::record;
    use super::*;

    /// The metrics as docs/OPERATIONS.md writes them: `name{label}`, counters with `_total`. The chart's dashboard is held to it.
    #[test]
    fn every_metric_is_documented() {
        let vars =
            [(env::RANK, "0"), (env::WORLD_SIZE, "2"), (env::JOB, "j"), (env::JOB_UID, "u"), (env::ATTEMPT, "1")];
        let more = [(env::MASTER_ADDR, "127.0.0.1"), (env::POD_IP, "127.0.0.1"), (env::POD_UID, "p")];
        let telemetry = StageTelemetry::new(&StageEnv::from_vars(vars.into_iter().chain(more)).unwrap());
        let shares = vec![0.5, 0.5];
        let measured = StepRecord {
            bubble: shares.clone(),
            exposed_communication: shares.clone(),
            imbalance: shares,
            ..record(1)
        };
        telemetry.record(&TrainingEvent::Step(measured));
        let text = telemetry.openmetrics();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let registered: BTreeSet<String> = types
            .map(|(name, kind)| {
                let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
                let labels = if text.contains(&format!("\n{name}{{stage=")) { "{stage}" } else { "" };
                name + labels
            })
            .collect();
        let (_, section) =
            include_str!("../../../docs/OPERATIONS.md").split_once("The trainers', at port 9090").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
        let names = cells.flat_map(|(cell, _)| cell.split('`').filter(|name| name.starts_with("stagecoach_")));
        assert_eq!(names.map(str::to_owned).collect::<BTreeSet<String>>(), registered);
    }
}
