//! Writes a stage's events to stdout: JSON lines for the launcher, text for a pod's log.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use super::TrainingEvent;
use super::event_formatter::EventFormatter;

/// The environment variable that selects the format of events. The value `json` selects JSON, and any other value
/// selects text.
pub const EVENTS_ENV: &str = "STAGECOACH_EVENTS";

/// Whether a launcher on this machine has started this process and reads the events of the process.
pub fn has_launcher() -> bool {
    std::env::var_os(EVENTS_ENV).is_some_and(|value| value == "json")
}

/// Writes events. The writer never fails: training must not end because the reader has closed the pipe.
#[derive(Clone)]
pub struct EventWriter(Arc<Mutex<EventOutput>>);

struct EventOutput {
    /// The output; `None` after the reader has closed the pipe.
    writer: Option<Box<dyn Write + Send>>,
    /// The formatter of text; `None` for JSON.
    formatter: Option<EventFormatter>,
}

impl EventWriter {
    fn json() -> Self {
        Self::new(Box::new(io::stdout()), None)
    }

    fn text() -> Self {
        Self::new(Box::new(io::stdout()), Some(EventFormatter::default()))
    }

    /// Returns a writer to stdout, in the format that `EVENTS_ENV` selects.
    pub fn from_env() -> Self {
        if has_launcher() { Self::json() } else { Self::text() }
    }

    fn new(writer: Box<dyn Write + Send>, formatter: Option<EventFormatter>) -> Self {
        Self(Arc::new(Mutex::new(EventOutput { writer: Some(writer), formatter })))
    }

    /// Writes one event and flushes.
    pub fn emit(&self, event: &TrainingEvent) {
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match &mut output.formatter {
            Some(formatter) => formatter.format(event),
            None => serde_json::to_string(event).ok(),
        };
        let (Some(text), Some(writer)) = (text, &mut output.writer) else { return };
        // other threads and processes write to the same pipe; a single write keeps their output out of the line
        let written = writer.write_all(format!("{text}\n").as_bytes()).and_then(|()| writer.flush());
        if let Err(error) = written {
            tracing::warn!("the reader of this stage's events has closed the pipe ({error}); training continues");
            output.writer = None;
        }
    }
}

#[cfg(test)]
mod tests {

    use super::super::event_formatter::tests::{record, started};
    use super::*;

    /// A pipe that records writes. A write after the given number of writes fails.
    #[derive(Clone, Default)]
    struct RecordingPipe(Arc<Mutex<Vec<Vec<u8>>>>, usize);

    impl Write for RecordingPipe {
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
    fn json_round_trips_in_one_write_per_line() {
        let pipe = RecordingPipe(Arc::default(), usize::MAX);
        let writer = EventWriter::new(Box::new(pipe.clone()), None);
        let mut skipped = record(2);
        (skipped.loss, skipped.gradient_norm, skipped.skipped) = (None, Some(f64::NAN), true);
        let events = [
            TrainingEvent::Preparing { what: "tokenising".into(), done: 1, total: 2 },
            TrainingEvent::Started(started()),
            TrainingEvent::Step(record(1)),
            TrainingEvent::Note { message: "a\nb".into() },
        ];
        events.iter().for_each(|event| writer.emit(event));
        writer.emit(&TrainingEvent::Step(skipped.clone()));
        let writes = pipe.0.lock().unwrap();
        assert_eq!(writes.len(), 5);
        for (write, event) in writes.iter().zip(&events) {
            assert_eq!(write.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(&serde_json::from_slice::<TrainingEvent>(write).unwrap(), event);
        }
        // numbers that are not finite become null
        skipped.gradient_norm = None;
        assert_eq!(serde_json::from_slice::<TrainingEvent>(&writes[4]).unwrap(), TrainingEvent::Step(skipped));
    }

    #[test]
    fn nothing_is_written_after_the_reader_has_closed_the_pipe() {
        let pipe = RecordingPipe(Arc::default(), 1);
        let writer = EventWriter::new(Box::new(pipe.clone()), Some(EventFormatter::default()));
        (1..=5).for_each(|step| writer.emit(&TrainingEvent::Step(record(step))));
        assert_eq!(pipe.0.lock().unwrap().len(), 2);
    }
}
