//! An event as a line of text: aligned for the eye, one event a line for grep.

use super::human::{bytes, count, duration, nats, percent, thousands};
use super::pace::Pace;
use super::{Event, SaveRecord, Started, StepRecord, Summary};

/// Renders events one after another. What came before decides how: a step is counted against the job's steps, and
/// preparation is told by tenths rather than by every report.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    steps: u64,
    pace: Pace,
    /// What is being prepared, and the tenth that was told last.
    told: Option<(String, u64)>,
}

impl Lines {
    /// The event's line, without a line feed; none if it brings nothing new.
    pub fn line(&mut self, event: &Event) -> Option<String> {
        match event {
            Event::Preparing { what, done, total } => self.preparing(what, *done, *total),
            Event::Started(started) => {
                self.steps = started.steps;
                self.pace = Pace::default();
                self.told = None;
                Some(format!("start  {}", describe(started)))
            }
            Event::Step(record) => {
                self.pace.saw(record);
                Some(self.step(record))
            }
            // One event is one line, whatever the sentence holds.
            Event::Saved(SaveRecord { step, bytes: size, seconds, stall_seconds, .. }) => {
                let [took, waited] = [seconds, stall_seconds].map(|seconds| format!("{:.1}s", seconds));
                Some(format!(
                    "saved  the checkpoint of step {step}, {} in {took}, {waited} of it waited for",
                    bytes(*size)
                ))
            }
            Event::SaveFailed(save) => Some(format!("note   {}", save_failed(save).replace('\n', " "))),
            Event::Note { message } => Some(format!("note   {}", message.replace('\n', " "))),
            Event::Finished(summary) => Some(finished(summary)),
        }
    }

    fn preparing(&mut self, what: &str, done: u64, total: u64) -> Option<String> {
        let tenth = (done.min(total) * 10).checked_div(total).unwrap_or(0);
        if self.told.as_ref().is_some_and(|(told, last)| told == what && *last == tenth) {
            return None;
        }
        self.told = Some((what.to_owned(), tenth));
        let amount = if total == 0 { String::new() } else { format!("  {} of {}", bytes(done), bytes(total)) };
        Some(format!("prep   {what}{amount}"))
    }

    fn step(&self, record: &StepRecord) -> String {
        let width = self.steps.to_string().len();
        let mut line = format!("step   {:>width$}/{}  {}", record.step, self.steps, measured(record));
        if let Some(eta) = self.eta(record.step) {
            line += &format!("  eta {}", duration(eta));
        }
        if let Some(loss) = record.evaluation_loss {
            line += &format!("  held-out {}", nats(Some(loss)));
        }
        if record.skipped {
            line += "  skipped (loss or gradient is not finite)";
        }
        line
    }

    /// Seconds from a step to the last one.
    pub(super) fn eta(&self, step: u64) -> Option<f64> {
        self.pace.eta(self.steps.saturating_sub(step))
    }
}

/// What a step measured, in columns.
fn measured(record: &StepRecord) -> String {
    let norm = record.gradient_norm.map_or("-".into(), |norm| format!("{norm:.2}"));
    format!(
        "loss {}  lr {:.1e}  norm {norm}  {} tok/s  bubble {:>3}",
        nats(record.loss.map(f64::from)),
        record.learning_rate,
        thousands(record.tokens_per_second),
        mean_bubble(record).map_or("-".into(), percent),
    )
}

/// The mean over stages.
pub(super) fn mean_bubble(record: &StepRecord) -> Option<f64> {
    (!record.bubble.is_empty()).then(|| record.bubble.iter().sum::<f64>() / record.bubble.len() as f64)
}

