//! `kubectl stagecoach top`.

use std::io::Write;

use clap::Args;
use stagecoach_api::contract::Mesh;
use stagecoach_api::job::{AttemptStatus, FloatString, JobPhase};
use stagecoach_display::{Replicas, Slowest, TopRow, top, watch};

use crate::cluster::{self, JOBS, List};
use crate::job::{StoredJob, is_training};
use crate::kubectl::Kubectl;

/// Jobs, a line each.
#[derive(Debug, Args)]
pub(crate) struct TopCommand {
    /// The job; by default, all jobs of the namespace.
    job: Option<String>,
    /// Show the jobs of all namespaces.
    #[arg(long, short = 'A', conflicts_with = "job")]
    all_namespaces: bool,
    /// Renew the table every two seconds, until Ctrl-C.
    #[arg(long, short)]
    watch: bool,
}

impl TopCommand {
    pub(crate) fn run(self, kubectl: &Kubectl, out: &mut dyn Write) -> anyhow::Result<()> {
        if self.watch {
            return watch(|| self.text(kubectl));
        }
        writeln!(out, "{}", self.text(kubectl)?)?;
        Ok(())
    }

    fn text(&self, kubectl: &Kubectl) -> anyhow::Result<String> {
        let jobs = match &self.job {
            Some(name) => vec![cluster::job(kubectl, name)?],
            None => {
                let everywhere: &[&str] = if self.all_namespaces { &["--all-namespaces"] } else { &[] };
                kubectl.json::<List<StoredJob>>(&[&["get", JOBS][..], everywhere].concat())?.items
            }
        };
        if jobs.is_empty() {
            let place = if self.all_namespaces { "cluster" } else { "namespace" };
            return Ok(format!("there is no job in this {place}"));
        }
        Ok(top(&jobs.iter().map(|job| row(job, self.all_namespaces)).collect::<Vec<_>>()))
    }
}

/// Returns the job's line. If the status can't be read, the phase is `Unreadable`.
fn row(job: &StoredJob, with_namespace: bool) -> TopRow {
    let namespace = job.metadata.namespace.as_ref().filter(|_| with_namespace);
    let name = namespace.map_or_else(String::new, |namespace| format!("{namespace}/")) + &job.metadata.name;
    let stages = job.spec.stages.unwrap_or(1);
    let Ok(status) = job.status() else {
        return TopRow { name, phase: "Unreadable".into(), stages, ..TopRow::default() };
    };
    let progress = status.progress.clone().unwrap_or_default();
    let number = |value: Option<FloatString>| value.map(|value| value.0);
    // the last measured values do not describe a job that does not train
    let now = |value: Option<FloatString>| number(value).filter(|_| is_training(&status));
    let mesh = status.attempt.as_ref().map(AttemptStatus::mesh);
    let stages = mesh.map_or(stages, Mesh::ranks);
    TopRow {
        name,
        phase: status.phase.unwrap_or(JobPhase::Pending).to_string(),
        step: status.progress.as_ref().map(|progress| progress.step),
        steps: progress.steps,
        loss: number(progress.loss),
        tokens_per_second: now(progress.tokens_per_second),
        ready_stages: status.ready_stages.unwrap_or_default(),
        stages,
        replicas: mesh.and_then(|mesh| Replicas::of(mesh, status.training_replicas.unwrap_or_default())),
        restarts: status.restarts.as_ref().map_or(0, |restarts| restarts.total),
        checkpoint: status.checkpoint.as_ref().map(|checkpoint| checkpoint.step),
        slowest: now(progress.imbalance).filter(|_| stages > 1).map(|imbalance| Slowest { stage: None, imbalance }),
        eta: now(progress.eta),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::job::tests::job;

    #[test]
    fn a_line_has_what_the_status_says_and_speeds_only_while_the_job_trains() {
        let status = |phase: &str| {
            json!({
                "phase": phase, "readyStages": 2, "trainingReplicas": 1, "attempt": {"number": 2, "stages": 2, "dataParallel": 2},
                "progress": {"step": 57, "steps": 100, "loss": "2.5", "tokensPerSecond": "900", "imbalance": "1.3", "eta": "20"},
                "checkpoint": {"step": 40}, "restarts": {"total": 3},
            })
        };
        let expected = TopRow {
            name: "small".into(),
            phase: "Running".into(),
            step: Some(57),
            steps: Some(100),
            loss: Some(2.5),
            tokens_per_second: Some(900.0),
            ready_stages: 2,
            stages: 4,
            replicas: Some(Replicas { training: 1, all: 2 }),
            restarts: 3,
            checkpoint: Some(40),
            slowest: Some(Slowest { stage: None, imbalance: 1.3 }),
            eta: Some(20.0),
        };
        assert_eq!(row(&job(status("Running")), false), expected);
        let quiet = TopRow { tokens_per_second: None, slowest: None, eta: None, ..expected };
        assert_eq!(
            row(&job(status("Failed")), true),
            TopRow { name: "default/small".into(), phase: "Failed".into(), ..quiet }
        );
        let new = TopRow { name: "small".into(), phase: "Pending".into(), stages: 3, ..TopRow::default() };
        assert_eq!(row(&job(Value::Null), false), new);
        assert_eq!(row(&job(json!({"phase": 7})), false).phase, "Unreadable");
    }
}
