//! The last lines of a run.

use std::fmt::Write;
use std::path::Path;

use super::Summary;
use super::human::{duration, nats};

/// All that the last lines say.
#[derive(Clone, Copy, Debug)]
pub struct Closing<'a> {
    /// The job's name.
    pub job: &'a str,
    /// What stage 0 found.
    pub summary: &'a Summary,
    /// Restarts of the group.
    pub restarts: u32,
    /// Wall seconds of the run; none if the result is only shown again.
    pub seconds: Option<f64>,
    /// The model's folder.
    pub model: &'a Path,
    /// The loss curve.
    pub curve: &'a Path,
    /// `metrics.jsonl`.
    pub metrics: &'a Path,
}

impl Closing<'_> {
    /// The block of lines, each ended.
    pub fn text(&self) -> String {
        let Self { job, summary, restarts, seconds, model, curve, metrics } = *self;
        let mut text = format!("{job}: {} steps", summary.steps);
        if let Some(seconds) = seconds {
            text += &format!(" in {}", duration(seconds));
        }
        text += &match restarts {
            0 => String::new(),
            1 => ", 1 restart".into(),
            restarts => format!(", {restarts} restarts"),
        };
        match summary.skipped {
            0 => {}
            1 => text += ", 1 update skipped",
            skipped => text += &format!(", {skipped} updates skipped"),
        }
        text.push('\n');
        row(&mut text, "training loss", &format!("{} nats per token (last step)", nats(summary.loss.map(f64::from))));
        if let Some(loss) = summary.evaluation_loss {
            row(
                &mut text,
                "held-out loss",
                &format!("{} nats per token{}", nats(Some(loss)), against(loss, summary.unigram_entropy)),
            );
        }
        if let Some(entropy) = summary.unigram_entropy {
            row(&mut text, "unigram entropy", &format!("{entropy:.4} nats per token (the held-out part's)"));
        }
        row(&mut text, "losses hash", &summary.losses_hash);
        row(&mut text, "weights hash", &summary.weights_hash);
        row(&mut text, "model", &model.display().to_string());
        row(&mut text, "loss curve", &curve.display().to_string());
        row(&mut text, "metrics", &metrics.display().to_string());
        text
    }
}

fn row(text: &mut String, name: &str, value: &str) {
    // Writing to a String can't fail.
    let _ = writeln!(text, "  {name:<16} {value}");
}

/// How far a held-out loss is from what the words' frequencies alone would give.
fn against(loss: f64, entropy: Option<f64>) -> String {
    match entropy.map(|entropy| entropy - loss).filter(|gain| gain.is_finite()) {
        Some(gain) if gain >= 0.0 => format!(", {gain:.4} below the unigram entropy"),
        Some(gain) => format!(", {:.4} above the unigram entropy", -gain),
        None => String::new(),
    }
}

/// A sample of the model's text, set apart from the rest; whatever the model writes, the terminal takes as text.
pub fn sample(text: &str) -> String {
    let mut block = String::from("a sample of its text:\n");
    for line in text.trim_end().lines() {
        let plain: String = line.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect();
        block += &format!("  | {plain}\n");
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        Summary {
            steps: 600,
            loss: Some(4.3217),
            evaluation_loss: Some(4.5102),
            unigram_entropy: Some(6.0321),
            losses_hash: "aa".into(),
            weights_hash: "bb".into(),
            skipped: 0,
            model: "shakespeare/model".into(),
        }
    }

    fn text(summary: &Summary, restarts: u32, seconds: Option<f64>) -> String {
        let [model, curve, metrics] = ["w/model", "w/plots/loss.svg", "w/metrics.jsonl"].map(Path::new);
        Closing { job: "shakespeare", summary, restarts, seconds, model, curve, metrics }.text()
    }

    #[test]
    fn all_that_a_run_ends_with() {
        let expected = "\
shakespeare: 600 steps in 3m12s, 1 restart
  training loss    4.3217 nats per token (last step)
  held-out loss    4.5102 nats per token, 1.5219 below the unigram entropy
  unigram entropy  6.0321 nats per token (the held-out part's)
  losses hash      aa
  weights hash     bb
  model            w/model
  loss curve       w/plots/loss.svg
  metrics          w/metrics.jsonl
";
        assert_eq!(text(&summary(), 1, Some(192.0)), expected);
    }

    #[test]
    fn what_was_not_measured_is_left_out() {
        let bare = Summary { loss: None, evaluation_loss: None, unigram_entropy: None, skipped: 3, ..summary() };
        let text = text(&bare, 0, None);
        assert!(text.starts_with("shakespeare: 600 steps, 3 updates skipped\n  training loss    not finite"), "{text}");
        assert!(!text.contains("held-out") && !text.contains("entropy"), "{text}");
        assert_eq!(against(7.0, Some(6.0)), ", 1.0000 above the unigram entropy");
    }

    #[test]
    fn a_sample_cannot_drive_the_terminal() {
        assert_eq!(sample("To be\u{1b}[2J,\nor not\n\n"), "a sample of its text:\n  | To be\u{fffd}[2J,\n  | or not\n");
    }
}
