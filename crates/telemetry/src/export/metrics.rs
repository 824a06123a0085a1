//! The Prometheus metrics of a stage.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::super::{MemoryCheckpointRecord, SaveRecord, StepRecord, TrainingEvent};

type FloatGauge = Gauge<f64, AtomicU64>;
type FloatCounter = Counter<f64, AtomicU64>;
/// Gauges with the stage as a label: `stage="0"` and so on.
type StageGauges = Family<[(&'static str, usize); 1], FloatGauge>;
/// Gauges with a name as a label, such as `source="web"` or `set="code"`.
type NameGauges = Family<[(&'static str, String); 1], FloatGauge>;

/// All metrics of a stage.
#[derive(Debug)]
pub(super) struct StageMetrics {
    registry: Registry,
    step: StepMetrics,
    checkpoint: CheckpointMetrics,
    rejected_connections: Counter,
    audits: Counter,
    audit_differences: Counter,
    reproducible: Gauge,
}

/// The metrics of the last step, and the sums over steps.
#[derive(Debug)]
struct StepMetrics {
    step: Gauge,
    loss: FloatGauge,
    evaluation_loss: FloatGauge,
    evaluation_set_loss: NameGauges,
    best_evaluation_loss: FloatGauge,
    source_loss: NameGauges,
    gradient_norm: FloatGauge,
    tokens_per_second: FloatGauge,
    mfu: FloatGauge,
    bubble: FloatGauge,
    stage_bubble: StageGauges,
    stage_exposed_communication: StageGauges,
    stage_imbalance: StageGauges,
    tokens: Counter,
    data_wait_seconds: FloatCounter,
    skipped_steps: Counter,
}

/// The metrics of checkpoints on the volume and in memory.
#[derive(Debug)]
struct CheckpointMetrics {
    step: Gauge,
    bytes: Gauge,
    save_seconds: FloatGauge,
    stall_seconds: FloatGauge,
    memory_stall_seconds: FloatGauge,
    memory_sent_bytes: Counter,
    committed: Counter,
    failures: Counter,
}

impl StageMetrics {
    pub(crate) fn new() -> StageMetrics {
        let mut registry = Registry::with_prefix("stagecoach");
        let all = &mut registry;
        let step = StepMetrics::new(all);
        let checkpoint = CheckpointMetrics::new(all);
        let rejected = "Connections of peers that did not prove that they belong to the group";
        let rejected_connections = register(all, "rejected_connections", rejected);
        let audits = register(all, "audits", "Microbatches that a second stage has computed again");
        let audit_differences =
            register(all, "audit_differences", "Audited microbatches whose recomputed result differs");
        let help = "1 if the run was trained in one environment so far, 0 if its results may differ from those of a \
                    run in one environment";
        let reproducible: Gauge = register(all, "reproducible", help);
        reproducible.set(1);
        StageMetrics { registry, step, checkpoint, rejected_connections, audits, audit_differences, reproducible }
    }

    /// Returns the metrics in the OpenMetrics text format.
    pub(super) fn openmetrics(&self) -> String {
        let mut text = String::new();
        // writing to a String does not fail
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }

    pub(crate) fn count_rejected_connection(&self) {
        self.rejected_connections.inc();
    }

    /// Updates the metrics that an event affects.
    pub(crate) fn record(&self, event: &TrainingEvent) {
        match event {
            TrainingEvent::Started(started) => {
                self.reproducible.set(started.environment_differences.is_empty().into());
            }
            TrainingEvent::Step(record) => {
                self.step.record(record);
                if let Some(copies) = record.memory_checkpoint {
                    self.checkpoint.record_copies(copies);
                }
                self.audits.inc_by(record.audit.is_some().into());
            }
            TrainingEvent::AuditDiffers(_) => {
                self.audit_differences.inc();
            }
            TrainingEvent::Saved(save) => self.checkpoint.record_save(save),
            TrainingEvent::SaveFailed(_) => {
                self.checkpoint.failures.inc();
            }
            TrainingEvent::Preparing { .. }
            | TrainingEvent::Note { .. }
            | TrainingEvent::StageLost { .. }
            | TrainingEvent::StandingBy { .. }
            | TrainingEvent::Promoted { .. }
            | TrainingEvent::Finished(_) => {}
        }
    }
}

impl StepMetrics {
    fn new(all: &mut Registry) -> StepMetrics {
        let mfu = "Model FLOPs utilization of the last step on GPUs whose peak is known, else 0";
        let bubble = "Share of the last step without computation, mean of all stages";
        let exposed = "Part of the bubble during which the next input was in transit";
        let imbalance = "Computation time in the last step, divided by the mean of all stages";
        let data_wait = "Time for which this process waited for the data of steps, while it streams the corpus";
        StepMetrics {
            step: register(all, "step", "Steps complete"),
            loss: register(all, "loss", "Training loss of the last step, in nats per token"),
            evaluation_loss: register(all, "evaluation_loss", "Held-out loss, in nats per token"),
            evaluation_set_loss: register(all, "evaluation_set_loss", "Loss on a held-out set, in nats per token"),
            best_evaluation_loss: register(all, "best_evaluation_loss", "Lowest held-out loss, in nats per token"),
            source_loss: register(
                all,
                "source_loss",
                "Training loss of a source in the last step that contained the source, in nats per token",
            ),
            gradient_norm: register(all, "gradient_norm", "Gradient norm of the last step, before clipping"),
            tokens_per_second: register(all, "tokens_per_second", "Target tokens per second"),
            mfu: register_in(Unit::Ratios, all, "mfu", mfu),
            bubble: register_in(Unit::Ratios, all, "bubble", bubble),
            stage_bubble: register_in(Unit::Ratios, all, "stage_bubble", "Share of the last step without computation"),
            stage_exposed_communication: register_in(Unit::Ratios, all, "stage_exposed_communication", exposed),
            stage_imbalance: register_in(Unit::Ratios, all, "stage_imbalance", imbalance),
            tokens: register(all, "tokens", "Target tokens trained on by this process"),
            data_wait_seconds: register_in(Unit::Seconds, all, "data_wait", data_wait),
            skipped_steps: register(all, "skipped_steps", "Steps whose update was skipped"),
        }
    }

    fn record(&self, record: &StepRecord) {
        self.step.set(record.step as i64);
        self.loss.set(record.loss.map_or(f64::NAN, f64::from));
        if let Some(loss) = record.evaluation_loss {
            self.evaluation_loss.set(loss);
        }
        for (set, loss) in &record.evaluation_set_losses {
            self.evaluation_set_loss.get_or_create(&[("set", set.clone())]).set(*loss);
        }
        if let Some(best) = record.best_evaluation {
            self.best_evaluation_loss.set(best.loss);
        }
        for (source, loss) in &record.source_losses {
            self.source_loss.get_or_create(&[("source", source.clone())]).set(*loss);
        }
        self.gradient_norm.set(record.gradient_norm.unwrap_or(f64::NAN));
        self.tokens_per_second.set(record.tokens_per_second);
        self.mfu.set(record.mfu.unwrap_or(0.0));
        self.bubble.set(record.mean_bubble().unwrap_or(0.0));
        for (gauges, values) in [
            (&self.stage_bubble, &record.bubble),
            (&self.stage_exposed_communication, &record.exposed_communication),
            (&self.stage_imbalance, &record.imbalance),
        ] {
            for (stage, value) in values.iter().enumerate() {
                gauges.get_or_create(&[("stage", stage)]).set(*value);
            }
        }
        self.tokens.inc_by(record.tokens);
        self.data_wait_seconds.inc_by(record.data_wait_seconds.unwrap_or(0.0));
        self.skipped_steps.inc_by(record.skipped.into());
    }
}

impl CheckpointMetrics {
    fn new(all: &mut Registry) -> CheckpointMetrics {
        let save = "Wall time of the last save, from the boundary to the commit";
        let memory_stall = "Time of the last step that training waited for copies of checkpoints in memory";
        CheckpointMetrics {
            step: register(all, "checkpoint_step", "Step of the newest checkpoint"),
            bytes: register_in(Unit::Bytes, all, "checkpoint", "Size of the newest checkpoint"),
            save_seconds: register_in(Unit::Seconds, all, "checkpoint_save", save),
            stall_seconds: register_in(
                Unit::Seconds,
                all,
                "checkpoint_stall",
                "Time of the last save for which training waited",
            ),
            memory_stall_seconds: register_in(Unit::Seconds, all, "memory_checkpoint_stall", memory_stall),
            memory_sent_bytes: register_in(
                Unit::Bytes,
                all,
                "memory_checkpoint_sent",
                "Bytes of checkpoint copies sent to the next stage",
            ),
            committed: register(all, "checkpoints", "Checkpoints committed by this process"),
            failures: register(all, "checkpoint_failures", "Saves that failed"),
        }
    }

    fn record_save(&self, save: &SaveRecord) {
        self.step.set(save.step as i64);
        self.bytes.set(save.bytes as i64);
        self.save_seconds.set(save.seconds);
        self.stall_seconds.set(save.stall_seconds);
        self.committed.inc();
    }

    fn record_copies(&self, copies: MemoryCheckpointRecord) {
        self.memory_stall_seconds.set(copies.stall_seconds);
        self.memory_sent_bytes.inc_by(copies.bytes_sent);
    }
}

/// Adds a metric to the registry, and returns the metric.
fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Adds a metric with a unit to the registry, and returns the metric. The unit becomes the suffix of the name.
fn register_in<M: Metric + Clone + Default>(unit: Unit, registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register_with_unit(name, help, unit, metric.clone());
    metric
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::super::event_formatter::tests::record;
    use super::*;

    #[test]
    fn the_wait_for_data_is_a_sum_over_steps() {
        let metrics = StageMetrics::new();
        let sum = || {
            let text = metrics.openmetrics();
            let line = text.lines().find_map(|line| line.strip_prefix("stagecoach_data_wait_seconds_total "));
            line.map(|value| value.parse::<f64>().unwrap())
        };
        assert_eq!(sum(), Some(0.0), "a rate needs a first value");
        for data_wait_seconds in [Some(0.25), None, Some(1.5)] {
            metrics.record(&TrainingEvent::Step(StepRecord { data_wait_seconds, ..record(1) }));
        }
        assert_eq!(sum(), Some(1.75));
    }

    /// Compares the metrics with docs/REFERENCE.md, which writes a metric as `name{label}` and a counter with `_total`.
    /// A test of the Helm chart compares the Grafana dashboard with the same table.
    #[test]
    fn every_metric_is_documented() {
        let metrics = StageMetrics::new();
        let shares = vec![0.5, 0.5];
        let measured = StepRecord {
            bubble: shares.clone(),
            exposed_communication: shares.clone(),
            imbalance: shares,
            evaluation_set_losses: [("code".to_owned(), 2.25)].into(),
            source_losses: [("web".to_owned(), 2.5)].into(),
            ..record(1)
        };
        metrics.record(&TrainingEvent::Step(measured));
        let text = metrics.openmetrics();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let registered: BTreeSet<String> = types
            .map(|(name, kind)| {
                let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
                let has = |label: &&str| text.contains(&format!("\n{name}{{{label}="));
                let label = ["stage", "source", "set"].into_iter().find(has);
                label.map_or(name.clone(), |label| format!("{name}{{{label}}}"))
            })
            .collect();
        let page = include_str!("../../../../docs/REFERENCE.md");
        let (_, section) = page.split_once("\n### Metrics of the trainer\n").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
        let names = cells.flat_map(|(cell, _)| cell.split('`').filter(|name| name.starts_with("stagecoach_")));
        assert_eq!(names.map(str::to_owned).collect::<BTreeSet<String>>(), registered);
    }
}
