//! Unit tests of `decide`. In most tests, the input is an observation of an attempt with three stages.

use stagecoach_api::contract::{FailureKind, Mesh};
use stagecoach_api::job::{BackoffSpec, RestartSpec};
use stagecoach_lifecycle::*;

mod causes;
mod clock_jumps;
mod elastic;
mod pod_failure_policy;
mod replacement;
mod replicas;
mod spares;
mod suspension;
mod transitions;

const NOW: UnixMillis = UnixMillis::from_seconds(1000);

fn policy() -> FailurePolicy {
    FailurePolicy {
        restart: RestartSpec { backoff: BackoffSpec { initial_seconds: 2, max_seconds: 10 }, ..RestartSpec::default() },
        grace_seconds: 120,
        scheduling_timeout_seconds: 3600,
        active_deadline_seconds: None,
        backoff_jitter_percent: 0,
        replaces_stages: false,
        spares: 0,
        nodes_can_be_lost: true,
        min_data_parallel: 1,
        is_elastic: false,
    }
}

/// Returns an observation of attempt 1, which has three stages. The state records that all three instances were
/// created. `instances` are the instances that still exist.
fn running(instances: Vec<StageInstance>) -> Observed {
    Observed {
        desired: Desired {
            mesh: Mesh::pipeline(3),
            revision: 7,
            suspend: false,
            admission: Admission::NotRequired,
            admitted_replicas: None,
        },
        policy: policy(),
        state: JobState {
            attempt_phase: AttemptPhase::Running { not_before: UnixMillis(0), all_created: true },
            attempt: Attempt { number: 1, mesh: Mesh::pipeline(3), revision: 7, admission: 0, admitted_replicas: None },
            started_at: Some(UnixMillis(0)),
            ..JobState::default()
        },
        instances,
        spares: vec![],
        refusal: None,
        progress: ObservedProgress::default(),
    }
}

fn start(number: u64, stages: u32) -> AttemptAction {
    AttemptAction::StartAttempt { number, mesh: Mesh::pipeline(stages), instances: stages }
}

fn instance(rank: u32, state: InstanceState, seconds: u64) -> StageInstance {
    let since = UnixMillis::from_seconds(seconds);
    StageInstance { rank, attempt: 1, incarnation: 0, spare: None, state, since, pod_conditions: Vec::new() }
}

fn ready(rank: u32) -> StageInstance {
    instance(rank, InstanceState::Ready, 900)
}

fn exited(rank: u32, code: i32, seconds: u64) -> StageInstance {
    instance(rank, InstanceState::Exited(Exit::with_code(code)), seconds)
}

fn exited_with_report(rank: u32, kind: FailureKind, step: Option<u64>) -> StageInstance {
    let report = TerminationReport {
        kind,
        step,
        action: Some("1F3".into()),
        message: "its message".into(),
        finished_steps: None,
        checkpoint_step: None,
    };
    let exit = Exit { termination: Some(report), ..Exit::with_code(kind.exit_code().code()) };
    instance(rank, InstanceState::Exited(exit), 990)
}

fn exited_by_external_cause(rank: u32, cause: ExternalCause) -> StageInstance {
    let exit = Exit { external_cause: Some(cause), signal: Some(9), ..Exit::default() };
    instance(rank, InstanceState::Exited(exit), 995)
}
