//! The rules one by one: an attempt of three stages, seen at one moment, and what is decided.

#![allow(clippy::unwrap_used)]

use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::{Backoff, Restart};
use stagecoach_lifecycle::*;

mod causes;
mod course;

const NOW: Time = Time::from_seconds(1000);

fn policy() -> Policy {
    Policy {
        restart: Restart { backoff: Backoff { initial_seconds: 2, max_seconds: 10 }, ..Restart::default() },
        grace: 120,
        scheduling_timeout: 3600,
        active_deadline: None,
        nodes_may_vanish: true,
    }
}

/// Attempt 1 of three stages, all created.
fn running(members: Vec<Member>) -> Observed {
    Observed {
        desired: Desired { stages: 3, revision: 7, suspend: false },
        policy: policy(),
        state: State {
            doing: Doing::Running { not_before: Time(0), created: true },
            attempt: Attempt { number: 1, stages: 3, revision: 7 },
            started: Some(Time(0)),
            ..State::default()
        },
        members,
        seen: Seen::default(),
    }
}

fn member(stage: u32, state: MemberState, seconds: u64) -> Member {
    Member { stage, attempt: 1, state, at: Time::from_seconds(seconds) }
}

fn ready(stage: u32) -> Member {
    member(stage, MemberState::Ready, 900)
}

fn exited(stage: u32, code: i32, seconds: u64) -> Member {
    member(stage, MemberState::Exited(Exit::with_code(code)), seconds)
}

fn told(stage: u32, kind: FailureKind, step: Option<u64>) -> Member {
    let report = Report {
        kind,
        step,
        action: Some("1F3".into()),
        message: "so it says".into(),
        progress: None,
        checkpoint: None,
    };
    let exit = Exit { report: Some(report), ..Exit::with_code(kind.exit_code().code()) };
    member(stage, MemberState::Exited(exit), 990)
}

fn outside(stage: u32, external: External) -> Member {
    let exit = Exit { external: Some(external), ..Exit::with_signal(9) };
    member(stage, MemberState::Exited(exit), 995)
}
