//! The queue of spans, and the thread that sends them and the metrics.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans};

use crate::client::{Client, SendError};
use crate::metrics::{self, Interval};
use crate::span::{encode, nanos, text_attribute};
use crate::{Config, Span};

/// The name of the thread that sends.
pub const THREAD: &str = "otlp";
/// How many spans wait at most; more are dropped.
const MOST_WAITING: usize = 2048;
/// How many spans one request has at most, and from how many on they are sent at once.
const BATCH: usize = 512;
/// How long spans wait at most, and how long the thread waits after a failure.
const SPAN_INTERVAL: Duration = Duration::from_secs(5);

/// What is exported besides spans, asked on the exporter's thread.
pub trait Source: Send + 'static {
    /// Attributes of this process, `service.name` among them. Those that the environment gives count before these.
    fn attributes(&self) -> Vec<(String, String)>;

    /// All metrics in the OpenMetrics text format.
    fn openmetrics(&self) -> String;
}

/// Exports until the process ends. Clones share their queue.
#[derive(Clone, Debug)]
pub struct Exporter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// The thread has something to do, or has done it.
    news: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    spans: VecDeque<Span>,
    /// Spans for which there was no room.
    dropped: u64,
    /// Flushes asked for, and done.
    asked: u64,
    flushed: u64,
    /// Whether the last request was in vain.
    is_failing: bool,
}

