//! The report at the end of a run.

use std::fmt;
use std::path::Path;

use stagecoach_api::visible;
use stagecoach_display::{duration, nats};
use stagecoach_pipeline::Advice;

use super::event_formatter::format_losses;
use super::{BestEvaluation, DataWait, RunSummary};

/// The results, files and duration of a run. The `Display` form consists of lines that end with a line feed.
#[derive(Clone, Copy, Debug)]
pub struct RunReport<'a> {
    /// The job's name.
    pub job: &'a str,
    /// The leader's result.
    pub summary: &'a RunSummary,
    /// The number of restarts of the group, the processes that train together.
    pub restarts: u32,
    /// Wall seconds of the run; `None` for the result of an earlier run.
    pub seconds: Option<f64>,
    /// The wait of all steps for their data, in a job that streams its corpus. The summary lacks this wait, because the
    /// summary is the same for every run of a job.
    pub data_wait: Option<DataWait>,
    /// The advice for shorter steps.
    pub advice: Option<&'a Advice>,
    /// The folder of the trained model.
    pub model: &'a Path,
    /// The SVG of the loss curve.
    pub loss_curve: &'a Path,
    /// The path of `metrics.jsonl`.
    pub metrics: &'a Path,
}

impl fmt::Display for RunReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summary = self.summary;
        write!(f, "{}: {} steps", self.job, summary.steps)?;
        if let Some(seconds) = self.seconds {
            write!(f, " in {}", duration(seconds))?;
        }
        match self.restarts {
            0 => {}
            1 => f.write_str(", 1 restart")?,
            restarts => write!(f, ", {restarts} restarts")?,
        }
        match summary.skipped {
            0 => {}
            1 => f.write_str(", 1 update skipped")?,
            skipped => write!(f, ", {skipped} updates skipped")?,
        }
        f.write_str("\n")?;
        let mut row = |name: &str, value: &dyn fmt::Display| writeln!(f, "  {name:<16} {value}");
        if let Some(reason) = &summary.ended_early {
            row("ended early", reason)?;
        }
        row("training loss", &format!("{} nats per token (last step)", nats(summary.loss.map(f64::from))))?;
        if let Some(loss) = summary.evaluation_loss {
            let comparison = compare_to_entropy(loss, summary.unigram_entropy);
            row("held-out loss", &format!("{} nats per token{comparison}", nats(Some(loss))))?;
        }
        if !summary.evaluation_set_losses.is_empty() {
            row("held-out sets", &format!("{} nats per token", format_losses(&summary.evaluation_set_losses)))?;
        }
        // if the last evaluation is the best, the report has its loss already
        if let Some(best) = summary.best_evaluation.filter(BestEvaluation::is_earlier) {
            row("best held-out", &format!("{} nats per token, after step {}", nats(Some(best.loss)), best.step))?;
        }
        if let Some(entropy) = summary.unigram_entropy {
            row("unigram entropy", &format!("{entropy:.4} nats per token (of the held-out tokens)"))?;
        }
        if let Some(wait) = self.data_wait {
            row("wait for data", &wait)?;
        }
        if let Some(advice) = self.advice {
            row("balance", advice)?;
        }
        row("losses hash", &summary.losses_hash)?;
        if !summary.evaluation_losses_hash.is_empty() {
            row("held-out hash", &summary.evaluation_losses_hash)?;
        }
        row("weights hash", &summary.weights_hash)?;
        if !summary.receipt.is_missing() {
            row("receipt", &summary.receipt.head)?;
        }
        row("model", &self.model.display())?;
        row("loss curve", &self.loss_curve.display())?;
        row("metrics", &self.metrics.display())
    }
}

/// Describes the difference between a held-out loss and the unigram entropy. The unigram entropy is the loss of a model
/// that predicts by token frequencies alone.
fn compare_to_entropy(loss: f64, entropy: Option<f64>) -> String {
    match entropy.map(|entropy| entropy - loss).filter(|gain| gain.is_finite()) {
        Some(gain) if gain >= 0.0 => format!(", {gain:.4} below the unigram entropy"),
        Some(gain) => format!(", {:.4} above the unigram entropy", -gain),
        None => String::new(),
    }
}

