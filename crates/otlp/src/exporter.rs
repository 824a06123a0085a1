//! The queue of spans, and the thread that sends the spans and the metrics.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans};

use crate::client::{CollectorClient, ExportError};
use crate::metrics::{self, Interval};
use crate::span::{encode, nanos, text_attribute};
use crate::{OtlpConfig, Span};

/// The name of the thread that sends spans and metrics.
pub const THREAD: &str = "otlp";
/// The largest number of queued spans. Further spans are dropped.
const MAX_QUEUED_SPANS: usize = 2048;
/// The largest number of spans in one request. A queue of this length is sent at once.
const MAX_BATCH_SPANS: usize = 512;
/// The longest time that a span waits in the queue while exports succeed, and the time that the thread waits after a
/// failure.
const SPAN_INTERVAL: Duration = Duration::from_secs(5);

/// Provides the metrics of this process, and the attributes of its resource. The thread of the exporter calls the
/// methods.
pub trait MetricProducer: Send + 'static {
    /// Returns the attributes of this process, including `service.name`. An attribute from the environment takes
    /// precedence.
    fn attributes(&self) -> Vec<(String, String)>;

    /// Returns all metrics in the OpenMetrics text format.
    fn openmetrics(&self) -> String;
}

/// Exports spans and metrics until the process ends. Clones share their queue.
#[derive(Clone, Debug)]
pub struct Exporter(Arc<ExporterShared>);

#[derive(Debug, Default)]
struct ExporterShared {
    queue: Mutex<Queue>,
    /// The condition variable of the queue. Callers notify it when the thread has work, and the thread notifies it when
    /// the work is done.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    spans: VecDeque<Span>,
    /// The number of spans that were dropped because the queue was full.
    dropped: u64,
    /// The number of flushes that callers have requested. The first `flushed` flushes are done.
    requested: u64,
    flushed: u64,
    /// Whether the last export failed with an error that may be temporary.
    is_failing: bool,
}

impl Exporter {
    /// Starts the thread that exports.
    ///
    /// # Errors
    /// Fails if the thread can't be started.
    pub fn start(config: OtlpConfig, producer: impl MetricProducer) -> std::io::Result<Exporter> {
        let shared = Arc::<ExporterShared>::default();
        let mut worker = Worker {
            shared: shared.clone(),
            client: CollectorClient::new(config),
            producer,
            started: nanos(SystemTime::now()),
            metrics_at: Instant::now(),
        };
        worker.metrics_at += worker.client.config().metric_interval;
        std::thread::Builder::new().name(THREAD.into()).spawn(move || worker.run())?;
        Ok(Exporter(shared))
    }

    /// Queues a span, without waiting for the collector. If the queue is full, the span is dropped.
    pub fn add(&self, span: Span) {
        let mut queue = self.0.lock();
        if queue.spans.len() >= MAX_QUEUED_SPANS {
            queue.dropped += 1;
            return;
        }
        queue.spans.push_back(span);
        if queue.spans.len() >= MAX_BATCH_SPANS && !queue.is_failing {
            self.0.changed.notify_all();
        }
    }

    /// Asks the thread to send the queued spans and all metrics, and waits for at most `timeout`. Returns at once if
    /// the last export failed with an error that may be temporary.
    pub fn flush(&self, timeout: Duration) {
        let mut queue = self.0.lock();
        if queue.is_failing {
            return;
        }
        queue.requested += 1;
        let requested = queue.requested;
        self.0.changed.notify_all();
        let is_waiting = |queue: &mut Queue| queue.flushed < requested && !queue.is_failing;
        drop(self.0.changed.wait_timeout_while(queue, timeout, is_waiting));
    }
}

impl ExporterShared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Worker<P> {
    shared: Arc<ExporterShared>,
    client: CollectorClient,
    producer: P,
    /// The time at which the worker started, in nanoseconds since 1970.
    started: u64,
    /// The time of the next export of metrics.
    metrics_at: Instant,
}

