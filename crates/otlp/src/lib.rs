//! Exports metrics and spans to an OpenTelemetry collector by OTLP over HTTP, if the environment names a collector.
//!
//! The process serves the same metrics for Prometheus. The exporter reads the OpenMetrics text of the process, so each
//! metric is registered only once. Spans wait in a queue of bounded length. A separate thread sends them, so the code
//! that adds a span never waits for the collector.
#![forbid(unsafe_code)]

mod client;
mod config;
mod exporter;
mod metrics;
mod span;

pub use config::{OtlpConfig, OtlpConfigError};
pub use exporter::{Exporter, MetricProducer, THREAD};
pub use span::{Span, SpanId, SpanValue, TraceId};
