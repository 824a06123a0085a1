//! The table of `top`: a line per job.

use stagecoach_api::visible;

use crate::Replicas;
use crate::format::{duration, nats, table};

/// A job's line. Unknown values are shown as `-`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopRow {
    /// The name of the job.
    pub name: String,
    /// The state of the job, in one word.
    pub phase: String,
    /// The number of finished steps.
    pub step: Option<u64>,
    /// The total number of steps.
    pub steps: Option<u64>,
    /// Training loss of the last step, in nats per token.
    pub loss: Option<f64>,
    /// Target tokens per second; `None` unless the job trains.
    pub tokens_per_second: Option<f64>,
    /// The number of ready stages.
    pub ready_stages: u32,
    /// The number of all stages.
    pub stages: u32,
    /// The replicas; `None` unless the job has several replicas.
    pub replicas: Option<Replicas>,
    /// The number of restarts so far, of single stages as well as of the whole group.
    pub restarts: u32,
    /// The step of the newest checkpoint.
    pub checkpoint: Option<u64>,
    /// The slowest stage; `None` unless the job trains.
    pub slowest: Option<Slowest>,
    /// The estimated seconds to the last step; `None` unless the job trains.
    pub eta: Option<f64>,
}

/// The stage with the longest computation time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowest {
    /// The number of the stage, if it is known.
    pub stage: Option<u32>,
    /// The stage's computation time divided by the mean of all stages.
    pub imbalance: f64,
}

const HEADER: [&str; 11] =
    ["NAME", "PHASE", "STEP", "LOSS", "TOKENS/S", "STAGES", "REPLICAS", "RESTARTS", "CHECKPOINT", "SLOWEST", "ETA"];

/// Returns the table with a line for each of `rows`.
pub fn top(rows: &[TopRow]) -> String {
    table(Some(&HEADER), &[2, 3, 4, 5, 6, 7, 8, 10], rows.iter().map(TopRow::cells).collect())
}

impl TopRow {
    fn cells(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let step = match (self.step, self.steps) {
            (Some(step), Some(steps)) => format!("{step}/{steps}"),
            (step, _) => or_dash(step.map(|step| step.to_string())),
        };
        vec![
            visible(&self.name).into_owned(),
            visible(&self.phase).into_owned(),
            step,
            or_dash(self.loss.map(|loss| nats(Some(loss)))),
            or_dash(self.tokens_per_second.map(|rate| format!("{rate:.0}"))),
            format!("{}/{}", self.ready_stages, self.stages),
            or_dash(self.replicas.map(|replicas| format!("{}/{}", replicas.training, replicas.all))),
            self.restarts.to_string(),
            or_dash(self.checkpoint.map(|step| step.to_string())),
            or_dash(self.slowest.map(|slowest| match slowest.stage {
                Some(stage) => format!("stage {stage}: {:.2}x", slowest.imbalance),
                None => format!("{:.2}x", slowest.imbalance),
            })),
            or_dash(self.eta.map(duration)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_a_line_and_what_is_unknown_a_dash() {
        let running = TopRow {
            name: "shakespeare".into(),
            phase: "Running".into(),
            step: Some(57),
            steps: Some(400),
            loss: Some(3.25),
            tokens_per_second: Some(6400.4),
            ready_stages: 3,
            stages: 6,
            replicas: Some(Replicas { training: 1, all: 2 }),
            restarts: 1,
            checkpoint: Some(40),
            slowest: Some(Slowest { stage: Some(2), imbalance: 1.306 }),
            eta: Some(192.0),
        };
        let pending = TopRow { name: "new".into(), phase: "Pending".into(), stages: 2, ..TopRow::default() };
        let somewhere =
            TopRow { slowest: Some(Slowest { stage: None, imbalance: 1.0 }), step: Some(7), ..pending.clone() };
        assert_eq!(
            top(&[running, pending, somewhere]),
            "\
NAME         PHASE      STEP    LOSS  TOKENS/S  STAGES  REPLICAS  RESTARTS  CHECKPOINT  SLOWEST            ETA
shakespeare  Running  57/400  3.2500      6400     3/6       1/2         1          40  stage 2: 1.31x  3m 12s
new          Pending       -       -         -     0/2         -         0           -  -                    -
new          Pending       7       -         -     0/2         -         0           -  1.00x                -"
        );
    }
}