/// Returns generated text as an indented block. The text is made [`visible`].
pub fn format_sample(text: &str) -> String {
    let mut block = String::from("generated sample:\n");
    for line in text.trim_end().lines() {
        block += &format!("  | {}\n", visible(line));
    }
    block
}

#[cfg(test)]
mod tests {
    use stagecoach_pipeline::Partition;

    use crate::Receipt;

    use super::*;

    fn summary() -> RunSummary {
        RunSummary {
            steps: 600,
            loss: Some(4.3217),
            evaluation_loss: Some(4.5102),
            unigram_entropy: Some(6.0321),
            losses_hash: "aa".into(),
            evaluation_losses_hash: "cc".into(),
            weights_hash: "bb".into(),
            receipt: Receipt { after: 0, head: "dd".into() },
            model: "shakespeare/model".into(),
            ..RunSummary::default()
        }
    }

    fn report(summary: &RunSummary, restarts: u32, seconds: Option<f64>) -> String {
        let [model, loss_curve, metrics] = ["w/model", "w/plots/loss.svg", "w/metrics.jsonl"].map(Path::new);
        let advice = Advice {
            rank: 2,
            imbalance: 1.31,
            saving: 0.11,
            partition: Partition { layers: vec![5, 6, 1] },
            better: Some((Partition { layers: vec![5, 5, 2] }, 0.07)),
        };
        let advice = Some(&advice).filter(|_| restarts > 0);
        let data_wait = Some(DataWait { seconds: 12.0, share: 0.0625 }).filter(|_| restarts > 0);
        RunReport { job: "shakespeare", summary, restarts, seconds, data_wait, advice, model, loss_curve, metrics }
            .to_string()
    }

    #[test]
    fn a_report_has_results_hashes_and_files() {
        let expected = "\
shakespeare: 600 steps in 3m 12s, 1 restart
  training loss    4.3217 nats per token (last step)
  held-out loss    4.5102 nats per token, 1.5219 below the unigram entropy
  unigram entropy  6.0321 nats per token (of the held-out tokens)
  wait for data    12s, 6% of the steps' time
  balance          stage 2 computes 1.31 times as long as the mean stage: with the mean time, the step would be 11 % shorter; 5/6/1 -> 5/5/2 would save 7 %
  losses hash      aa
  held-out hash    cc
  weights hash     bb
  receipt          dd
  model            w/model
  loss curve       w/plots/loss.svg
  metrics          w/metrics.jsonl
";
        assert_eq!(report(&summary(), 1, Some(192.0)), expected);
    }

    #[test]
    fn an_early_end_and_what_led_to_it_have_rows() {
        let ended = RunSummary {
            steps: 500,
            evaluation_set_losses: [("code".to_owned(), 3.1), ("web".to_owned(), 4.2)].into(),
            best_evaluation: Some(BestEvaluation { step: 400, loss: 4.5, evaluations_since: 1 }),
            ended_early: Some("the held-out loss has not improved in 1 evaluation since step 400".into()),
            ..summary()
        };
        let expected = "\
shakespeare: 500 steps
  ended early      the held-out loss has not improved in 1 evaluation since step 400
  training loss    4.3217 nats per token (last step)
  held-out loss    4.5102 nats per token, 1.5219 below the unigram entropy
  held-out sets    code 3.1000, web 4.2000 nats per token
  best held-out    4.5000 nats per token, after step 400
  unigram entropy  6.0321 nats per token (of the held-out tokens)
";
        let text = report(&ended, 0, None);
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_left_out() {
        let bare = RunSummary {
            loss: None,
            evaluation_loss: None,
            evaluation_losses_hash: String::new(),
            unigram_entropy: None,
            skipped: 3,
            ..summary()
        };
        let text = report(&bare, 0, None);
        assert!(text.starts_with("shakespeare: 600 steps, 3 updates skipped\n  training loss    not finite"), "{text}");
        assert!(!text.contains("held-out") && !text.contains("entropy") && !text.contains("data"), "{text}");
        assert_eq!(compare_to_entropy(7.0, Some(6.0)), ", 1.0000 above the unigram entropy");
    }

    #[test]
    fn a_sample_cannot_drive_the_terminal() {
        assert_eq!(format_sample("To be\u{1b}[2J,\nor not\n\n"), "generated sample:\n  | To be^[[2J,\n  | or not\n");
    }
}
