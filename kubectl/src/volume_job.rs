//! `kubectl stagecoach replay`, `audit` and `blame`. Each command runs `stagecoach` on a job's folder in the cluster,
//! because the job's volume is there. The plugin creates a small job of one pod from the template of the original job,
//! shows the log of the pod, and deletes the small job at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::{Map, Value, json};
use stagecoach_api::contract::{CONTAINER_NAME, WORKSPACE_PATH, keep_off_nodes};
use stagecoach_api::job::{Condition, JobPhase, LastFailureStatus, condition_type};
use stagecoach_api::{PipelineJobStatus, visible};

use crate::cluster::{self, JOBS};
use crate::job::{StoredJob, is_over};
use crate::kubectl::Kubectl;
use crate::logs;

/// The interval between two checks of whether the pod has started.
const INTERVAL: Duration = Duration::from_secs(1);
/// The seconds after which the operator deletes the finished job, in case the plugin ended too early to delete the job.
const KEPT_SECONDS: u64 = 3600;
/// The new job's name begins with at most this number of characters of the original job's name. The name of a job with
/// one stage may have 54 characters. The remaining characters are for `-replay-` and for the suffix that the API server
/// appends.
const NAME_LENGTH: usize = 40;
/// The label and the annotation that would add the new pod to the pod group of the original job. Kueue admits the pods
/// of a group only together.
const GROUP_OF_PODS: [(&str, &str); 2] =
    [("labels", "kueue.x-k8s.io/pod-group-name"), ("annotations", "kueue.x-k8s.io/pod-group-total-count")];

/// A command of `stagecoach` on a job's folder.
#[derive(Debug, Args)]
pub(crate) struct VolumeCommand {
    /// The job in whose folder the command runs.
    job: String,
    /// Print the new job as JSON instead of creating it, so that you can change it and create it yourself.
    #[arg(long)]
    dry_run: bool,
    /// The arguments of `stagecoach` after the folder, such as `-- --step 7`; files that the command writes are on the
    /// volume.
    #[arg(last = true, value_name = "OPTION")]
    options: Vec<String>,
}

/// The failure of a command in the cluster. The plugin exits with the same code.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandEnded {
    /// The exit code.
    pub exit_code: u8,
    message: String,
}

impl VolumeCommand {
    /// Runs `stagecoach COMMAND FOLDER OPTIONS`.
    pub(crate) fn run(self, command: &str, kubectl: &Kubectl, out: &mut dyn Write) -> anyhow::Result<()> {
        let object: Value = kubectl.json(&["get", JOBS, &self.job])?;
        let job: StoredJob = serde_json::from_value(object.clone())?;
        let arguments = [command.to_owned(), job.folder()].into_iter().chain(self.options);
        // exclude nodes that have computed wrong results: a result of such a node proves nothing
        let state = job.state(&job.status()?)?.unwrap_or_default();
        let manifest = manifest(&object, &state.excluded_nodes, command, &arguments.collect::<Vec<_>>());
        if self.dry_run {
            writeln!(out, "{}", serde_json::to_string_pretty(&manifest)?)?;
            return Ok(());
        }
        let created: StoredJob = kubectl.create(&manifest)?;
        let name = created.metadata.name;
        eprintln!(
            "job {name} runs stagecoach {command} and continues after Ctrl-C; to stop it, run kubectl delete {JOBS} {name}"
        );
        let ended = watch(kubectl, &name, out);
        // after any other error, the job may still run, so the plugin does not delete the job
        if ended.as_ref().err().is_none_or(|error| error.is::<CommandEnded>()) {
            let deleted = kubectl.output(&["delete", JOBS, &name, "--wait=false", "--ignore-not-found"]);
            deleted.err().into_iter().for_each(|error| {
                eprintln!("job {name} was not deleted: {}", visible(&format!("{error:#}")));
            });
        }
        ended
    }
}

