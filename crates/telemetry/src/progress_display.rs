//! Shows the progress of a run: a progress bar on a terminal, otherwise a line for each event, or only messages.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use stagecoach_api::visible;
use stagecoach_display::{duration, nats, percent};

use super::event_formatter::{EventFormatter, format_data_wait, format_start};
use super::save_failures::SaveFailures;
use super::{BestEvaluation, StepRecord, TrainingEvent};

const STEPS: &str = "{bar:20.cyan/dim} {pos}/{len}  {wide_msg}";
const BYTES: &str =
    "{bar:20.cyan/dim} {binary_bytes}/{binary_total_bytes}  {wide_msg}  {binary_bytes_per_sec}  eta {eta}";
const UNMEASURED: &str = "{spinner:.cyan} {wide_msg}";

/// Displays the events of a run.
pub struct ProgressDisplay {
    mode: DisplayMode,
    formatter: EventFormatter,
    save_failures: SaveFailures,
    /// The last held-out loss, in nats per token.
    evaluation_loss: Option<f64>,
    best_evaluation: Option<BestEvaluation>,
    restarts: u32,
}

enum DisplayMode {
    Lines(Box<dyn Write + Send>),
    /// Displays only messages, on stderr.
    Notes,
    Bar {
        bar: ProgressBar,
        template: &'static str,
    },
}

