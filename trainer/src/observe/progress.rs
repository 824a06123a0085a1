//! How far a run is, for the person who started it: a bar on a terminal, else a plain line a step.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::human::{duration, nats, percent, thousands};
use super::lines::{describe, mean_bubble, save_failed};
use super::{Event, Lines, StepRecord};

const STEPS: &str = "{bar:20.cyan/dim} {pos}/{len}  {wide_msg}";
const BYTES: &str =
    "{bar:20.cyan/dim} {binary_bytes}/{binary_total_bytes}  {wide_msg}  {binary_bytes_per_sec}  eta {eta}";
const UNMEASURED: &str = "{spinner:.cyan} {wide_msg}";

/// Shows events.
pub struct Progress {
    view: View,
    lines: Lines,
    /// The last held-out loss, in nats.
    held_out: Option<f64>,
    restarts: u32,
}

enum View {
    Plain(Box<dyn Write + Send>),
    Bar { bar: ProgressBar, template: &'static str },
}

impl Progress {
    /// A bar if stdout is a terminal, else plain lines on stdout.
    pub fn on_stdout() -> Self {
        if !io::stdout().is_terminal() {
            return Self::plain(Box::new(io::stdout()));
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
        Self::new(View::Bar { bar, template: "" })
    }

    /// Plain lines; what can't be written is lost.
    pub fn plain(writer: Box<dyn Write + Send>) -> Self {
        Self::new(View::Plain(writer))
    }

    fn new(view: View) -> Self {
        Self { view, lines: Lines::default(), held_out: None, restarts: 0 }
    }

    /// Shows an event.
    pub fn event(&mut self, event: &Event) {
        let line = self.lines.line(event);
        if matches!(self.view, View::Plain(_)) {
            if let Some(line) = line {
                self.say(&line);
            }
            return;
        }
        match event {
            Event::Preparing { what, total: 0, .. } => self.draw(UNMEASURED, 0, 0, what.clone()),
            Event::Preparing { what, done, total } => self.draw(BYTES, *done, *total, what.clone()),
            Event::Started(started) => {
                self.say(&describe(started));
                self.draw(STEPS, started.first_step.saturating_sub(1), started.steps, String::new());
            }
            Event::Step(record) => {
                self.held_out = record.evaluation_loss.or(self.held_out);
                let message = self.beside_the_bar(record);
                if let View::Bar { bar, .. } = &self.view {
                    let steps = bar.length().unwrap_or(record.step);
                    self.draw(STEPS, record.step, steps, message);
                }
            }
            Event::Saved(_) => {}
            Event::SaveFailed(save) => self.say(&save_failed(save)),
            Event::Note { message } => self.say(message),
            Event::Finished(_) => self.clear(),
        }
    }

    /// Says a sentence above the bar.
    pub fn say(&mut self, sentence: &str) {
        match &mut self.view {
            View::Plain(writer) => {
                let _ = writeln!(writer, "{sentence}").and_then(|()| writer.flush());
            }
            View::Bar { bar, .. } => bar.suspend(|| {
                let _ = writeln!(io::stdout(), "{sentence}");
            }),
        }
    }

    /// A new attempt starts, the so-manieth restart.
    pub fn restarted(&mut self, restarts: u32) {
        self.restarts = restarts;
        self.clear();
    }

    /// Takes the bar away.
    pub fn clear(&mut self) {
        if let View::Bar { bar, template } = &mut self.view {
            bar.disable_steady_tick();
            bar.reset();
            bar.finish_and_clear();
            *template = "";
        }
    }

    fn draw(&mut self, wanted: &'static str, done: u64, total: u64, message: String) {
        let View::Bar { bar, template } = &mut self.view else { return };
        if *template != wanted {
            *template = wanted;
            bar.reset();
            // A template of this file's own; were one wrong, the bar would be plainer, not absent.
            if let Ok(style) = ProgressStyle::with_template(wanted) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            if wanted == STEPS {
                bar.disable_steady_tick();
            } else {
                bar.enable_steady_tick(Duration::from_millis(250));
            }
        }
        bar.set_length(total);
        bar.set_message(message);
        bar.set_position(done);
    }

    fn beside_the_bar(&self, record: &StepRecord) -> String {
        let mut text = format!("loss {}", nats(record.loss.map(f64::from)));
        if let Some(held_out) = self.held_out {
            text += &format!(" (held-out {})", nats(Some(held_out)));
        }
        // A narrow terminal cuts the line off: what matters most comes first.
        if let Some(eta) = self.lines.eta(record.step) {
            text += &format!("  eta {}", duration(eta));
        }
        text += &format!("  {} tok/s", thousands(record.tokens_per_second));
        if let Some(bubble) = mean_bubble(record) {
            text += &format!("  bubble {}", percent(bubble));
        }
        match self.restarts {
            0 => text,
            1 => text + "  1 restart",
            restarts => text + &format!("  {restarts} restarts"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::tests::{record, started};
    use super::*;

    #[test]
    fn beside_the_bar_stands_what_matters() {
        let mut progress = Progress::new(View::Bar { bar: ProgressBar::hidden(), template: "" });
        progress.restarted(2);
        progress.event(&Event::Preparing { what: "tokenising".into(), done: 1, total: 2 });
        progress.event(&Event::Started(started()));
        progress.event(&Event::Step(StepRecord { evaluation_loss: Some(5.25), ..record(119) }));
        progress.event(&Event::Step(record(120)));
        let View::Bar { bar, .. } = &progress.view else { unreachable!() };
        assert_eq!((bar.position(), bar.length()), (120, Some(1000)));
        let message = "loss 5.1234 (held-out 5.2500)  eta 3m40s  4,812 tok/s  bubble 18%  2 restarts";
        assert_eq!(bar.message(), message);
    }

    #[test]
    fn the_templates_are_templates() {
        for template in [STEPS, BYTES, UNMEASURED] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
