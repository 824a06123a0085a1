//! Formats events as aligned lines of text, one event per line.

use std::collections::BTreeMap;

use indicatif::{HumanBytes, HumanCount};
use stagecoach_display::{duration, nats, percent};

use super::eta::EtaEstimator;
use super::save_failures::SaveFailures;
use super::{BestEvaluation, DataWait, RunSummary, SaveRecord, StartRecord, StepRecord, TrainingEvent};

/// Formats a run's events in order. The formatter remembers the run's number of steps, the step times for the ETA, the
/// last reported tenth of the preparation (the work before the first step), and the failed saves since the last
/// successful save.
#[derive(Clone, Debug, Default)]
pub(super) struct EventFormatter {
    steps: u64,
    eta: EtaEstimator,
    /// The preparation activity of the last line, and the tenth of the work that the line reported.
    last_preparation: Option<(String, u64)>,
    save_failures: SaveFailures,
}

impl EventFormatter {
    /// Returns the event's line without a line feed. Returns `None` for an event that needs no line: a preparation that
    /// has not reached another tenth, and a failed save after others, except the 10th, the 100th and so on.
    pub(super) fn format(&mut self, event: &TrainingEvent) -> Option<String> {
        match event {
            TrainingEvent::Preparing { what, done, total } => self.format_preparation(what, *done, *total),
            TrainingEvent::Started(started) => {
                self.steps = started.steps;
                self.eta = EtaEstimator::default();
                self.last_preparation = None;
                Some(format!("start  {}", format_start(started)))
            }
            TrainingEvent::Step(record) => {
                self.eta.add(record);
                Some(self.format_step(record))
            }
            TrainingEvent::Saved(SaveRecord { step, bytes, seconds, stall_seconds, .. }) => {
                let failed = self.save_failures.saved().map(|failed| format!("; {failed}")).unwrap_or_default();
                Some(format!(
                    "saved  the checkpoint of step {step}, {} in {seconds:.1}s, training stalled for {stall_seconds:.1}s{failed}",
                    HumanBytes(*bytes)
                ))
            }
            // a message may have several lines
            TrainingEvent::SaveFailed(save) => {
                self.save_failures.failed(save).map(|message| format!("note   {}", message.replace('\n', " ")))
            }
            TrainingEvent::AuditDiffers(difference) => Some(format!("audit  {}", difference.message)),
            TrainingEvent::StageLost { message, .. } => Some(format!("lost   {}", message.replace('\n', " "))),
            TrainingEvent::StandingBy { spare } => Some(format!("spare  spare {spare} stands by")),
            TrainingEvent::Promoted { spare, stage, .. } => {
                Some(format!("spare  spare {spare} takes the place of stage {stage}"))
            }
            TrainingEvent::Note { message } => Some(format!("note   {}", message.replace('\n', " "))),
            TrainingEvent::Finished(summary) => Some(format_summary(summary)),
        }
    }

    fn format_preparation(&mut self, what: &str, done: u64, total: u64) -> Option<String> {
        let tenth = (done.min(total) * 10).checked_div(total).unwrap_or(0);
        if self.last_preparation.as_ref().is_some_and(|(activity, last)| activity == what && *last == tenth) {
            return None;
        }
        self.last_preparation = Some((what.to_owned(), tenth));
        let amount = preparation_amount(done, total).map_or_else(String::new, |amount| format!("  {amount}"));
        Some(format!("prep   {what}{amount}"))
    }

    fn format_step(&self, record: &StepRecord) -> String {
        let width = self.steps.to_string().len();
        let mut line = format!("step   {:>width$}/{}  {}", record.step, self.steps, format_measurements(record));
        if let Some(eta) = self.eta_seconds(record.step) {
            line += &format!("  eta {}", duration(eta));
        }
        if let Some(wait) = format_data_wait(record) {
            line += &format!("  {wait}");
        }
        if let Some(loss) = record.evaluation_loss {
            line += &format!("  {}", format_evaluation(loss, &record.evaluation_set_losses));
        }
        if record.skipped {
            line += "  skipped (loss or gradient is not finite)";
        }
        line
    }

    /// Returns the estimated seconds from a step to the last step of the run; `None` before the first step.
    pub(super) fn eta_seconds(&self, step: u64) -> Option<f64> {
        self.eta.seconds(self.steps.saturating_sub(step))
    }
}

