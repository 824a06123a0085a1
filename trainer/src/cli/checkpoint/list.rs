//! `stagecoach checkpoint list`

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use stagecoach_checkpoint::{CheckpointError, Volume, open, paths, read_manifest};

use super::target::{Checkpoints, Job};
use super::{say, say_json, table::table};
use crate::observe::bytes;

/// List a job's checkpoints, and what lies beside them.
#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    job: Job,
}

/// An entry of `checkpoints/` or `damaged/`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    /// `checkpoint`, `damaged` (set aside) or `foreign`.
    kind: &'static str,
    /// From the job's folder.
    path: String,
    step: Option<u64>,
    bytes: Option<u64>,
    committed_at: Option<String>,
    attempt: Option<u64>,
    schedule: Option<String>,
    /// Layers of each chunk.
    partition: Option<Value>,
    /// What is wrong; none if all files are there in their sizes.
    problem: Option<String>,
}

impl List {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        let job = self.job.find()?;
        let rows = rows(&job)?;
        if json {
            return say_json(&rows);
        }
        if rows.is_empty() {
            say(format!("{} has no checkpoints", job.root.display()));
            return Ok(());
        }
        let cells: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
        say(table(&["STEP", "SIZE", "COMMITTED", "ATTEMPT", "PLAN", "STATE"], &[0, 1, 3], &cells));
        Ok(())
    }
}

fn rows(job: &Checkpoints) -> Result<Vec<Row>, CheckpointError> {
    let mut rows = job.listing.steps.iter().map(|&step| checkpoint(job, step)).collect::<Result<Vec<_>, _>>()?;
    rows.extend(job.listing.foreign.iter().map(|foreign| Row {
        kind: "foreign",
        path: foreign.path.clone(),
        problem: Some("is no checkpoint of this job".into()),
        ..Row::default()
    }));
    for entry in job.volume.list(paths::DAMAGED_DIR).unwrap_or_default() {
        let path = format!("{}/{}", paths::DAMAGED_DIR, entry.name);
        let reason = std::fs::read_to_string(job.volume.display(&path).join(paths::REASON_FILE)).ok();
        rows.push(Row {
            kind: "damaged",
            step: entry.name.split('.').next().and_then(paths::parse_step_dir_name),
            problem: Some(reason.map_or("set aside, the reason is not known".into(), |r| r.trim().replace('\n', "; "))),
            path,
            ..Row::default()
        });
    }
    Ok(rows)
}

fn checkpoint(job: &Checkpoints, step: u64) -> Result<Row, CheckpointError> {
    let problem = match open(&job.volume, step) {
        Ok(_) => None,
        Err(CheckpointError::Damaged(damage)) => Some(damage.to_string()),
        Err(error) => return Err(error),
    };
    // a shard may be missing, and the description still tell where it came from
    let metadata = read_manifest(&job.volume, step).ok().map(|manifest| manifest.metadata);
    let plan = metadata.as_ref().map(|metadata| &metadata.plan);
    Ok(Row {
        kind: "checkpoint",
        path: paths::checkpoint_path(step),
        step: Some(step),
        bytes: Some(job.bytes(step)),
        committed_at: job.committed_at(step),
        attempt: metadata.as_ref().map(|metadata| metadata.attempt),
        schedule: plan.and_then(|plan| plan["schedule"].as_str()).map(str::to_owned),
        partition: plan.map(|plan| plan["partition"].clone()).filter(|partition| !partition.is_null()),
        problem,
    })
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let plan = self.schedule.as_ref().map(|schedule| {
            let layers = self.partition.as_ref().map(Value::to_string).unwrap_or_default();
            format!("{schedule} {}", layers.replace(',', "+").trim_matches(['[', ']']))
        });
        let state = match (self.kind, &self.problem) {
            ("damaged", Some(problem)) => format!("set aside in {}: {problem}", self.path),
            ("foreign", Some(problem)) => format!("{} {problem}", self.path),
            (_, Some(problem)) => format!("damaged: {problem}"),
            (_, None) => "sizes match".into(),
        };
        vec![
            or_dash(self.step.map(|step| step.to_string())),
            or_dash(self.bytes.map(bytes)),
            or_dash(self.committed_at.clone()),
            or_dash(self.attempt.map(|attempt| attempt.to_string())),
            or_dash(plan),
            state,
        ]
    }
}