impl Exporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start(config: Config, source: impl Source) -> std::io::Result<Exporter> {
        let shared = Arc::<Shared>::default();
        let mut worker = Worker {
            shared: shared.clone(),
            client: Client::new(config),
            source,
            started: nanos(SystemTime::now()),
            metrics_at: Instant::now(),
        };
        worker.metrics_at += worker.client.config().metric_interval;
        std::thread::Builder::new().name(THREAD.into()).spawn(move || worker.run())?;
        Ok(Exporter(shared))
    }

    /// Hands over a span. It never waits for the collector: if too many wait, this one is dropped.
    pub fn add(&self, span: Span) {
        let mut queue = self.0.lock();
        if queue.spans.len() >= MOST_WAITING {
            queue.dropped += 1;
            return;
        }
        queue.spans.push_back(span);
        if queue.spans.len() >= BATCH && !queue.is_failing {
            self.0.news.notify_all();
        }
    }

    /// Sends what waits, and all metrics, for `patience` at most, and not at all if the collector did not take what came last.
    pub fn flush(&self, patience: Duration) {
        let mut queue = self.0.lock();
        if queue.is_failing {
            return;
        }
        queue.asked += 1;
        let asked = queue.asked;
        self.0.news.notify_all();
        let is_waiting = |queue: &mut Queue| queue.flushed < asked && !queue.is_failing;
        drop(self.0.news.wait_timeout_while(queue, patience, is_waiting));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Worker<S> {
    shared: Arc<Shared>,
    client: Client,
    source: S,
    /// Nanoseconds since 1970.
    started: u64,
    /// When metrics are due.
    metrics_at: Instant,
}

impl<S: Source> Worker<S> {
    fn run(&mut self) {
        let mut told = None;
        loop {
            let (asked, is_flush) = self.wait();
            // a collector may take the one and not the other
            let spans = self.send_spans();
            let is_due = is_flush || Instant::now() >= self.metrics_at;
            let metrics = if is_due { self.send_metrics() } else { Ok(()) };
            let errors: Vec<SendError> = [spans, metrics].into_iter().filter_map(Result::err).collect();
            let mut queue = self.shared.lock();
            queue.is_failing = errors.iter().any(|error| matches!(error, SendError::Later(_)));
            queue.flushed = asked;
            let dropped = if errors.is_empty() { std::mem::take(&mut queue.dropped) } else { 0 };
            drop(queue);
            self.shared.news.notify_all();
            if dropped > 0 {
                tracing::warn!("{dropped} spans were dropped: too many waited for the collector");
            }
            self.tell(errors.first(), is_due, &mut told);
        }
    }

    /// Says once what is wrong, and once that it is not any more.
    fn tell(&self, error: Option<&SendError>, was_all: bool, told: &mut Option<String>) {
        match error.map(ToString::to_string) {
            Some(error) if told.as_ref() != Some(&error) => {
                tracing::warn!("the collector does not take metrics or traces, nothing else is affected: {error}");
                *told = Some(error);
            }
            None if was_all && told.take().is_some() => tracing::info!("the collector takes metrics and traces again"),
            _ => {}
        }
    }

    /// Waits until there is something to do. Returns the number of flushes that were asked for, and whether one is to be done.
    fn wait(&self) -> (u64, bool) {
        let queue = self.shared.lock();
        let until_metrics = self.metrics_at.saturating_duration_since(Instant::now());
        let patience = if queue.is_failing { SPAN_INTERVAL } else { SPAN_INTERVAL.min(until_metrics) };
        let is_idle =
            |queue: &mut Queue| queue.asked == queue.flushed && (queue.is_failing || queue.spans.len() < BATCH);
        let waited = self.shared.news.wait_timeout_while(queue, patience, is_idle);
        let queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        (queue.asked, queue.asked > queue.flushed)
    }

    /// Sends what waits. What the collector may take later stays.
    fn send_spans(&self) -> Result<(), SendError> {
        loop {
            let batch: Vec<Span> = {
                let mut queue = self.shared.lock();
                let count = queue.spans.len().min(BATCH);
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
            if let Err(SendError::Later(_)) = sent {
                let mut queue = self.shared.lock();
                let room = MOST_WAITING.saturating_sub(queue.spans.len());
                queue.dropped += batch.len().saturating_sub(room) as u64;
                batch.into_iter().take(room).rev().for_each(|span| queue.spans.push_front(span));
            }
            sent?;
        }
    }

    fn send_metrics(&mut self) -> Result<(), SendError> {
        self.metrics_at = Instant::now() + self.client.config().metric_interval;
        let interval = Interval { start: self.started, now: nanos(SystemTime::now()) };
        let metrics = metrics::read(&self.source.openmetrics(), interval);
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope()), metrics, ..ScopeMetrics::default() }];
        let resource_metrics =
            vec![ResourceMetrics { resource: Some(self.resource()), scope_metrics, ..ResourceMetrics::default() }];
        self.client.send("metrics", &ExportMetricsServiceRequest { resource_metrics })
    }

    fn resource(&self) -> Resource {
        let attributes = self.client.config().resource(self.source.attributes());
        Resource { attributes: attributes.iter().map(text_attribute).collect(), ..Resource::default() }
    }
}

