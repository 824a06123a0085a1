use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use prost::Message;

use super::*;

struct FixedMetrics;

impl MetricProducer for FixedMetrics {
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

/// Returns an exporter to `address`.
fn exporter(address: &str) -> Exporter {
    let endpoint = format!("http://{address}");
    let vars = move |name: &str| match name {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(endpoint.clone()),
        "OTEL_EXPORTER_OTLP_HEADERS" => Some("x-key=secret".to_owned()),
        "OTEL_EXPORTER_OTLP_TIMEOUT" => Some("3600000".to_owned()),
        _ => None,
    };
    Exporter::start(OtlpConfig::from_vars(vars).unwrap().unwrap(), FixedMetrics).unwrap()
}

/// Starts a collector that answers each request with the next of `statuses`. The receiver gets the head and the body of
/// each request.
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
    assert_eq!(sent.resource.as_ref().unwrap().attributes, [text_attribute(&("service.name".into(), "test".into()))]);
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
    // after the failure, `flush` returns at once, and the thread sends again later
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
fn an_absent_collector_delays_nothing() {
    // a collector that accepts no connection and sends no answer
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let exporter = exporter(&silent.local_addr().unwrap().to_string());
    // a call that waited for the collector would never return
    (0..3 * MAX_QUEUED_SPANS).for_each(|_| exporter.add(span(1)));
    exporter.flush(Duration::from_millis(50));
    let queue = exporter.0.lock();
    assert!(queue.spans.len() <= MAX_QUEUED_SPANS && queue.dropped > 0, "{} {}", queue.spans.len(), queue.dropped);
}
