//! Status, metrics and traces of a stage: `server` answers `/status` and `/metrics`, `otlp` sends metrics and traces to
//! a collector.

mod group_recovery;
mod metrics;
mod otlp;
mod server;
mod status;
mod traces;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stagecoach_api::contract::{GroupStatus, StageEnv, StagePhase, StageStatus, StatusQuery};
use tokio::sync::watch;

use super::TrainingEvent;
pub use group_recovery::GroupRecovery;
use group_recovery::{GroupRecoveries, status_text};
use metrics::StageMetrics;
pub use otlp::{export, flush};
pub use server::{http_port, serve};
use traces::Traces;

/// Status and metrics of a stage. Clones share their state.
#[derive(Clone, Debug)]
pub struct StageTelemetry(Arc<TelemetryState>);

#[derive(Debug)]
struct TelemetryState {
    status: Mutex<StageStatus>,
    recoveries: Mutex<GroupRecoveries>,
    traces: Traces,
    /// The revision of the status. Requests that wait for another revision subscribe to it.
    revision: watch::Sender<u64>,
    metrics: StageMetrics,
}

impl StageTelemetry {
    /// Returns the telemetry of the stage that `env` describes.
    pub fn new(env: &StageEnv) -> StageTelemetry {
        let status = StageStatus {
            job_uid: env.job_uid.clone(),
            attempt: env.attempt,
            pod_uid: env.pod_uid.clone(),
            stage: env.rank,
            incarnation: env.incarnation,
            spare: env.spare,
            ..StageStatus::default()
        };
        StageTelemetry(Arc::new(TelemetryState {
            status: Mutex::new(status),
            recoveries: Mutex::new(GroupRecoveries::new(env, unix_millis())),
            traces: Traces::new(env),
            revision: watch::Sender::new(0),
            metrics: StageMetrics::new(),
        }))
    }

    /// Sets the stage's phase.
    pub fn set_phase(&self, phase: StagePhase) {
        self.update(|status| {
            status.phase = phase;
            if phase == StagePhase::Training {
                status.lost = None;
            }
        });
    }

    /// Records that this stage leads the group (the processes that train together) that is about to form. `fence` is
    /// the number of the group's fence, its right to commit checkpoints.
    pub fn set_leader(&self, fence: u64) {
        self.update(|status| status.leader_fence = fence);
    }

    /// Records that the stages of the group with this fence are connected. `ranks` has the members' ranks, the leader
    /// first. `incarnations` has, for each rank of the attempt, the number of the rank's process in the attempt, or
    /// `None` if the group lacks the rank.
    pub fn group_joined(&self, fence: u64, ranks: &[usize], incarnations: Vec<Option<u32>>) {
        self.0.traces.set_ranks(ranks.iter().map(|&rank| rank as u32).collect());
        let joined = GroupStatus { fence, incarnations, joined_at: unix_millis(), ..GroupStatus::default() };
        self.update(|status| status.group = Some(joined));
    }

    /// Records that the group has loaded its state.
    pub fn group_loaded(&self) {
        self.update(|status| {
            if let Some(group) = &mut status.group {
                group.loaded_at = unix_millis();
            }
        });
    }

    /// Records that the group has finished a step. `took` is the duration of the step on this stage.
    pub fn group_finished_step(&self, step: u64, took: Duration) {
        self.0.traces.step(&self.snapshot(), step, took);
        self.update(|status| {
            if let Some(group) = status.group.as_mut().filter(|group| group.first_step_at == 0) {
                group.first_step_at = unix_millis();
            }
        });
    }

    /// Records that the group is lost.
    pub fn group_lost(&self) {
        self.update(|status| status.group = None);
    }

    /// Whether the stage has loaded its weights and its group has formed, or the process is a spare that can replace a
    /// stage at once.
    fn is_ready(&self) -> bool {
        use StagePhase::{Done, Draining, StandingBy, Training};
        matches!(self.status().phase, StandingBy | Training | Draining | Done)
    }

    /// Returns the current status.
    pub fn snapshot(&self) -> StageStatus {
        self.status().clone()
    }

    /// Describes the job's status in a sentence or two.
    pub fn status_text(&self) -> String {
        status_text(&self.status())
    }

    /// Returns the recoveries that this process has observed, the newest last.
    pub fn recoveries(&self) -> Vec<GroupRecovery> {
        self.lock_recoveries().all()
    }

    /// Returns the response of `/status` to `query`. A query with a revision waits until the status has another
    /// revision, or the query's timeout ends.
    async fn answer(&self, query: StatusQuery) -> StageStatus {
        if let Some(known) = query.revision {
            let mut revision = self.0.revision.subscribe();
            // the wait for the revision can't fail: `self` keeps the sender alive
            let _ = tokio::time::timeout(query.timeout(), revision.wait_for(|revision| *revision != known)).await;
        }
        self.snapshot()
    }

    /// Returns the response of `/metrics`, in the OpenMetrics text format.
    fn openmetrics(&self) -> String {
        self.0.metrics.openmetrics()
    }

    /// Returns the sender of traces.
    fn traces(&self) -> &Traces {
        &self.0.traces
    }

    /// Counts a connection that was closed because its peer did not prove its membership of the group.
    pub fn count_rejected_connection(&self) {
        self.0.metrics.count_rejected_connection();
    }

    /// Updates the status, the metrics and the traces for an event.
    pub fn record(&self, event: &TrainingEvent) {
        self.lock_recoveries().note_event(event, unix_millis());
        self.0.traces.event(&self.snapshot(), event);
        self.0.metrics.record(event);
        self.update(|status| status::record(status, event));
    }

    /// Changes the status. If the change is news ([`StageStatus::is_news_after`]), increments the revision and wakes
    /// the requests that wait for a new revision.
    fn update(&self, change: impl FnOnce(&mut StageStatus)) {
        let mut status = self.status();
        let before = status.clone();
        change(&mut status);
        let recovery = self.lock_recoveries().note_group(status.group.as_ref());
        if let Some(recovery) = recovery {
            self.0.traces.recovery(&status, &recovery);
        }
        if status.is_news_after(&before) {
            status.revision += 1;
            self.0.revision.send_replace(status.revision);
        }
    }

    fn lock_recoveries(&self) -> MutexGuard<'_, GroupRecoveries> {
        self.0.recoveries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> MutexGuard<'_, StageStatus> {
        self.0.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the current time in milliseconds since 1970.
fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
