//! `stagecoach checkpoint list`

use clap::Args;
use indicatif::HumanBytes;
use serde::Serialize;
use serde_json::Value;
use stagecoach_checkpoint::{CheckpointError, Volume, open, paths, read_manifest};
use stagecoach_display::table;

use super::super::output::{print_json, print_line};
use super::target::{JobCheckpoints, JobFolderArg};

/// List a job's checkpoints, its damaged checkpoints, and foreign entries beside them.
#[derive(Debug, Args)]
pub(super) struct ListCommand {
    #[command(flatten)]
    job: JobFolderArg,
}

/// An entry of `checkpoints/` or `damaged/`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckpointListEntry {
    /// `checkpoint`, `damaged` (set aside) or `foreign` (not created by a job).
    kind: &'static str,
    /// The path, relative to the job's folder.
    path: String,
    step: Option<u64>,
    bytes: Option<u64>,
    committed_at: Option<String>,
    attempt: Option<u64>,
    schedule: Option<String>,
    /// The number of layers of each chunk.
    partition: Option<Value>,
    /// `None` if all files exist and have the right size.
    problem: Option<String>,
}

impl ListCommand {
    pub(super) fn main(self, json: bool) -> anyhow::Result<()> {
        let checkpoints = self.job.open()?;
        let entries = entries(&checkpoints)?;
        if json {
            return print_json(&entries);
        }
        if entries.is_empty() {
            print_line(format!("{} has no checkpoints", checkpoints.folder.display()));
            return Ok(());
        }
        let header = ["STEP", "SIZE", "COMMITTED", "ATTEMPT", "PLAN", "STATE"];
        let rows = entries.iter().map(CheckpointListEntry::cells).collect();
        print_line(table(Some(&header), &[0, 1, 3], rows));
        Ok(())
    }
}

fn entries(job: &JobCheckpoints) -> Result<Vec<CheckpointListEntry>, CheckpointError> {
    let mut entries =
        job.listing.steps.iter().map(|&step| checkpoint_entry(job, step)).collect::<Result<Vec<_>, _>>()?;
    entries.extend(job.listing.foreign.iter().map(|foreign| CheckpointListEntry {
        kind: "foreign",
        path: foreign.path.clone(),
        problem: Some("is not a checkpoint of this job".into()),
        ..CheckpointListEntry::default()
    }));
    for entry in job.volume.list(paths::DAMAGED_DIR).unwrap_or_default() {
        let path = format!("{}/{}", paths::DAMAGED_DIR, entry.name);
        let reason = std::fs::read_to_string(job.volume.display(&path).join(paths::REASON_FILE)).ok();
        entries.push(CheckpointListEntry {
            kind: "damaged",
            step: entry.name.split('.').next().and_then(paths::parse_step_dir_name),
            problem: Some(reason.map_or("set aside for an unknown reason".into(), |r| r.trim().replace('\n', "; "))),
            path,
            ..CheckpointListEntry::default()
        });
    }
    Ok(entries)
}

fn checkpoint_entry(job: &JobCheckpoints, step: u64) -> Result<CheckpointListEntry, CheckpointError> {
    let problem = match open(&job.volume, step) {
        Ok(_) => None,
        Err(CheckpointError::Damaged(damage)) => Some(damage.to_string()),
        Err(error) => return Err(error),
    };
    // the manifest may be readable even if a shard is missing
    let metadata = read_manifest(&job.volume, step).ok().map(|manifest| manifest.metadata);
    let plan = metadata.as_ref().map(|metadata| &metadata.plan);
    Ok(CheckpointListEntry {
        kind: "checkpoint",
        path: paths::checkpoint_path(step),
        step: Some(step),
        bytes: Some(job.size(step)),
        committed_at: job.committed_at(step),
        attempt: metadata.as_ref().map(|metadata| metadata.attempt),
        schedule: plan.and_then(|plan| plan["schedule"].as_str()).map(str::to_owned),
        partition: plan.map(|plan| plan["partition"].clone()).filter(|partition| !partition.is_null()),
        problem,
    })
}

impl CheckpointListEntry {
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
            or_dash(self.bytes.map(|bytes| HumanBytes(bytes).to_string())),
            or_dash(self.committed_at.clone()),
            or_dash(self.attempt.map(|attempt| attempt.to_string())),
            or_dash(plan),
            state,
        ]
    }
}