impl ProgressDisplay {
    /// Returns a display with a progress bar if stdout is a terminal, otherwise with lines.
    pub fn stdout() -> Self {
        if !io::stdout().is_terminal() {
            return Self::lines(Box::new(io::stdout()));
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
        Self::new(DisplayMode::Bar { bar, template: "" })
    }

    /// Returns a display with a progress bar if stdout is a terminal, otherwise with messages only.
    pub fn notes() -> Self {
        if io::stdout().is_terminal() { Self::stdout() } else { Self::new(DisplayMode::Notes) }
    }

    /// Returns a display that writes a line for each event to `writer`. Write errors are ignored.
    pub fn lines(writer: Box<dyn Write + Send>) -> Self {
        Self::new(DisplayMode::Lines(writer))
    }

    fn new(mode: DisplayMode) -> Self {
        Self {
            mode,
            formatter: EventFormatter::default(),
            save_failures: SaveFailures::default(),
            evaluation_loss: None,
            best_evaluation: None,
            restarts: 0,
        }
    }

    /// Displays an event.
    pub fn update(&mut self, event: &TrainingEvent) {
        let line = self.formatter.format(event);
        if matches!(self.mode, DisplayMode::Lines(_)) {
            if let Some(line) = line {
                self.print_line(&line);
            }
            return;
        }
        use TrainingEvent::{AuditDiffers, Note, SaveFailed, Saved};
        let is_note = matches!(event, Note { .. } | Saved(_) | SaveFailed(_) | AuditDiffers(_));
        if matches!(self.mode, DisplayMode::Notes) && !is_note {
            return;
        }
        match event {
            TrainingEvent::Preparing { what, total: 0, .. } => self.draw(UNMEASURED, 0, 0, what.clone()),
            TrainingEvent::Preparing { what, done, total } => self.draw(BYTES, *done, *total, what.clone()),
            TrainingEvent::Started(started) => {
                self.print_line(&format_start(started));
                self.draw(STEPS, started.first_step.saturating_sub(1), started.steps, String::new());
            }
            TrainingEvent::Step(record) => {
                self.evaluation_loss = record.evaluation_loss.or(self.evaluation_loss);
                self.best_evaluation = record.best_evaluation.or(self.best_evaluation);
                let message = self.bar_message(record);
                if let DisplayMode::Bar { bar, .. } = &self.mode {
                    let steps = bar.length().unwrap_or(record.step);
                    self.draw(STEPS, record.step, steps, message);
                }
            }
            TrainingEvent::Saved(save) => {
                if let Some(failed) = self.save_failures.saved() {
                    self.print_line(&format!("the checkpoint of step {} is saved; {failed}", save.step));
                }
            }
            TrainingEvent::SaveFailed(save) => {
                if let Some(message) = self.save_failures.failed(save) {
                    self.print_line(&message);
                }
            }
            TrainingEvent::AuditDiffers(difference) => self.print_line(&difference.message),
            TrainingEvent::Note { message } => self.print_line(message),
            // the launcher prints how it reacts to these events
            TrainingEvent::StageLost { .. } | TrainingEvent::StandingBy { .. } | TrainingEvent::Promoted { .. } => {}
            TrainingEvent::Finished(_) => self.clear(),
        }
    }

    /// Prints a line, above the bar if there is one.
    pub fn print_line(&mut self, line: &str) {
        // a message may quote a file name or the output of another process, which may contain control characters
        let line = visible(line);
        match &mut self.mode {
            DisplayMode::Lines(writer) => {
                let _ = writeln!(writer, "{line}").and_then(|()| writer.flush());
            }
            DisplayMode::Notes => {
                let _ = writeln!(io::stderr(), "{line}");
            }
            DisplayMode::Bar { bar, .. } => bar.suspend(|| {
                let _ = writeln!(io::stdout(), "{line}");
            }),
        }
    }

    /// Sets the number of restarts so far, and clears the bar of the failed attempt.
    pub fn set_restarts(&mut self, restarts: u32) {
        self.restarts = restarts;
        self.clear();
    }

    /// Removes the bar.
    fn clear(&mut self) {
        if let DisplayMode::Bar { bar, template } = &mut self.mode {
            bar.disable_steady_tick();
            bar.reset();
            bar.finish_and_clear();
            *template = "";
        }
    }

    fn draw(&mut self, new_template: &'static str, position: u64, length: u64, message: String) {
        let DisplayMode::Bar { bar, template } = &mut self.mode else { return };
        if *template != new_template {
            *template = new_template;
            bar.reset();
            // a test checks that the templates, which are constants, parse
            if let Ok(style) = ProgressStyle::with_template(new_template) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            if new_template == STEPS {
                bar.disable_steady_tick();
            } else {
                bar.enable_steady_tick(Duration::from_millis(250));
            }
        }
        bar.set_length(length);
        bar.set_message(message);
        bar.set_position(position);
    }

    fn bar_message(&self, record: &StepRecord) -> String {
        let mut text = format!("loss {}", nats(record.loss.map(f64::from)));
        if let Some(loss) = self.evaluation_loss {
            let best = self.best_evaluation.filter(BestEvaluation::is_earlier);
            let best = best.map_or_else(String::new, |best| format!(", best {}", nats(Some(best.loss))));
            text += &format!(" (held-out {}{best})", nats(Some(loss)));
        }
        // the most important values come first, because a narrow terminal truncates the line
        if let Some(eta) = self.formatter.eta_seconds(record.step) {
            text += &format!("  eta {}", duration(eta));
        }
        text += &format!("  {} tok/s", HumanCount(record.tokens_per_second.round() as u64));
        if let Some(bubble) = record.mean_bubble() {
            text += &format!("  bubble {}", percent(bubble));
        }
        if let Some(wait) = format_data_wait(record) {
            text += &format!("  {wait}");
        }
        match self.restarts {
            0 => text,
            1 => text + "  1 restart",
            restarts => text + &format!("  {restarts} restarts"),
        }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::event_formatter::tests::{record, started};
    use super::*;

    #[test]
    fn the_bar_shows_losses_eta_throughput_and_restarts() {
        let mut display = ProgressDisplay::new(DisplayMode::Bar { bar: ProgressBar::hidden(), template: "" });
        display.set_restarts(2);
        display.update(&TrainingEvent::Preparing { what: "tokenising".into(), done: 1, total: 2 });
        display.update(&TrainingEvent::Started(started()));
        display.update(&TrainingEvent::Step(StepRecord { evaluation_loss: Some(5.25), ..record(119) }));
        display.update(&TrainingEvent::Step(record(120)));
        let DisplayMode::Bar { bar, .. } = &display.mode else { unreachable!() };
        assert_eq!((bar.position(), bar.length()), (120, Some(1000)));
        let message = "loss 5.1234 (held-out 5.2500)  eta 3m 40s  4,812 tok/s  bubble 18%  2 restarts";
        assert_eq!(bar.message(), message);
        let best_evaluation = BestEvaluation::after(BestEvaluation::after(None, 119, 5.25), 121, 5.5);
        display.update(&TrainingEvent::Step(StepRecord { evaluation_loss: Some(5.5), best_evaluation, ..record(121) }));
        let DisplayMode::Bar { bar, .. } = &display.mode else { unreachable!() };
        let message = bar.message();
        assert!(message.starts_with("loss 5.1234 (held-out 5.5000, best 5.2500)  eta"), "{message}");
        display.update(&TrainingEvent::Step(StepRecord { data_wait_seconds: Some(0.125), ..record(122) }));
        let DisplayMode::Bar { bar, .. } = &display.mode else { unreachable!() };
        let message = bar.message();
        assert!(message.ends_with("  bubble 18%  waited 0.1s for data  2 restarts"), "{message}");
    }

    #[test]
    fn a_note_drives_no_terminal() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut display = ProgressDisplay::new(DisplayMode::Lines(Box::new(writer)));
        display.update(&TrainingEvent::Note { message: "corpus/\u{1b}[2J.txt is empty".into() });
        drop(display);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "note   corpus/^[[2J.txt is empty\n");
    }

    #[test]
    fn the_templates_are_templates() {
        for template in [STEPS, BYTES, UNMEASURED] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
