//! The job file of an attempt: the part of the job that the attempt's stages read. The trainer may be older than the
//! operator, and rejects fields that its version does not have. The file therefore has only fields that the trainer
//! needs: no field at its default, and no field that only the operator reads. An attempt that keeps the image of the
//! previous attempt also keeps the previous job file.

use serde_json::{Map, Value, json};
use stagecoach_api::PipelineJob;
use stagecoach_api::contract::Mesh;
use stagecoach_api::job::{DataSpec, NetworkPolicySpec, PipelineJobSpec, PodTemplate, RestartSpec, SchedulingSpec};

/// The fields of the spec that may differ between two attempts with the same revision of the spec.
const PER_ATTEMPT_FIELDS: [&str; 4] = ["stages", "dataParallel", "elastic", "restart"];

/// Returns the job file of an attempt with the stages and replicas of `mesh`. The file is JSON, and therefore also
/// YAML.
///
/// # Errors
/// Returns an error if JSON can't represent a number of the job.
pub(super) fn new(job: &PipelineJob, mesh: Mesh) -> serde_json::Result<String> {
    let RestartSpec { startup_timeout_seconds, reform_timeout_seconds, .. } = job.spec.restart;
    let RestartSpec { heartbeat_timeout_seconds, stall_timeout_seconds, min_data_parallel, .. } = job.spec.restart;
    let spec = PipelineJobSpec {
        stages: mesh.stages,
        data_parallel: mesh.data_parallel,
        suspend: false,
        // the stages do not read the Secret: the kubelet sets its variables
        data: job.spec.data.clone().map(|data| DataSpec { credentials: None, ..data }),
        restart: RestartSpec {
            startup_timeout_seconds,
            reform_timeout_seconds,
            min_data_parallel,
            heartbeat_timeout_seconds,
            stall_timeout_seconds,
            ..RestartSpec::default()
        },
        scheduling: SchedulingSpec::default(),
        network_policy: NetworkPolicySpec::default(),
        active_deadline_seconds: None,
        ttl_seconds_after_finished: None,
        template: job.spec.template.as_ref().and_then(grace_period_only),
        ..job.spec.clone()
    };
    serde_json::to_string_pretty(&PipelineJob { spec, status: None, ..job.clone() }.without_defaults())
}

/// Returns the job file of an earlier attempt of the same revision, with the per-attempt fields of `own`, the new
/// attempt's job file. Returns `None` if either file can't be parsed.
pub(super) fn carried_over(earlier: &str, own: &str) -> Option<String> {
    let [earlier, mut own] = [earlier, own].map(|file| serde_json::from_str::<Value>(file).ok());
    let mut spec = earlier?.get_mut("spec")?.as_object_mut().map(std::mem::take)?;
    let own_spec = own.as_mut()?.get_mut("spec")?;
    for field in PER_ATTEMPT_FIELDS {
        match own_spec.get_mut(field).map(Value::take) {
            Some(value) => spec.insert(field.into(), value),
            None => spec.shift_remove(field),
        };
    }
    *own_spec = spec.into();
    serde_json::to_string_pretty(&own?).ok()
}

/// Returns the pod template with only the termination grace period, the one field of the template that a stage reads.
fn grace_period_only(template: &PodTemplate) -> Option<PodTemplate> {
    let grace = template.0.get("spec")?.get("terminationGracePeriodSeconds")?;
    let spec = json!({ "terminationGracePeriodSeconds": grace });
    Some(PodTemplate(Map::from_iter([("spec".to_owned(), spec)])))
}
