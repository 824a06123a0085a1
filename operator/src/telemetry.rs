//! Prometheus metrics. Labels have few possible values, because each combination of values is a separate time series.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::reflector::Store;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::JobPhase;
use stagecoach_lifecycle::{AttemptFailure, JobState, UnixMillis};

use crate::job::{self, RawPipelineJob};
use crate::status::{self, StatusInputs};
use crate::sync::{PerJob, lock};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: String,
}

/// The operator's metrics. Each metric has the name of its field. The struct is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Telemetry {
    registry: Arc<Registry>,
    jobs: Family<PhaseLabel, Gauge>,
    restarts: Family<ReasonLabel, Counter>,
    recovery_seconds: Histogram,
    recovery_phase_seconds: Family<PhaseLabel, Histogram, fn() -> Histogram>,
    steps_lost: Counter,
    reconcile_seconds: Histogram,
    reconcile_errors: Family<ReasonLabel, Counter>,
    watch_errors: Family<KindLabel, Counter>,
    leader: Gauge,
    stores: Arc<Mutex<Vec<Store<RawPipelineJob>>>>,
    /// The time of the failure whose recovery was counted last, by job UID.
    recovered: Arc<PerJob<UnixMillis>>,
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        let mut all = Registry::with_prefix("stagecoach");
        let recovery_buckets = exponential_buckets(0.25, 2.0, 14);
        let phase_buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.01, 2.0, 18));
        let reconcile_buckets = exponential_buckets(0.001, 2.0, 16);
        Telemetry {
            jobs: register(&mut all, "jobs", "Jobs by phase", Family::default()),
            restarts: register(
                &mut all,
                "restarts",
                "Failed attempts after which another attempt started, by root cause",
                Family::default(),
            ),
            recovery_seconds: register(
                &mut all,
                "recovery_seconds",
                "Seconds from a failure until all stages are ready again",
                Histogram::new(recovery_buckets),
            ),
            recovery_phase_seconds: register(
                &mut all,
                "recovery_phase_seconds",
                "Seconds of each phase of a recovery, from the failure to the first new step",
                Family::new_with_constructor(phase_buckets),
            ),
            steps_lost: register(
                &mut all,
                "steps_lost",
                "Finished steps that no checkpoint held when an attempt failed",
                Counter::default(),
            ),
            reconcile_seconds: register(
                &mut all,
                "reconcile_seconds",
                "Seconds that one reconcile took",
                Histogram::new(reconcile_buckets),
            ),
            reconcile_errors: register(
                &mut all,
                "reconcile_errors",
                "Reconciles that failed and were retried",
                Family::default(),
            ),
            watch_errors: register(
                &mut all,
                "watch_errors",
                "Watches that failed and were restarted, by the kind of object",
                Family::default(),
            ),
            leader: register(&mut all, "leader", "Whether this replica is the leader: 1 or 0", Gauge::default()),
            registry: Arc::new(all),
            stores: Arc::default(),
            recovered: Arc::default(),
        }
    }
}

/// Whether the job has continued after `failure`: either the next attempt has started, or replacements of the lost
/// stages have started in the same attempt.
fn is_recovered(failure: &AttemptFailure, state: &JobState) -> bool {
    let is_replaced = state.attempt.number == failure.attempt && !state.incarnations.is_empty();
    is_replaced || state.attempt.number == failure.attempt.saturating_add(1)
}

/// Adds a metric to the registry and returns the metric.
fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

impl Telemetry {
    /// Adds the store of a watch of jobs. The metric `jobs` counts the jobs in all stores.
    pub(crate) fn add_store(&self, store: Store<RawPipelineJob>) {
        lock(&self.stores).push(store);
    }

    /// Returns the UIDs of the existing jobs.
    pub(crate) fn live_job_uids(&self) -> HashSet<String> {
        let stores = lock(&self.stores);
        stores.iter().flat_map(Store::state).filter_map(|job| job.uid()).collect()
    }

