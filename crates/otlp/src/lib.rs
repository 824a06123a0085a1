//! Export of metrics and spans to an OpenTelemetry collector, by OTLP over HTTP, if the environment names a collector.
//!
//! The metrics are the ones that a process serves for Prometheus: the exporter reads the process's OpenMetrics text, so
//! each metric is registered once. Spans wait in a queue of bounded length for a thread that sends them, so adding a
//! span never waits for the collector.
#![forbid(unsafe_code)]

mod client;
mod config;
mod exporter;
mod metrics;
mod span;

pub use config::{Config, ConfigError};
pub use exporter::{Exporter, MetricProducer, THREAD};
pub use span::{Span, SpanId, SpanValue, TraceId};
