//! The conditions about the training: `Progressing`, `CheckpointsHealthy`, `Reproducible` and `AuditsEqual`.

use stagecoach_api::PipelineJobStatus;
use stagecoach_api::contract::{FailureKind, StagePhase, SuspectedStage};
use stagecoach_api::job::{Condition, JobPhase, condition_reason as reason, condition_type as kind};
use stagecoach_lifecycle::InstanceId;

use super::super::StatusInputs;
use super::{ConditionValue, value};

pub(super) fn progressing(inputs: &StatusInputs) -> ConditionValue {
    let alive = matches!(inputs.decision.job_phase, JobPhase::Running | JobPhase::Starting | JobPhase::Draining);
    let Some(polled) = inputs.pods.leader_status.as_ref().filter(|_| alive) else {
        return match inputs.decision.job_phase {
            JobPhase::Running => value("Unknown", reason::NOT_HEARD, "the leader has not answered yet"),
            _ if alive && inputs.pods.leader_is_silent => {
                value("Unknown", reason::NOT_HEARD, "the leader runs and has not answered yet")
            }
            phase => value("False", phase.as_str(), "nothing is being trained"),
        };
    };
    match (polled.is_reachable, polled.is_training()) {
        (false, _) => value("Unknown", reason::STATUS_UNREACHABLE, "the leader does not answer: training may continue"),
        (true, true) => value("True", StagePhase::Training.as_str(), "steps are being trained"),
        (true, false) => {
            let stage_phase = polled.status.phase.as_str();
            let message = if polled.status.message.is_empty() { stage_phase } else { &polled.status.message };
            value("True", stage_phase, message)
        }
    }
}

pub(super) fn checkpoints_healthy(inputs: &StatusInputs, new: &PipelineJobStatus) -> ConditionValue {
    let is_off = inputs.job.manifest.spec.checkpoint.every_steps == 0;
    let failing = inputs.pods.leader_status.as_ref().and_then(|polled| polled.status.save_failure.clone());
    if let Some(message) = failing {
        return value("False", reason::SAVING_FAILS, message);
    }
    // a failure to save stays in the condition until a checkpoint is committed, even across attempts
    let before = inputs.job.status.conditions.iter().find(|old| old.reason == reason::SAVING_FAILS);
    let current = inputs.decision.state.attempt.number;
    let known = inputs.pods.leader_status.as_ref().and_then(|polled| polled.status.checkpoint.as_ref());
    let saved =
        known.is_some_and(|known| known.attempt == Some(current)) || new.checkpoint != inputs.job.status.checkpoint;
    if let Some(before) = before.filter(|_| !saved) {
        return value("False", reason::SAVING_FAILS, before.message.clone());
    }
    match &new.checkpoint {
        Some(checkpoint) => value("True", reason::COMMITTED, format!("step {} is committed", checkpoint.step)),
        None if is_off => value("Unknown", reason::OFF, "checkpoint.everySteps is 0: only the end is saved"),
        None => value("Unknown", reason::NONE_YET, "no checkpoint is committed yet"),
    }
}

pub(super) fn reproducible(inputs: &StatusInputs) -> ConditionValue {
    let polled = inputs.pods.leader_status.as_ref();
    match polled.and_then(|polled| polled.status.environment_differences.as_deref()) {
        Some([]) => value("True", reason::ONE_ENVIRONMENT, "the environment has not changed since the first step"),
        Some(differences) => value(
            "False",
            reason::ENVIRONMENT_CHANGED,
            format!("the results may differ from those of a run in one environment: {}", differences.join(", ")),
        ),
        // keep the known value, even after the job has finished
        None => match inputs.job.status.condition(kind::REPRODUCIBLE) {
            Some(Condition { status, reason, message, .. }) if status == "True" => value("True", reason, message),
            Some(Condition { status, reason, message, .. }) if status == "False" => value("False", reason, message),
            _ => value("Unknown", reason::NOT_HEARD, "the leader has not reported its environment"),
        },
    }
}

pub(super) fn audits_equal(inputs: &StatusInputs) -> ConditionValue {
    let spec = &inputs.job.manifest.spec;
    let found = inputs.pods.leader_status.as_ref().and_then(|polled| polled.status.audit.as_ref());
    let difference = found.and_then(|audit| Some((audit.differences.last()?.clone(), audit.suspects.clone())));
    // the leader may have exited before the operator read its last status: use the failure that ended the attempt
    let failure = inputs.decision.state.last_failure.as_ref();
    let failure = failure.filter(|failure| failure.kind == Some(FailureKind::WrongResult));
    let from_failure = || {
        let instance = failure?.instance_id()?;
        let suspect = SuspectedStage { stage: instance.rank, incarnation: instance.incarnation };
        Some((failure?.message.clone(), vec![suspect]))
    };
    let before = inputs.job.status.condition(kind::AUDITS_EQUAL);
    let known = |status: &str| before.filter(|old| old.status == status);
    match difference.or_else(from_failure) {
        Some((message, suspects)) => match known("False").filter(|old| old.message.starts_with(&message)) {
            Some(old) => value("False", &old.reason, &old.message),
            None => value("False", reason::STAGE_DIFFERS, message + &on_nodes(inputs, &suspects)),
        },
        // keep `False`, because the weights may contain the wrong result
        None => match known("False") {
            Some(old) => value("False", &old.reason, &old.message),
            None if found.is_some() || known("True").is_some() => {
                value("True", reason::EQUAL, "every audited result was bitwise equal on a second stage")
            }
            None if spec.audit().is_none() => {
                value("Unknown", reason::OFF, "training.audit is not given, or there is no second stage")
            }
            None => value("Unknown", reason::NONE_YET, "nothing was audited yet"),
        },
    }
}

/// Returns the end of a message, which names the nodes of these stages' pods. Pods that do not exist are omitted.
fn on_nodes(inputs: &StatusInputs, suspects: &[SuspectedStage]) -> String {
    let attempt = inputs.decision.state.last_failure.as_ref().map_or(0, |failure| failure.attempt);
    let attempts = [inputs.decision.state.attempt.number, attempt];
    let name = |suspect: &SuspectedStage| {
        let instance = InstanceId { rank: suspect.stage, incarnation: suspect.incarnation };
        let mut pods = attempts.iter().flat_map(|&attempt| inputs.pods.of_attempt(attempt));
        let pod = pods.find(|pod| pod.instance_id() == Some(instance))?;
        Some(format!("pod {} is on node {}", pod.name, pod.node.as_ref()?))
    };
    let named: Vec<String> = suspects.iter().filter_map(name).collect();
    if named.is_empty() { String::new() } else { format!("; {}", named.join(", ")) }
}