    /// Removes the entries of deleted jobs.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.recovered.retain(is_live);
    }

    /// Counts a reconcile. `error` is the reason why the reconcile failed; `None` if it succeeded.
    pub(crate) fn reconciled(&self, took: Duration, error: Option<&str>) {
        self.reconcile_seconds.observe(took.as_secs_f64());
        if let Some(error) = error {
            self.reconcile_errors.get_or_create(&ReasonLabel { reason: error.into() }).inc();
        }
    }

    /// Counts a watch that failed.
    pub(crate) fn watch_failed(&self, kind: &str) {
        self.watch_errors.get_or_create(&KindLabel { kind: kind.into() }).inc();
    }

    /// Counts the restart and the recovery that the written status `new` reports, if it reports any.
    pub(crate) fn status_written(&self, inputs: &StatusInputs, new: &PipelineJobStatus) {
        let (old, state) = (&inputs.job.state, &inputs.decision.state);
        if let Some(failure) = status::new_failure(inputs.job, inputs.decision)
            && state.attempt.number > old.attempt.number
        {
            self.restarts.get_or_create(&ReasonLabel { reason: failure.label() }).inc();
            let saved = state.checkpoint_step.unwrap_or_default();
            self.steps_lost.inc_by(state.max_finished_steps.unwrap_or_default().saturating_sub(saved));
        }
        if new.last_recovery != inputs.job.status.last_recovery
            && let Some(seconds) = inputs.recovery.as_ref().and_then(status::RecoveryTimes::seconds)
        {
            for (phase, seconds) in status::PHASES.into_iter().zip(seconds) {
                self.recovery_phase_seconds.get_or_create(&PhaseLabel { phase: phase.into() }).observe(seconds);
            }
        }
        let recovered = new.phase == Some(JobPhase::Running) && inputs.job.status.phase != Some(JobPhase::Running);
        if let Some(failure) = state.last_failure.as_ref().filter(|failure| recovered && is_recovered(failure, state)) {
            // count the recovery from each failure once: a job also becomes `Running` again after a stage was unready
            // for a moment
            let mut counted = self.recovered.lock();
            let before = counted.insert(inputs.job.reference.uid.clone(), failure.failed_at);
            if before == Some(failure.failed_at) {
                return;
            }
            self.recovery_seconds
                .observe(inputs.pods.observed_at.0.saturating_sub(failure.failed_at.0) as f64 / 1000.0);
        }
    }

    /// Sets whether this replica is the leader.
    pub(crate) fn set_leader(&self, is_leader: bool) {
        self.leader.set(is_leader.into());
    }

    /// Returns the metrics as OpenMetrics text.
    pub(crate) fn encode(&self) -> String {
        // the lock stays held until the text exists, so that a concurrent request does not count the jobs twice
        let stores = lock(&self.stores);
        self.jobs.clear();
        for store in stores.iter() {
            for object in store.state() {
                let phase = job::phase(&object).map_or_else(|| "Unknown".to_owned(), |phase| phase.to_string());
                self.jobs.get_or_create(&PhaseLabel { phase }).inc();
            }
        }
        self.encode_registry()
    }

    fn encode_registry(&self) -> String {
        let mut text = String::new();
        // writing to a string does not fail
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kube::runtime::reflector::store::Writer;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    #[test]
    fn concurrent_requests_count_each_job_once() {
        let telemetry = Telemetry::default();
        let mut writer = Writer::<RawPipelineJob>::default();
        telemetry.add_store(writer.as_reader());
        for name in ["a", "b"] {
            let job = json!({"metadata": {"name": name}, "spec": {}, "status": {"phase": "Running"}});
            writer.apply_watcher_event(&Event::Apply(serde_json::from_value::<RawPipelineJob>(job).unwrap()));
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let text = telemetry.encode();
                        assert!(text.contains("stagecoach_jobs{phase=\"Running\"} 2\n"), "{text}");
                    }
                });
            }
        });
    }

    /// Dashboards and alerts refer to these names.
    #[test]
    fn metrics_keep_their_names_and_labels() {
        let telemetry = Telemetry::default();
        telemetry.reconciled(Duration::from_millis(5), Some("Late"));
        telemetry.restarts.get_or_create(&ReasonLabel { reason: "Killed".into() }).inc();
        let text = telemetry.encode();
        for line in [
            "stagecoach_restarts_total{reason=\"Killed\"} 1",
            "stagecoach_recovery_seconds_count 0",
            "stagecoach_steps_lost_total 0",
            "stagecoach_reconcile_seconds_count 1",
            "stagecoach_reconcile_errors_total{reason=\"Late\"} 1",
            "stagecoach_leader 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        telemetry.jobs.get_or_create(&PhaseLabel { phase: "Running".into() }).inc();
        let text = telemetry.encode_registry();
        assert!(text.contains("stagecoach_jobs{phase=\"Running\"} 1"), "{text}");
    }

    /// Returns the metrics of the registry, written as in docs/REFERENCE.md: as `name{label}`. The name of a counter
    /// ends with `_total`.
    fn registered() -> BTreeSet<String> {
        let telemetry = Telemetry::default();
        telemetry.jobs.get_or_create(&PhaseLabel { phase: "Running".into() }).inc();
        drop(telemetry.recovery_phase_seconds.get_or_create(&PhaseLabel { phase: "joined".into() }));
        telemetry.watch_failed("Pod");
        for family in [&telemetry.restarts, &telemetry.reconcile_errors] {
            family.get_or_create(&ReasonLabel { reason: "Killed".into() }).inc();
        }
        let text = telemetry.encode_registry();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let written = types.map(|(name, kind)| {
            let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
            let sample = if kind == "histogram" { format!("{name}_count{{") } else { format!("{name}{{") };
            let labels = text.lines().find_map(|line| line.strip_prefix(&sample));
            match labels.and_then(|labels| labels.split_once('=')) {
                Some((label, _)) => format!("{name}{{{label}}}"),
                None => name,
            }
        });
        written.collect()
    }

    #[test]
    fn every_metric_is_documented() {
        let text = include_str!("../../docs/REFERENCE.md");
        let (_, section) = text.split_once("\n### Metrics of the operator\n").unwrap();
        let (section, _) = section.split_once("\n### Metrics of the trainer\n").unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let documented: BTreeSet<String> = rows.map(|(metric, _)| metric.to_owned()).collect();
        assert_eq!(documented, registered());
    }
}
