//! The output of a run for users: events, metrics, progress, the loss curve, the final report. The module makes no
//! decisions. `event` defines the events of stage 0; `event_writer` writes them; `event_formatter` and
//! `progress_display` show them; `metrics_file` stores them. `telemetry` serves the cluster and collectors. `curve` and
//! `run_report` are shown at the end.

pub(crate) mod curve;
mod eta;
mod event;
mod event_formatter;
mod event_writer;
mod metrics_file;
mod mfu;
mod progress_display;
mod run_report;
mod save_failures;
mod telemetry;
mod tensorboard;
mod timeline_record;

pub(crate) use event::{
    AuditDifference, AuditRecord, MemoryCheckpointRecord, RunSummary, SaveRecord, StartRecord, StepRecord,
    TrainingEvent,
};
pub(crate) use event_writer::{EVENTS_ENV, EventWriter, has_launcher};
pub(crate) use metrics_file::{MetricsError, MetricsFile, read_metrics};
pub(crate) use mfu::{FlopsUtilization, peak_flops, total_peak_flops};
pub(crate) use progress_display::ProgressDisplay;
pub(crate) use run_report::{RunReport, format_sample};
pub(crate) use telemetry::{GroupRecovery, StageTelemetry, export, flush, http_port, serve};
pub(crate) use tensorboard::EventFile;
pub(crate) use timeline_record::{TimelineRecord, advice, speeds};