/// Returns the measurements of a step in columns.
fn format_measurements(record: &StepRecord) -> String {
    let norm = record.gradient_norm.map_or("-".into(), |norm| format!("{norm:.2}"));
    let mfu = record.mfu.map_or(String::new(), |mfu| format!("  mfu {:>3}", percent(mfu)));
    format!(
        "loss {}  lr {:.1e}  norm {norm}  {} tok/s{mfu}  bubble {:>3}",
        nats(record.loss.map(f64::from)),
        record.learning_rate,
        HumanCount(record.tokens_per_second.round() as u64),
        record.mean_bubble().map_or("-".into(), percent),
    )
}

/// Returns the wait of a step for its data, if the wait is a notable part of the step's time.
pub(super) fn format_data_wait(record: &StepRecord) -> Option<String> {
    DataWait::notable(record).map(|wait| format!("waited {} for data", duration(wait.seconds)))
}

/// Returns the held-out loss, and the losses on the held-out sets in parentheses.
fn format_evaluation(loss: f64, sets: &BTreeMap<String, f64>) -> String {
    let sets = if sets.is_empty() { String::new() } else { format!(" ({})", format_losses(sets)) };
    format!("held-out {}{sets}", nats(Some(loss)))
}

/// Returns the losses, each after its name.
pub(super) fn format_losses(losses: &BTreeMap<String, f64>) -> String {
    let losses: Vec<String> = losses.iter().map(|(name, loss)| format!("{name} {}", nats(Some(*loss)))).collect();
    losses.join(", ")
}

/// Returns the configuration of a run in one line.
pub(super) fn format_start(started: &StartRecord) -> String {
    let layers: Vec<String> = started.partition.iter().map(usize::to_string).collect();
    let plural = if started.stages == 1 { "" } else { "s" };
    let mut line = format!(
        "steps {} to {}  {} stage{plural}  {} x {} microbatches  layers {}  {} parameters  {}  vocabulary {}  expected bubble {}",
        started.first_step,
        started.steps,
        started.stages,
        started.schedule,
        started.microbatches,
        layers.join("/"),
        HumanCount(started.parameters),
        started.tokens.map_or("a streamed corpus".to_owned(), |tokens| format!("{} tokens", HumanCount(tokens))),
        HumanCount(started.vocab_size as u64),
        percent(started.expected_bubble),
    );
    if let Some(entropy) = started.unigram_entropy {
        line += &format!("  unigram entropy {entropy:.4}");
    }
    line
}

fn format_summary(summary: &RunSummary) -> String {
    let mut line = format!("done   {} steps", summary.steps);
    if let Some(reason) = &summary.ended_early {
        line += &format!(", ended early: {reason}");
    }
    line += &format!("  loss {}", nats(summary.loss.map(f64::from)));
    if let Some(loss) = summary.evaluation_loss {
        line += &format!("  {}", format_evaluation(loss, &summary.evaluation_set_losses));
    }
    // if the last evaluation is the best, its loss is already in the line
    if let Some(best) = summary.best_evaluation.filter(BestEvaluation::is_earlier) {
        line += &format!("  best held-out {} at step {}", nats(Some(best.loss)), best.step);
    }
    if let Some(entropy) = summary.unigram_entropy {
        line += &format!("  unigram entropy {entropy:.4}");
    }
    if summary.skipped > 0 {
        line += &format!("  skipped {}", summary.skipped);
    }
    if !summary.evaluation_losses_hash.is_empty() {
        line += &format!("  held-out losses {}", summary.evaluation_losses_hash);
    }
    line + &format!("  losses {}  weights {}  model {}", summary.losses_hash, summary.weights_hash, summary.model)
}