impl<P: MetricProducer> Worker<P> {
    fn run(&mut self) {
        let mut logged = None;
        loop {
            let (requested, is_flush) = self.wait();
            // spans and metrics are sent separately, because a collector may accept only one of the two
            let spans = self.send_spans();
            let is_due = is_flush || Instant::now() >= self.metrics_at;
            let metrics = if is_due { self.send_metrics() } else { Ok(()) };
            let errors: Vec<ExportError> = [spans, metrics].into_iter().filter_map(Result::err).collect();
            let mut queue = self.shared.lock();
            queue.is_failing = errors.iter().any(|error| matches!(error, ExportError::Later(_)));
            queue.flushed = requested;
            let dropped = if errors.is_empty() { std::mem::take(&mut queue.dropped) } else { 0 };
            drop(queue);
            self.shared.changed.notify_all();
            if dropped > 0 {
                tracing::warn!("{dropped} spans were dropped: the queue of spans for the collector was full");
            }
            self.log_change(errors.first(), is_due, &mut logged);
        }
    }

    /// Logs each new error once, and logs once that exports succeed again. Success counts only if `was_all` is true,
    /// that is, if the thread has just sent both spans and metrics.
    fn log_change(&self, error: Option<&ExportError>, was_all: bool, logged: &mut Option<String>) {
        match error.map(ToString::to_string) {
            Some(error) if logged.as_ref() != Some(&error) => {
                tracing::warn!("the collector does not accept metrics or traces; training is not affected: {error}");
                *logged = Some(error);
            }
            None if was_all && logged.take().is_some() => {
                tracing::info!("the collector accepts metrics and traces again")
            }
            _ => {}
        }
    }

    /// Waits until there is work or the next export is due. Returns the number of requested flushes, and whether a
    /// flush is pending.
    fn wait(&self) -> (u64, bool) {
        let queue = self.shared.lock();
        let until_metrics = self.metrics_at.saturating_duration_since(Instant::now());
        let timeout = if queue.is_failing { SPAN_INTERVAL } else { SPAN_INTERVAL.min(until_metrics) };
        let is_idle = |queue: &mut Queue| {
            queue.requested == queue.flushed && (queue.is_failing || queue.spans.len() < MAX_BATCH_SPANS)
        };
        let waited = self.shared.changed.wait_timeout_while(queue, timeout, is_idle);
        let queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        (queue.requested, queue.requested > queue.flushed)
    }

    /// Sends the queued spans. Spans that the collector may accept later stay in the queue.
    fn send_spans(&self) -> Result<(), ExportError> {
        loop {
            let batch: Vec<Span> = {
                let mut queue = self.shared.lock();
                let count = queue.spans.len().min(MAX_BATCH_SPANS);
                queue.spans.drain(..count).collect()
            };
            if batch.is_empty() {
                return Ok(());
            }
            let spans = batch.iter().map(encode).collect();
            let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans, ..ScopeSpans::default() }];
            let resource_spans =
                vec![ResourceSpans { resource: Some(self.resource()), scope_spans, ..ResourceSpans::default() }];
            let sent = self.client.send("traces", &ExportTraceServiceRequest { resource_spans });
            if let Err(ExportError::Later(_)) = sent {
                let mut queue = self.shared.lock();
                let free = MAX_QUEUED_SPANS.saturating_sub(queue.spans.len());
                queue.dropped += batch.len().saturating_sub(free) as u64;
                batch.into_iter().take(free).rev().for_each(|span| queue.spans.push_front(span));
            }
            sent?;
        }
    }

    fn send_metrics(&mut self) -> Result<(), ExportError> {
        self.metrics_at = Instant::now() + self.client.config().metric_interval;
        let interval = Interval { start: self.started, now: nanos(SystemTime::now()) };
        let metrics = metrics::read(&self.producer.openmetrics(), interval);
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope()), metrics, ..ScopeMetrics::default() }];
        let resource_metrics =
            vec![ResourceMetrics { resource: Some(self.resource()), scope_metrics, ..ResourceMetrics::default() }];
        self.client.send("metrics", &ExportMetricsServiceRequest { resource_metrics })
    }

    fn resource(&self) -> Resource {
        let attributes = self.client.config().resource(self.producer.attributes());
        Resource { attributes: attributes.iter().map(text_attribute).collect(), ..Resource::default() }
    }
}

fn scope() -> InstrumentationScope {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    InstrumentationScope { name: "stagecoach".to_owned(), version, ..InstrumentationScope::default() }
}

#[cfg(test)]
mod tests;