/// What will run, in one line.
pub(super) fn describe(started: &Started) -> String {
    let layers: Vec<String> = started.partition.iter().map(usize::to_string).collect();
    let plural = if started.stages == 1 { "" } else { "s" };
    let mut line = format!(
        "steps {} to {}  {} stage{plural}  {} x {} microbatches  layers {}  {} parameters  {} tokens  {} words  expected bubble {}",
        started.first_step,
        started.steps,
        started.stages,
        started.schedule,
        started.microbatches,
        layers.join("/"),
        count(started.parameters),
        count(started.tokens),
        thousands(started.vocab_size as f64),
        percent(started.expected_bubble),
    );
    if let Some(entropy) = started.unigram_entropy {
        line += &format!("  unigram entropy {entropy:.4}");
    }
    line
}

/// The sentence for a save that failed.
pub(super) fn save_failed(save: &SaveRecord) -> String {
    let why = save.error.as_deref().unwrap_or("no reason was told");
    format!("the checkpoint of step {} failed: {why}; older ones stay, the next one is tried as planned", save.step)
}

fn finished(summary: &Summary) -> String {
    let mut line = format!("done   {} steps  loss {}", summary.steps, nats(summary.loss.map(f64::from)));
    if let Some(loss) = summary.evaluation_loss {
        line += &format!("  held-out {}", nats(Some(loss)));
    }
    if let Some(entropy) = summary.unigram_entropy {
        line += &format!("  unigram entropy {entropy:.4}");
    }
    if summary.skipped > 0 {
        line += &format!("  skipped {}", summary.skipped);
    }
    line + &format!("  losses {}  weights {}  model {}", summary.losses_hash, summary.weights_hash, summary.model)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::observe) fn started() -> Started {
        Started {
            stages: 3,
            schedule: "1F1B".into(),
            partition: vec![5, 6, 1],
            microbatches: 8,
            first_step: 1,
            steps: 1000,
            parameters: 4_213_000,
            tokens: 1_240_000,
            vocab_size: 4096,
            expected_bubble: 0.2,
            unigram_entropy: Some(6.03214),
        }
    }

    pub(in crate::observe) fn record(step: u64) -> StepRecord {
        StepRecord {
            step,
            loss: Some(5.12341),
            gradient_norm: Some(0.8123),
            learning_rate: 3e-4,
            tokens: 4096,
            tokens_per_second: 4812.3,
            seconds: 0.25,
            bubble: vec![0.1, 0.2, 0.24],
            ..StepRecord::default()
        }
    }

    #[test]
    fn steps_are_aligned() {
        let mut lines = Lines::default();
        let start = lines.line(&Event::Started(started())).unwrap();
        assert!(
            start.starts_with("start  steps 1 to 1000  3 stages  1F1B x 8 microbatches  layers 5/6/1  4.21M par"),
            "{start}"
        );
        let line = lines.line(&Event::Step(record(120))).unwrap();
        assert_eq!(line, "step    120/1000  loss 5.1234  lr 3.0e-4  norm 0.81  4,812 tok/s  bubble 18%  eta 3m40s");
        let special = StepRecord {
            loss: None,
            gradient_norm: None,
            bubble: vec![],
            evaluation_loss: Some(4.5),
            skipped: true,
            ..record(121)
        };
        let line = lines.line(&Event::Step(special)).unwrap();
        assert!(line.contains("loss not finite") && line.contains("norm -") && line.contains("bubble   -"), "{line}");
        assert!(line.ends_with("held-out 4.5000  skipped (loss or gradient is not finite)"), "{line}");
    }

    #[test]
    fn preparation_is_told_by_tenths() {
        let mut lines = Lines::default();
        let mut told = 0;
        for done in 0..=1000 {
            told +=
                usize::from(lines.line(&Event::Preparing { what: "tokenising".into(), done, total: 1000 }).is_some());
        }
        assert_eq!(told, 11);
        let unmeasured = Event::Preparing { what: "saving the model".into(), done: 0, total: 0 };
        assert_eq!(lines.line(&unmeasured).as_deref(), Some("prep   saving the model"));
        assert_eq!(lines.line(&unmeasured), None);
    }

    #[test]
    fn an_event_is_one_line() {
        let line = Lines::default().line(&Event::Note { message: "one\ntwo".into() });
        assert_eq!(line.as_deref(), Some("note   one two"));
    }
}
