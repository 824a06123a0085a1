//! Refuses the fields and the environment variables that a pod template must not have, and requires the container of a
//! custom trainer.

use serde_json::Value;

use crate::contract::{CONTAINER_NAME, env};
use crate::job::{PipelineJobSpec, TrainerType};

use super::Problems;

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    let pod = spec.template.as_ref().and_then(|template| template.0.get("spec"));
    check_pod(pod, "spec.template.spec", problems);
    if let Some(overrides) = spec.template.as_ref().and_then(|template| template.0.get("stages")) {
        check_overrides(overrides, problems);
    }
    if spec.trainer.kind == TrainerType::Custom {
        let has_trainer =
            pod.and_then(|pod| pod.get("containers")).and_then(Value::as_array).is_some_and(|containers| {
                containers.iter().any(|container| container.get("name").is_some_and(|name| name == CONTAINER_NAME))
            });
        problems.require(has_trainer, "spec.template.spec.containers", || {
            format!(
                "has no container called `{CONTAINER_NAME}`: with spec.trainer.type Custom, its command is the trainer"
            )
        });
    }
}

fn check_pod(pod: Option<&Value>, at: &str, problems: &mut Problems) {
    for list in ["containers", "initContainers"] {
        let containers = pod.and_then(|pod| pod.get(list)).and_then(Value::as_array);
        for (index, container) in containers.into_iter().flatten().enumerate() {
            let at = format!("{at}.{list}[{index}]");
            check_environment(container, &at, problems);
            problems.require(container.get("restartPolicyRules").is_none(), format!("{at}.restartPolicyRules"), || {
                "would restart a container alone: remove it; all stages are restarted together, by spec.restart".into()
            });
        }
    }
}

/// Checks the overrides of single stages. An override of a stage that the job does not have is valid, because the job
/// may be scaled later.
fn check_overrides(overrides: &Value, problems: &mut Problems) {
    let Some(overrides) = overrides.as_array() else {
        return problems
            .require(false, "spec.template.stages", || "is no list: write `- {stage: 0, spec: {...}}`".into());
    };
    let mut seen = Vec::new();
    for (index, one) in overrides.iter().enumerate() {
        let at = format!("spec.template.stages[{index}]");
        let stage = one.get("stage").and_then(Value::as_u64);
        problems.require(stage.is_some(), format!("{at}.stage"), || {
            "is missing, or is not a whole number: give the number of the stage to which the override applies, \
             counted from 0"
                .into()
        });
        problems.require(stage.is_none() || !seen.contains(&stage), format!("{at}.stage"), || {
            "is also the stage of an earlier override: merge the two overrides".into()
        });
        seen.push(stage);
        for field in one.as_object().into_iter().flat_map(|fields| fields.keys()) {
            problems.require(["stage", "metadata", "spec"].contains(&field.as_str()), format!("{at}.{field}"), || {
                "is not known: an override has the fields stage, metadata and spec".into()
            });
        }
        check_pod(one.get("spec"), &format!("{at}.spec"), problems);
    }
}

/// Refuses the environment variables of the contract, because the operator sets them to other values.
fn check_environment(container: &Value, at: &str, problems: &mut Problems) {
    let variables = container.get("env").and_then(Value::as_array);
    for (index, variable) in variables.into_iter().flatten().enumerate() {
        let name = variable.get("name").and_then(Value::as_str).unwrap_or_default();
        problems.require(!env::ALL.contains(&name), format!("{at}.env[{index}].name"), || {
            format!("{name} is set by Stagecoach for every stage: remove it, or use another name")
        });
    }
}