/// Returns the job that runs `stagecoach` with these arguments on the folder of `job`. The new job has the volume, the
/// template and the network policy of `job`, and runs on none of `excluded_nodes`.
fn manifest(job: &Value, excluded_nodes: &BTreeSet<String>, command: &str, arguments: &[String]) -> Value {
    let (metadata, spec) = (&job["metadata"], &job["spec"]);
    let mut template = spec["template"].as_object().cloned().unwrap_or_default();
    template.remove("stages");
    for (part, name) in GROUP_OF_PODS {
        if let Some(Value::Object(all)) = template.get_mut("metadata").and_then(|metadata| metadata.get_mut(part)) {
            all.remove(name);
        }
    }
    let mut pod = template.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    let containers = pod.get("containers").and_then(Value::as_array).cloned().unwrap_or_default();
    let trainer = containers.into_iter().find(|container| container["name"] == CONTAINER_NAME);
    let mut trainer = trainer.and_then(|trainer| trainer.as_object().cloned()).unwrap_or_default();
    for probe in ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle"] {
        trainer.remove(probe);
    }
    // if the template names no image, the new job has the image with which `job` was trained
    if let Some(image) = job["status"]["attempt"].get("image") {
        trainer.entry("image").or_insert_with(|| image.clone());
    }
    trainer.extend(object(json!({
        "name": CONTAINER_NAME,
        "command": ["stagecoach"],
        "args": arguments,
        "workingDir": WORKSPACE_PATH,
    })));
    // omit the template's other containers, which accompany a stage and may never end
    pod.insert("containers".to_owned(), json!([trainer]));
    keep_off_nodes(excluded_nodes, &mut pod);
    template.insert("spec".to_owned(), pod.into());

    let owner = json!({
        "apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"],
    });
    let mut own = object(json!({
        "stages": 1,
        "trainer": {"type": "Custom"},
        "restart": {"maxRestarts": 0},
        "scheduling": {"gang": "None"},
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": template,
    }));
    if let Some(claim) = spec["storage"].get("persistentVolumeClaim") {
        own.insert("storage".to_owned(), json!({"persistentVolumeClaim": claim}));
    }
    if let Some(policy) = spec.get("networkPolicy") {
        own.insert("networkPolicy".to_owned(), policy.clone());
    }
    json!({
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "metadata": {
            "generateName": format!("{}-{command}-", cut(metadata["name"].as_str().unwrap_or_default())),
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        },
        "spec": own,
    })
}

/// Returns at most `NAME_LENGTH` characters of a job's name, so that the suffixes of the new names fit.
fn cut(name: &str) -> &str {
    name.get(..NAME_LENGTH).map_or(name, |cut| cut.trim_end_matches('-'))
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Shows the output of the job's pod until the pod has ended.
///
/// # Errors
/// Returns [`CommandEnded`] if the operator rejects the job or the job fails. Returns the error of kubectl, or an error
/// if the job was stopped or the reader of `out` has closed the output.
fn watch(kubectl: &Kubectl, name: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut waits_for = None;
    loop {
        let job = cluster::job(kubectl, name)?;
        let status = job.status()?;
        if is_over(&status) || cluster::pods(kubectl, &job)?.iter().any(|pod| pod.has_started) {
            break;
        }
        if let Some(refused) = refusal(&status) {
            return Err(CommandEnded { exit_code: 1, message: format!("job {name} is not accepted: {refused}") }.into());
        }
        let reason = why_it_waits(&status);
        if reason.is_some() && reason != waits_for {
            eprintln!("the job waits: {}", visible(reason.as_deref().unwrap_or_default()));
            waits_for = reason;
        }
        sleep(INTERVAL);
    }
    logs::follow(kubectl, name, BTreeMap::new(), &|_, (_, line)| line + "\n", out)?;
    let status = cluster::job(kubectl, name)?.status()?;
    match (status.phase, status.last_failure) {
        (Some(JobPhase::Complete), _) => Ok(()),
        (Some(JobPhase::Failed), failure) => Err(ended(name, failure.unwrap_or_default()).into()),
        (phase, _) => {
            bail!("job {name} was stopped: it is {}", phase.map_or("new".to_owned(), |phase| phase.to_string()))
        }
    }
}

/// Returns the condition of this type, if its status is `False`.
fn unmet<'a>(status: &'a PipelineJobStatus, kind: &str) -> Option<&'a Condition> {
    status.condition(kind).filter(|condition| condition.status == "False")
}

/// Returns the reason why the operator rejects the job; `None` if the operator does not reject it.
fn refusal(status: &PipelineJobStatus) -> Option<&str> {
    Some(&unmet(status, condition_type::ACCEPTED)?.message)
}

/// Returns the operator's reason why the job's pods are not scheduled; `None` if the operator reports no reason.
fn why_it_waits(status: &PipelineJobStatus) -> Option<String> {
    let waiting = unmet(status, condition_type::SCHEDULED)?;
    Some(format!("{}: {}", waiting.reason, waiting.message))
}

