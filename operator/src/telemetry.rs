//! What is counted, with labels from short lists alone.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::reflector::Store;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::Phase;

use crate::job::{self, JobObject};
use crate::report::{self, Facts};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InPhase {
    phase: String,
}

/// The operator's metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Telemetry {
    registry: Arc<Registry>,
    jobs: Family<InPhase, Gauge>,
    restarts: Family<Reason, Counter>,
    recovery: Histogram,
    steps_lost: Counter,
    reconciles: Histogram,
    errors: Family<Reason, Counter>,
    leader: Gauge,
    stores: Arc<Mutex<Vec<Store<JobObject>>>>,
    /// By job UID: the attempt whose recovery was counted last.
    recovered: Arc<Mutex<HashMap<String, u64>>>,
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        let mut registry = Registry::with_prefix("stagecoach");
        let jobs = Family::default();
        registry.register("jobs", "Jobs by phase", jobs.clone());
        let restarts = Family::default();
        registry.register("restarts", "Failed attempts that were followed by another, by root cause", restarts.clone());
        let recovery = Histogram::new(exponential_buckets(0.25, 2.0, 14));
        registry.register("recovery_seconds", "From a failure until all stages are ready again", recovery.clone());
        let steps_lost = Counter::default();
        registry.register(
            "steps_lost",
            "Finished steps that no checkpoint held when an attempt failed",
            steps_lost.clone(),
        );
        let reconciles = Histogram::new(exponential_buckets(0.001, 2.0, 16));
        registry.register("reconcile_seconds", "What a look at a job takes", reconciles.clone());
        let errors = Family::default();
        registry.register("reconcile_errors", "Looks that failed and were repeated", errors.clone());
        let leader = Gauge::default();
        registry.register("leader", "Whether this replica works: 1 or 0", leader.clone());
        Telemetry {
            registry: Arc::new(registry),
            jobs,
            restarts,
            recovery,
            steps_lost,
            reconciles,
            errors,
            leader,
            stores: Arc::default(),
            recovered: Arc::default(),
        }
    }
}

impl Telemetry {
    /// Counts the jobs of a watch.
    pub(crate) fn count_in(&self, store: Store<JobObject>) {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).push(store);
    }

    /// The UIDs of the jobs of all watches.
    pub(crate) fn living(&self) -> HashSet<String> {
        let stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        stores.iter().flat_map(Store::state).filter_map(|job| job.uid()).collect()
    }

    /// Forgets the jobs that are not among the living.
    pub(crate) fn retain(&self, living: &dyn Fn(&str) -> bool) {
        self.recovered.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| living(uid));
    }

    /// A look at a job is over; `error` says in one word why it failed.
    pub(crate) fn reconciled(&self, took: Duration, error: Option<&str>) {
        self.reconciles.observe(took.as_secs_f64());
        if let Some(error) = error {
            self.errors.get_or_create(&Reason { reason: error.into() }).inc();
        }
    }

    /// A status has landed.
    pub(crate) fn recorded(&self, facts: &Facts, new: &PipelineJobStatus) {
        let (old, state) = (&facts.job.state, &facts.decision.state);
        if let Some(failure) = report::new_failure(facts.job, facts.decision)
            && state.attempt.number > old.attempt.number
        {
            self.restarts.get_or_create(&Reason { reason: failure.label() }).inc();
            let saved = state.checkpoint_step.unwrap_or_default();
            self.steps_lost.inc_by(state.best_step.unwrap_or_default().saturating_sub(saved));
        }
        let recovered = new.phase == Some(Phase::Running) && facts.job.status.phase != Some(Phase::Running);
        if let Some(failure) = state
            .last_failure
            .as_ref()
            .filter(|failure| recovered && failure.attempt.saturating_add(1) == state.attempt.number)
        {
            // a stage that stops being ready for a moment has recovered from nothing
            let mut counted = self.recovered.lock().unwrap_or_else(PoisonError::into_inner);
            let before = counted.insert(facts.job.owner.uid.clone(), state.attempt.number);
            if before == Some(state.attempt.number) {
                return;
            }
            self.recovery.observe(facts.now.0.saturating_sub(failure.failed_at.0) as f64 / 1000.0);
        }
    }

    /// Whether this replica works.
    pub(crate) fn lead(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    /// OpenMetrics text.
    pub(crate) fn encode(&self) -> String {
        self.jobs.clear();
        for store in self.stores.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            for object in store.state() {
                let phase = job::phase(&object).map_or_else(|| "Unknown".to_owned(), |phase| phase.to_string());
                self.jobs.get_or_create(&InPhase { phase }).inc();
            }
        }
        let mut text = String::new();
        // writing to a string does not fail
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dashboards and alerts are written against these names.
    #[test]
    fn metrics_keep_their_names_and_labels() {
        let telemetry = Telemetry::default();
        telemetry.reconciled(Duration::from_millis(5), Some("Late"));
        telemetry.restarts.get_or_create(&Reason { reason: "Killed".into() }).inc();
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
        telemetry.jobs.get_or_create(&InPhase { phase: "Running".into() }).inc();
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &telemetry.registry).unwrap();
        assert!(text.contains("stagecoach_jobs{phase=\"Running\"} 1"), "{text}");
    }
}
