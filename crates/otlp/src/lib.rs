//! Metrics and spans to an OpenTelemetry collector, by OTLP over HTTP, if the environment names one.
//!
//! Metrics are those that a process serves for Prometheus: its OpenMetrics text is read, so that each is registered
//! once. Spans wait in a queue of bounded length for a thread that sends them: whoever adds one never waits for the
//! collector.
#![forbid(unsafe_code)]

mod client;
mod config;
mod exporter;
mod metrics;
mod span;

pub use config::{Config, ConfigError};
pub use exporter::{Exporter, MetricProducer, THREAD};
pub use span::{Span, SpanId, SpanValue, TraceId};
