//! Defines spans, which are timed operations. A span may be a part of another span.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1 as proto;

/// The ID of a trace. At least one byte is not zero.
pub type TraceId = [u8; 16];
/// The ID of a span in its trace. At least one byte is not zero.
pub type SpanId = [u8; 8];

/// A timed operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The trace of the span.
    pub trace: TraceId,
    /// The identifier of the span in the trace.
    pub id: SpanId,
    /// The span of which this span is a part; `None` for the root of the trace.
    pub parent: Option<SpanId>,
    /// The name of the operation, from a small set of names.
    pub name: String,
    /// The start time.
    pub start: SystemTime,
    /// The end time.
    pub end: SystemTime,
    /// Further facts about the operation.
    pub attributes: Vec<(&'static str, SpanValue)>,
    /// The reason why the operation failed; `None` if it succeeded.
    pub error: Option<String>,
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanValue {
    /// A whole number.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A text.
    Text(String),
}

impl From<u64> for SpanValue {
    fn from(value: u64) -> SpanValue {
        SpanValue::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<f64> for SpanValue {
    fn from(value: f64) -> SpanValue {
        SpanValue::Float(value)
    }
}

impl From<String> for SpanValue {
    fn from(value: String) -> SpanValue {
        SpanValue::Text(value)
    }
}

/// Returns a time in nanoseconds since 1970.
pub(crate) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns an attribute with a text as its value.
pub(crate) fn text_attribute((key, value): &(String, String)) -> KeyValue {
    attribute(key, any_value::Value::StringValue(value.clone()))
}

fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// Converts a span to OTLP's form.
pub(crate) fn encode(span: &Span) -> proto::Span {
    let value = |(key, value): &(&'static str, SpanValue)| {
        let value = match value {
            SpanValue::Int(value) => any_value::Value::IntValue(*value),
            SpanValue::Float(value) => any_value::Value::DoubleValue(*value),
            SpanValue::Text(value) => any_value::Value::StringValue(value.clone()),
        };
        attribute(key, value)
    };
    let status = span
        .error
        .as_ref()
        .map(|message| proto::Status { message: message.clone(), code: proto::status::StatusCode::Error.into() });
    proto::Span {
        trace_id: span.trace.to_vec(),
        span_id: span.id.to_vec(),
        parent_span_id: span.parent.map(Vec::from).unwrap_or_default(),
        name: span.name.clone(),
        kind: proto::span::SpanKind::Internal.into(),
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end),
        attributes: span.attributes.iter().map(value).collect(),
        status,
        ..proto::Span::default()
    }
}