/// Returns the error for a failed job. If the process has logged the reason of its exit, the error does not repeat this
/// reason.
fn ended(name: &str, failure: LastFailureStatus) -> CommandEnded {
    let exit_code = failure.exit_code.and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    let why = format!("{}: {}", failure.reason, failure.message.unwrap_or_default());
    let message = match exit_code {
        // for these codes, the process itself has logged the reason
        Some(code @ (1 | 74)) if failure.log_tail.is_some() => {
            format!("stagecoach ended with exit code {code} in the pod of job {name}")
        }
        Some(code) => format!("the pod of job {name} ended with exit code {code}: {why}"),
        None => format!("job {name} failed: {why}"),
    };
    CommandEnded { exit_code: exit_code.unwrap_or(1), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_has_the_volume_and_the_template_and_nothing_that_makes_it_a_stage() {
        let container = json!({
            "name": "trainer", "image": "team/trainer:1", "args": ["stage"], "readinessProbe": {}, "env": [{"name": "A", "value": "b"}],
        });
        let kueue = json!({"kueue.x-k8s.io/pod-group-name": "g", "kueue.x-k8s.io/queue-name": "q"});
        let template = json!({
            "metadata": {"labels": kueue},
            "spec": {"containers": [{"name": "beside"}, container], "nodeSelector": {"pool": "h100"}},
            "stages": [{"stage": 0, "spec": {}}],
        });
        let storage = json!({"persistentVolumeClaim": {"claimName": "training"}, "path": "jobs/small"});
        let job = json!({
            "apiVersion": "stagecoach.dev/v1alpha1", "kind": "PipelineJob",
            "metadata": {"name": "small", "namespace": "team", "uid": "u"},
            "spec": {"stages": 8, "model": {}, "storage": storage, "template": template, "networkPolicy": {"mode": "None"}},
        });
        let arguments = ["replay", "/workspace/jobs/small", "--step", "7"].map(str::to_owned);
        let made = manifest(&job, &["node-a".to_owned()].into(), "replay", &arguments);
        assert_eq!(made["metadata"]["generateName"], "small-replay-");
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "u");
        let spec = &made["spec"];
        assert_eq!((&spec["stages"], &spec["restart"]["maxRestarts"]), (&json!(1), &json!(0)));
        assert_eq!(spec["storage"], json!({"persistentVolumeClaim": {"claimName": "training"}}));
        assert_eq!(spec["networkPolicy"], json!({"mode": "None"}));
        assert_eq!(spec["template"]["metadata"]["labels"], json!({"kueue.x-k8s.io/queue-name": "q"}));
        assert_eq!(spec["template"].get("stages"), None);
        assert_eq!(spec["template"]["spec"]["nodeSelector"], json!({"pool": "h100"}));
        let affinity = spec["template"]["spec"]["affinity"]["nodeAffinity"].to_string();
        assert!(affinity.contains(r#""operator":"NotIn","values":["node-a"]"#), "{affinity}");
        let expected = json!([{
            "name": "trainer", "image": "team/trainer:1", "env": [{"name": "A", "value": "b"}], "command": ["stagecoach"],
            "args": ["replay", "/workspace/jobs/small", "--step", "7"], "workingDir": "/workspace",
        }]);
        assert_eq!(spec["template"]["spec"]["containers"], expected);
        let bare = json!({"metadata": {"name": "bare"}, "spec": {}, "status": {"attempt": {"image": "default:1"}}});
        let bare = manifest(&bare, &BTreeSet::new(), "audit", &["audit".into()]);
        let container = &bare["spec"]["template"]["spec"]["containers"][0];
        assert_eq!((&container["image"], &container["command"]), (&json!("default:1"), &json!(["stagecoach"])));
        assert_eq!(bare["spec"]["template"]["spec"].get("affinity"), None);
    }

    #[test]
    fn a_long_name_leaves_place_for_what_follows() {
        let long = "a".repeat(39) + "-" + &"b".repeat(14);
        let made = manifest(&json!({"metadata": {"name": long}, "spec": {}}), &BTreeSet::new(), "replay", &[]);
        assert_eq!(made["metadata"]["generateName"], "a".repeat(39) + "-replay-");
    }

    #[test]
    fn it_ends_with_the_exit_code_of_what_ran() {
        let failure = |exit_code| LastFailureStatus {
            exit_code,
            reason: "Unschedulable".into(),
            message: Some("no place".into()),
            ..LastFailureStatus::default()
        };
        let ended_with = |exit_code| ended("small-audit-x", failure(exit_code));
        assert_eq!(
            (ended_with(Some(74)).exit_code, ended_with(None).exit_code, ended_with(Some(0)).exit_code),
            (74, 1, 1)
        );
        let reported =
            ended("small-audit-x", LastFailureStatus { log_tail: Some("differs".into()), ..failure(Some(74)) });
        assert_eq!(reported.to_string(), "stagecoach ended with exit code 74 in the pod of job small-audit-x");
        let killed = ended_with(Some(137)).to_string();
        assert_eq!(killed, "the pod of job small-audit-x ended with exit code 137: Unschedulable: no place");
        assert_eq!(ended_with(None).to_string(), "job small-audit-x failed: Unschedulable: no place");
    }
}
