//! What happened, told to people: events, metrics, progress, the loss curve, the closing words. It decides nothing.
//! `event` says what stage 0 tells; `sink` writes it; `lines` and `progress` show it; `metrics` keeps it; `curve` and
//! `summary` draw the end.

mod board;
pub mod curve;
mod event;
mod human;
mod lines;
mod metrics;
mod pace;
mod progress;
mod serve;
mod sink;
mod summary;

pub use board::Board;
pub use event::{Event, SaveRecord, Started, StepRecord, Summary};
pub use human::{bytes, count, duration, thousands};
pub use lines::Lines;
pub use metrics::{Metrics, MetricsError, read_metrics};
pub use progress::Progress;
pub use serve::serve;
pub use sink::{EVENTS_VARIABLE, Sink};
pub use summary::{Closing, sample};
