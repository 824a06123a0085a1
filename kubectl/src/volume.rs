//! `kubectl stagecoach checkpoints` and `timeline`. The trainer in a pod that has the job's volume reports the contents
//! of the volume.

use std::io::Write;

use anyhow::Context;
use clap::Args;
use stagecoach_api::contract::CONTAINER_NAME;
use stagecoach_api::visible;

use crate::cluster;
use crate::kubectl::Kubectl;

/// A job's checkpoints.
#[derive(Debug, Args)]
pub(crate) struct CheckpointsCommand {
    /// The job.
    job: String,
}

/// The timeline of a trained step, above a simulation of the step.
#[derive(Debug, Args)]
pub(crate) struct TimelineCommand {
    /// The job.
    job: String,
    /// The step; the newest recorded one by default.
    #[arg(long, value_name = "N")]
    step: Option<u64>,
}

impl CheckpointsCommand {
    pub(crate) fn run(self, kubectl: &Kubectl, out: &mut dyn Write) -> anyhow::Result<()> {
        in_a_pod(kubectl, &self.job, &["checkpoint", "list"], &[], out)
    }
}

impl TimelineCommand {
    pub(crate) fn run(self, kubectl: &Kubectl, out: &mut dyn Write) -> anyhow::Result<()> {
        let step = self.step.map(|step| step.to_string());
        let options = step.as_deref().map_or_else(Vec::new, |step| vec!["--step", step]);
        in_a_pod(kubectl, &self.job, &["timeline"], &options, out)
    }
}

/// Runs `stagecoach COMMAND FOLDER OPTIONS` in one of the job's running pods, and writes its output to `out`.
fn in_a_pod(
    kubectl: &Kubectl,
    name: &str,
    command: &[&str],
    options: &[&str],
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let job = cluster::job(kubectl, name)?;
    let reported = command.join(" ");
    let pod = cluster::pods(kubectl, &job)?.into_iter().find(|pod| pod.is_running).with_context(|| {
        format!(
            "no pod of job {name} runs, and this command reads the job's volume in a running pod: wait until a pod of \
             the job runs, or mount the volume and run `stagecoach {reported}` on the job's folder"
        )
    })?;
    let folder = job.folder();
    let run = ["exec", &pod.name, "--container", CONTAINER_NAME, "--", "stagecoach"];
    let printed = kubectl.output(&[&run[..], command, &[folder.as_str()], options].concat())?;
    out.write_all(visible(&printed).as_bytes())?;
    Ok(())
}
