use crate::action::Action;
use crate::timeline::Timeline;
use std::collections::BTreeMap;

/// The timeline as trace-event JSON, for ui.perfetto.dev and chrome://tracing: a process per stage, a thread for its
/// computation and one for each kind of message of each chunk. Times are in microseconds, as the format wants.
pub fn timeline_trace(timeline: &Timeline) -> String {
    let mut events = Vec::new();
    for (rank, spans) in timeline.spans.iter().enumerate() {
        events.push(name("process_name", rank, 0, &format!("stage {rank}")));
        let mut threads: BTreeMap<String, usize> = BTreeMap::from([("compute".to_owned(), 0)]);
        for span in spans {
            let count = threads.len();
            let thread = *threads.entry(thread(span.action)).or_insert(count);
            let (start, length) = (span.start * 1e6, (span.end - span.start) * 1e6);
            events.push(format!(
                r#"{{"name":"{}","cat":"{}","ph":"X","ts":{start},"dur":{length},"pid":{rank},"tid":{thread}}}"#,
                span.action,
                span.action.computation_type(),
            ));
        }
        events.extend(threads.iter().map(|(thread, id)| name("thread_name", rank, *id, thread)));
    }
    // Every name is made of an action or a number: nothing in it needs escaping.
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", events.join(",\n"))
}

fn thread(action: Action) -> String {
    match action.item() {
        Some(item) if !action.is_compute() => format!("{} of chunk {}", action.computation_type(), item.chunk),
        _ => "compute".to_owned(),
    }
}

fn name(event: &str, rank: usize, thread: usize, name: &str) -> String {
    format!(r#"{{"name":"{event}","ph":"M","pid":{rank},"tid":{thread},"args":{{"name":"{name}"}}}}"#)
}
