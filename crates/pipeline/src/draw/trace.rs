use super::Panel;
use crate::action::Action;

use std::collections::BTreeMap;

/// Returns the timelines as trace-event JSON, for ui.perfetto.dev and chrome://tracing. Each stage is a process of the
/// trace. Its first thread shows the computations and the actions at the end of the step. Further threads show the
/// messages, with one thread for each chunk and kind of message, and the REDUCE and GATHER actions. Times are in
/// microseconds, as the format requires.
pub fn timeline_trace(panels: &[Panel]) -> String {
    let mut events = Vec::new();
    let ranks =
        panels.iter().flat_map(|panel| panel.timeline.spans.iter().enumerate().map(|ranks| (panel.heading, ranks)));
    for (process, (heading, (rank, spans))) in ranks.enumerate() {
        let title = format!("{heading} stage {rank}");
        events.push(name("process_name", process, 0, title.trim_start()));
        let mut threads: BTreeMap<String, usize> = BTreeMap::from([("compute".to_owned(), 0)]);
        for span in spans {
            let count = threads.len();
            let thread = *threads.entry(thread(span.action)).or_insert(count);
            let (start, length) = (span.start * 1e6, (span.end - span.start) * 1e6);
            events.push(format!(
                r#"{{"name":"{}","cat":"{}","ph":"X","ts":{start},"dur":{length},"pid":{process},"tid":{thread}}}"#,
                span.action,
                span.action.computation_type(),
            ));
        }
        events.extend(threads.iter().map(|(thread, id)| name("thread_name", process, *id, thread)));
    }
    // Every name consists of an action, a number or a plain heading, so no name needs escaping.
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", events.join(",\n"))
}

fn thread(action: Action) -> String {
    match action.item() {
        None if action.is_between_replicas() => action.computation_type().to_owned(),
        Some(item) if !action.is_compute() => format!("{} of chunk {}", action.computation_type(), item.chunk),
        _ => "compute".to_owned(),
    }
}

fn name(event: &str, process: usize, thread: usize, name: &str) -> String {
    format!(r#"{{"name":"{event}","ph":"M","pid":{process},"tid":{thread},"args":{{"name":"{name}"}}}}"#)
}