/// Returns the processed and the total bytes of a preparation, such as "1.50 MiB of 4.00 MiB"; `None` if the work isn't
/// measured in bytes.
pub(crate) fn preparation_amount(done: u64, total: u64) -> Option<String> {
    (total > 0).then(|| format!("{} of {}", HumanBytes(done), HumanBytes(total)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn started() -> StartRecord {
        StartRecord {
            incarnations: Vec::new(),
            stages: 3,
            schedule: "1F1B".into(),
            partition: vec![5, 6, 1],
            microbatches: 8,
            first_step: 1,
            steps: 1000,
            parameters: 4_213_000,
            tokens: Some(1_240_000),
            vocab_size: 4096,
            expected_bubble: 0.2,
            unigram_entropy: Some(6.03214),
            environment_differences: Vec::new(),
            audit_differences: Vec::new(),
        }
    }

    pub(crate) fn record(step: u64) -> StepRecord {
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
        let mut formatter = EventFormatter::default();
        let start = formatter.format(&TrainingEvent::Started(started())).unwrap();
        assert!(
            start.starts_with("start  steps 1 to 1000  3 stages  1F1B x 8 microbatches  layers 5/6/1  4,213,000 parameters  1,240,000 tokens  vocabulary 4,096  "),
            "{start}"
        );
        let line = formatter.format(&TrainingEvent::Step(record(120))).unwrap();
        assert_eq!(line, "step    120/1000  loss 5.1234  lr 3.0e-4  norm 0.81  4,812 tok/s  bubble 18%  eta 3m 40s");
        let on_gpus = StepRecord { mfu: Some(0.414), ..record(120) };
        let line = formatter.format(&TrainingEvent::Step(on_gpus)).unwrap();
        assert!(line.contains("4,812 tok/s  mfu 41%  bubble 18%"), "{line}");
        let special = StepRecord {
            loss: None,
            gradient_norm: None,
            bubble: vec![],
            evaluation_loss: Some(4.5),
            skipped: true,
            ..record(121)
        };
        let line = formatter.format(&TrainingEvent::Step(special)).unwrap();
        assert!(line.contains("loss not finite") && line.contains("norm -") && line.contains("bubble   -"), "{line}");
        assert!(line.ends_with("held-out 4.5000  skipped (loss or gradient is not finite)"), "{line}");
    }

    #[test]
    fn a_step_shows_a_notable_wait_for_its_data() {
        let line = |seconds| {
            let waited = StepRecord { data_wait_seconds: Some(seconds), evaluation_loss: Some(4.5), ..record(121) };
            EventFormatter::default().format(&TrainingEvent::Step(waited)).unwrap()
        };
        assert!(line(3.2).ends_with("  eta 0.0s  waited 3.2s for data  held-out 4.5000"), "{}", line(3.2));
        assert!(!line(0.05).contains("waited"), "{}", line(0.05));
    }

    /// Returns the losses of two held-out sets, one of which is not finite.
    pub(crate) fn set_losses() -> BTreeMap<String, f64> {
        BTreeMap::from([("code".to_owned(), f64::NAN), ("web".to_owned(), 2.25)])
    }

    #[test]
    fn held_out_sets_follow_the_held_out_loss() {
        let evaluated = StepRecord { evaluation_loss: Some(4.5), evaluation_set_losses: set_losses(), ..record(121) };
        let line = EventFormatter::default().format(&TrainingEvent::Step(evaluated)).unwrap();
        assert!(line.ends_with("  held-out 4.5000 (code not finite, web 2.2500)"), "{line}");
    }

    #[test]
    fn a_summary_has_the_best_evaluation_and_the_reason_for_an_early_end() {
        let best = |evaluations_since| Some(BestEvaluation { step: 400, loss: 4.25, evaluations_since });
        let summary = RunSummary {
            steps: 900,
            loss: Some(3.5),
            evaluation_loss: Some(4.5),
            evaluation_set_losses: set_losses(),
            best_evaluation: best(5),
            ended_early: Some("the held-out loss has not improved in 5 evaluations since step 400".into()),
            ..RunSummary::default()
        };
        let line = format_summary(&summary);
        let begin = "done   900 steps, ended early: the held-out loss has not improved in 5 evaluations since step 400  \
                     loss 3.5000  held-out 4.5000 (code not finite, web 2.2500)  best held-out 4.2500 at step 400  losses";
        assert!(line.starts_with(begin), "{line}");
        let line = format_summary(&RunSummary { best_evaluation: best(0), ended_early: None, ..summary });
        assert!(line.starts_with("done   900 steps  loss 3.5000") && !line.contains("best"), "{line}");
    }

    #[test]
    fn preparation_is_reported_by_tenths() {
        let mut formatter = EventFormatter::default();
        let mut reported = 0;
        for done in 0..=1000 {
            reported += usize::from(
                formatter.format(&TrainingEvent::Preparing { what: "tokenising".into(), done, total: 1000 }).is_some(),
            );
        }
        assert_eq!(reported, 11);
        let unmeasured = TrainingEvent::Preparing { what: "saving the model".into(), done: 0, total: 0 };
        assert_eq!(formatter.format(&unmeasured).as_deref(), Some("prep   saving the model"));
        assert_eq!(formatter.format(&unmeasured), None);
    }

    #[test]
    fn an_event_is_one_line() {
        let line = EventFormatter::default().format(&TrainingEvent::Note { message: "one\ntwo".into() });
        assert_eq!(line.as_deref(), Some("note   one two"));
    }
}