fn scope() -> InstrumentationScope {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    InstrumentationScope { name: "stagecoach".to_owned(), version, ..InstrumentationScope::default() }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, channel};

    use prost::Message;

    use super::*;

    struct Fixed;

    impl Source for Fixed {
        fn attributes(&self) -> Vec<(String, String)> {
            vec![("service.name".to_owned(), "test".to_owned())]
        }

        fn openmetrics(&self) -> String {
            "# TYPE stagecoach_step gauge\nstagecoach_step 7\n# EOF\n".to_owned()
        }
    }

    fn span(number: u8) -> Span {
        Span {
            trace: [1; 16],
            id: [number; 8],
            parent: None,
            name: format!("span {number}"),
            start: SystemTime::UNIX_EPOCH,
            end: SystemTime::now(),
            attributes: vec![("step", 3_u64.into()), ("loss", 0.5.into()), ("why", "so".to_owned().into())],
            error: Some("failed".to_owned()),
        }
    }

    /// An exporter to `address`.
    fn exporter(address: &str) -> Exporter {
        let endpoint = format!("http://{address}");
        let vars = move |name: &str| match name {
            "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(endpoint.clone()),
            "OTEL_EXPORTER_OTLP_HEADERS" => Some("x-key=secret".to_owned()),
            _ => None,
        };
        Exporter::start(Config::from_vars(vars).unwrap().unwrap(), Fixed).unwrap()
    }

    /// Answers each request with the next of `statuses`. What it gets: the request's head and body.
    fn collector(statuses: &'static [&'static str]) -> (String, Receiver<(String, Vec<u8>)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for status in statuses {
                let (stream, _) = listener.accept().unwrap();
                sender.send(read_request(&stream)).unwrap();
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                (&stream).write_all(answer.as_bytes()).unwrap();
            }
        });
        (address, receiver)
    }

    fn read_request(stream: &TcpStream) -> (String, Vec<u8>) {
        let (mut reader, mut head) = (BufReader::new(stream), String::new());
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
        }
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.trim().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        (head, body)
    }

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_flush_sends_spans_and_metrics() {
        let (address, requests) = collector(&["200 OK", "200 OK"]);
        let exporter = exporter(&address);
        exporter.add(span(5));
        exporter.flush(PATIENCE);
        let (head, body) = requests.recv_timeout(PATIENCE).unwrap();
        assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
        assert!(head.contains("content-type: application/x-protobuf") && head.contains("x-key: secret"), "{head}");
        let traces = ExportTraceServiceRequest::decode(&*body).unwrap();
        let sent = &traces.resource_spans[0];
        assert_eq!(
            sent.resource.as_ref().unwrap().attributes,
            [text_attribute(&("service.name".into(), "test".into()))]
        );
        assert_eq!((&*sent.scope_spans[0].spans[0].name, sent.scope_spans[0].spans[0].attributes.len()), ("span 5", 3));
        let (head, body) = requests.recv_timeout(PATIENCE).unwrap();
        assert!(head.starts_with("post /v1/metrics http/1.1\r\n"), "{head}");
        let metrics = ExportMetricsServiceRequest::decode(&*body).unwrap();
        assert_eq!(metrics.resource_metrics[0].scope_metrics[0].metrics[0].name, "stagecoach_step");
    }

    #[test]
    fn what_may_be_taken_later_is_sent_again_and_what_is_refused_is_not() {
        let (address, requests) =
            collector(&["503 Service Unavailable", "200 OK", "200 OK", "400 Bad Request", "200 OK", "200 OK"]);
        let exporter = exporter(&address);
        exporter.add(span(1));
        exporter.flush(PATIENCE);
        // after the failure no flush is waited for: the thread tries again by itself
        let names = |count: usize| -> Vec<String> {
            let requests = (0..count).map(|_| requests.recv_timeout(PATIENCE).unwrap());
            let traces = requests.filter(|(head, _)| head.starts_with("post /v1/traces"));
            let spans = traces.map(|(_, body)| ExportTraceServiceRequest::decode(&*body).unwrap());
            spans.map(|request| request.resource_spans[0].scope_spans[0].spans[0].name.clone()).collect()
        };
        assert_eq!(names(3), ["span 1", "span 1"]);
        let is_whole = || !exporter.0.lock().is_failing;
        let deadline = Instant::now() + PATIENCE;
        while !is_whole() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        exporter.add(span(2));
        exporter.flush(PATIENCE);
        exporter.add(span(3));
        exporter.flush(PATIENCE);
        assert_eq!(names(3), ["span 2", "span 3"], "what was refused is not sent again");
    }

    #[test]
    fn nobody_waits_for_a_collector_that_is_away() {
        // it accepts nothing, and answers nothing
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let exporter = exporter(&silent.local_addr().unwrap().to_string());
        let begun = Instant::now();
        (0..3 * MOST_WAITING).for_each(|_| exporter.add(span(1)));
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        exporter.flush(Duration::from_millis(50));
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        let queue = exporter.0.lock();
        assert!(queue.spans.len() <= MOST_WAITING && queue.dropped > 0, "{} {}", queue.spans.len(), queue.dropped);
    }
}
