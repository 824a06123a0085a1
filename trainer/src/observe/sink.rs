//! Where stage 0 writes its events: JSON lines for a launcher, plain lines for a pod's log.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use super::{Event, Lines};

/// The environment variable that chooses: `json` for a launcher; anything else, or nothing, for plain lines.
pub const EVENTS_VARIABLE: &str = "STAGECOACH_EVENTS";

/// Writes events. It never fails: a reader that has gone must not end the training it was watching.
pub struct Sink(Mutex<State>);

struct State {
    /// None once the reader has gone.
    writer: Option<Box<dyn Write + Send>>,
    /// None writes JSON.
    lines: Option<Lines>,
}

impl Sink {
    /// One JSON object a line, to stdout.
    pub fn json() -> Self {
        Self::new(Box::new(io::stdout()), None)
    }

    /// One aligned line of text an event, to stdout.
    pub fn plain() -> Self {
        Self::new(Box::new(io::stdout()), Some(Lines::default()))
    }

    /// JSON or plain, as `EVENTS_VARIABLE` says.
    pub fn from_env() -> Self {
        if std::env::var_os(EVENTS_VARIABLE).is_some_and(|value| value == "json") {
            Self::json()
        } else {
            Self::plain()
        }
    }

    fn new(writer: Box<dyn Write + Send>, lines: Option<Lines>) -> Self {
        Self(Mutex::new(State { writer: Some(writer), lines }))
    }

    /// Writes one event, whole, and flushes.
    pub fn emit(&self, event: &Event) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match &mut state.lines {
            Some(lines) => lines.line(event),
            None => serde_json::to_string(event).ok(),
        };
        let (Some(text), Some(writer)) = (text, &mut state.writer) else { return };
        // One write a line: what another process or thread writes to the same pipe can't land within it.
        let written = writer.write_all(format!("{text}\n").as_bytes()).and_then(|()| writer.flush());
        if let Err(error) = written {
            tracing::warn!("nobody reads this stage's events any more ({error}); training goes on");
            state.writer = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::lines::tests::{record, started};
    use super::*;

    /// Counts writes; fails from the one given on.
    #[derive(Clone, Default)]
    struct Pipe(Arc<Mutex<Vec<Vec<u8>>>>, usize);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut writes = self.0.lock().unwrap();
            writes.push(bytes.to_vec());
            if writes.len() > self.1 { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(bytes.len()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn json_comes_back_as_it_went_one_write_a_line() {
        let pipe = Pipe(Arc::default(), usize::MAX);
        let sink = Sink::new(Box::new(pipe.clone()), None);
        let mut skipped = record(2);
        (skipped.loss, skipped.gradient_norm, skipped.skipped) = (None, Some(f64::NAN), true);
        let events = [
            Event::Preparing { what: "tokenising".into(), done: 1, total: 2 },
            Event::Started(started()),
            Event::Step(record(1)),
            Event::Note { message: "a\nb".into() },
        ];
        events.iter().for_each(|event| sink.emit(event));
        sink.emit(&Event::Step(skipped.clone()));
        let writes = pipe.0.lock().unwrap();
        assert_eq!(writes.len(), 5);
        for (write, event) in writes.iter().zip(&events) {
            assert_eq!(write.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(&serde_json::from_slice::<Event>(write).unwrap(), event);
        }
        // What isn't finite becomes null.
        skipped.gradient_norm = None;
        assert_eq!(serde_json::from_slice::<Event>(&writes[4]).unwrap(), Event::Step(skipped));
    }

    #[test]
    fn a_reader_that_has_gone_is_not_written_to_again() {
        let pipe = Pipe(Arc::default(), 1);
        let sink = Sink::new(Box::new(pipe.clone()), Some(Lines::default()));
        (1..=5).for_each(|step| sink.emit(&Event::Step(record(step))));
        assert_eq!(pipe.0.lock().unwrap().len(), 2);
    }
}
