//! The output of a run for users: events, metrics, progress, the loss curve, the final report. The crate makes no
//! decisions. `event` defines the events of stages, `event_writer` writes events, and `event_formatter` and
//! `progress_display` show events. `metrics_file` stores the record of each step. `export` serves status and metrics in
//! the cluster, and sends telemetry to collectors. At the end of a run, `curve` draws the loss curve and `run_report`
//! formats the report, which contains the `data_wait` of all steps.

pub mod curve;
mod data_wait;
mod eta;
mod event;
mod event_formatter;
mod event_writer;
mod export;
mod json_paths;
mod metrics_file;
mod mfu;
mod progress_display;
mod receipt;
mod run_report;
mod save_failures;
mod tensorboard;
mod timeline_record;

pub use data_wait::DataWait;
pub use event::{
    AuditDifference, AuditRecord, BestEvaluation, EvaluationRecord, MemoryCheckpointRecord, RunSummary, SaveRecord,
    StartRecord, StepRecord, TrainingEvent, keep_audit_difference,
};
pub use event_writer::{EVENTS_ENV, EventWriter, has_launcher};
pub use export::{GroupRecovery, StageTelemetry, export, flush, http_port, serve};
pub use json_paths::flatten_json;
pub use metrics_file::{MetricsError, MetricsFile, read_metrics};
pub use mfu::{FlopsUtilization, peak_flops, total_peak_flops};
pub use progress_display::ProgressDisplay;
pub use receipt::{Receipt, StepFacts};
pub use run_report::{RunReport, format_sample};
pub use tensorboard::EventFile;
pub use timeline_record::{TimelineRecord, advice, speeds};
