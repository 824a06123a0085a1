//! What users see of a run: events, metrics, progress, the loss curve, the final report. It decides nothing.
//! `event` defines what stage 0 emits; `event_writer` writes it; `event_formatter` and `progress_display` show it;
//! `metrics_file` stores it; `telemetry` and `server` answer `/status` and `/metrics`, `traces` and `otlp` send the same to a
//! collector; `curve` and `run_report` are shown at the end.

pub(crate) mod curve;
mod eta;
mod event;
mod event_formatter;
mod event_writer;
mod group_recovery;
mod metrics_file;
mod mfu;
mod otlp;
mod progress_display;
mod run_report;
mod server;
mod telemetry;
mod tensorboard;
mod timeline_record;
mod traces;

pub(crate) use event::{
    AuditDifference, AuditRecord, MemoryCheckpointRecord, RunSummary, SaveRecord, StartRecord, StepRecord,
    TrainingEvent,
};
pub(crate) use event_writer::{EVENTS_ENV, EventWriter};
pub(crate) use group_recovery::GroupRecovery;
pub(crate) use metrics_file::{MetricsError, MetricsFile, read_metrics};
pub(crate) use mfu::{FlopsUtilization, total_peak_flops};
pub(crate) use telemetry::StageTelemetry;
pub(crate) use tensorboard::EventFile;
pub(crate) use timeline_record::{TimelineRecord, advice, speeds};

pub(crate) use otlp::{export, flush};
pub(crate) use progress_display::ProgressDisplay;
pub(crate) use run_report::{RunReport, format_sample};
pub(crate) use server::{http_port, serve};
