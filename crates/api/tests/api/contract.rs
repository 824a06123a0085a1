//! The contract of a stage: environment, exit codes, termination message, status.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;
use serde_json::json;
use stagecoach_api::contract::*;
use stagecoach_api::job::{FloatString, ProgressStatus};
use stagecoach_api::visible;

fn stage_env() -> StageEnv {
    StageEnv {
        rank: 1,
        mesh: Mesh::pipeline(3),
        job: "tiny".into(),
        job_uid: "0d9f".into(),
        attempt: 4,
        incarnation: 2,
        spare: None,
        config: CONFIG_PATH.into(),
        workspace: WORKSPACE_PATH.into(),
        master_addr: "tiny".into(),
        master_port: MASTER_PORT,
        pod_ip: "10.0.0.2".into(),
        pod_uid: "77aa".into(),
    }
}

#[test]
fn the_environment_is_read_as_it_was_written() {
    let env = stage_env();
    let spare = StageEnv { rank: 0, incarnation: 0, spare: Some(5), ..env.clone() };
    let names = |env: &StageEnv| env.to_vars().into_iter().map(|(name, _)| name).collect::<BTreeSet<_>>();
    assert_eq!(&names(&env) | &names(&spare), env::ALL.into());
    let of_a_stage: BTreeSet<_> = names(&env).difference(&names(&spare)).copied().collect();
    assert_eq!(of_a_stage, [env::RANK, env::STAGE, env::REPLICA, env::INCARNATION].into());
    let replicated = StageEnv { rank: 4, mesh: Mesh { stages: 3, data_parallel: 2 }, ..env.clone() };
    for env in [env, spare, replicated] {
        assert_eq!(StageEnv::from_vars(env.to_vars()).unwrap(), env);
    }
}

/// An older operator, or a user who starts a custom trainer by hand, does not set the variables of replicas.
#[test]
fn without_replicas_all_processes_are_stages_of_one() {
    let mut vars = stage_env().to_vars();
    vars.retain(|(name, _)| ![env::REPLICA, env::DATA_PARALLEL, env::STAGES].contains(name));
    assert_eq!(StageEnv::from_vars(vars).unwrap(), stage_env());
}

#[test]
fn a_wrong_environment_is_refused_by_name() {
    // a row: the variable, its value or `None` to remove it, and the expected message
    let rows = [
        (
            "STAGECOACH_SPARE",
            Some("0"),
            "environment variable RANK: is set, and so is STAGECOACH_SPARE: a spare has no stage",
        ),
        ("RANK", None, "environment variable RANK: is not set; the operator and `stagecoach run` set it"),
        (
            "RANK",
            Some("one"),
            "environment variable RANK: is \"one\", expected a whole number in the range of the variable",
        ),
        (
            "RANK",
            Some("-1"),
            "environment variable RANK: is \"-1\", expected a whole number in the range of the variable",
        ),
        ("RANK", Some("3"), "environment variable RANK: is 3; with WORLD_SIZE 3 the ranks are 0 to 2"),
        ("STAGECOACH_STAGE", Some("2"), "environment variable RANK: is 1, stage 1, but STAGECOACH_STAGE is 2"),
        (
            "WORLD_SIZE",
            Some("4"),
            "environment variable WORLD_SIZE: is 4, but STAGECOACH_STAGES times STAGECOACH_DATA_PARALLEL is 3 times \
             1: the product must be WORLD_SIZE, the number of the job's processes",
        ),
        ("STAGECOACH_REPLICA", Some("1"), "environment variable RANK: is 1, stage 1, but STAGECOACH_REPLICA is 1"),
        (
            "STAGECOACH_DATA_PARALLEL",
            Some("2"),
            "environment variable WORLD_SIZE: is 3, but STAGECOACH_STAGES times STAGECOACH_DATA_PARALLEL is 3 times \
             2: the product must be WORLD_SIZE, the number of the job's processes",
        ),
        ("WORLD_SIZE", Some("0"), "environment variable WORLD_SIZE: is 0; a job has 1 to 256 stages"),
        ("WORLD_SIZE", Some(""), "environment variable WORLD_SIZE: is empty"),
        (
            "MASTER_PORT",
            Some("99999"),
            "environment variable MASTER_PORT: is \"99999\", expected a whole number in the range of the variable",
        ),
        (
            "STAGECOACH_JOB_UID",
            None,
            "environment variable STAGECOACH_JOB_UID: is not set; the operator and `stagecoach run` set it",
        ),
    ];
    for (variable, value, expected) in rows {
        let mut vars = stage_env().to_vars();
        vars.retain(|(name, _)| *name != variable);
        vars.extend(
            value.map(|value| (env::ALL.into_iter().find(|name| *name == variable).unwrap(), value.to_owned())),
        );
        assert_eq!(StageEnv::from_vars(vars).unwrap_err().to_string(), expected);
    }
}

#[test]
fn exit_codes_are_their_numbers() {
    assert_eq!(ExitCode::ALL.map(ExitCode::code), [0, 1, 74, 75, 78, 137, 143]);
    for code in 0..256 {
        assert_eq!(ExitCode::from_i32(code).map_or(code, ExitCode::code), code);
    }
}

#[test]
fn a_status_with_nan_survives_json() {
    let status = StageStatus {
        job_uid: "0d9f".into(),
        progress: ProgressStatus {
            step: 3,
            loss: Some(FloatString(f64::NAN)),
            bubble: Some(FloatString(0.25)),
            ..ProgressStatus::default()
        },
        ..StageStatus::default()
    };
    let json = serde_json::to_string(&status).unwrap();
    assert!(json.contains(r#""loss":"NaN","bubble":"0.25""#), "{json}");
    assert_eq!(serde_json::from_str::<StageStatus>(&json).unwrap(), status);
    assert_eq!(FloatString(3.20714).rounded(4).to_string(), "3.2071");
}

#[test]
fn a_newer_message_is_still_read() {
    let text = r#"{"kind":"NonFinite","stage":2,"step":7,"message":"loss is NaN","colour":"red"}"#;
    let message = TerminationMessage::from_json(text).unwrap();
    assert_eq!((message.kind, message.stage, message.step), (FailureKind::NonFinite, 2, Some(7)));
    assert_eq!(TerminationMessage::from_json("Traceback (most recent call last):"), None);
}

#[test]
fn the_reason_of_an_early_end_is_made_visible() {
    let text = r#"{"kind":"Done","stage":0,"progress":{"step":7,"endedEarly":"\u001b[2Jno better"}}"#;
    let progress = TerminationMessage::from_json(text).unwrap().progress.unwrap();
    assert_eq!((progress.step, progress.ended_early.as_deref()), (7, Some("^[[2Jno better")));
}

#[test]
fn a_count_that_readers_of_json_cannot_hold_is_refused() {
    let largest = (1_u64 << 53) - 1;
    let status = |count: u64| json!({"attempt": count, "progress": {"step": count, "steps": count}});
    let read: StageStatus = serde_json::from_value(status(largest)).unwrap();
    assert_eq!((read.attempt, read.progress.step, read.progress.steps), (largest, largest, Some(largest)));
    for count in [largest + 1, u64::MAX] {
        let error = serde_json::from_value::<StageStatus>(status(count)).unwrap_err().to_string();
        assert!(error.contains(&count.to_string()), "{error}");
        for field in ["step", "checkpoint"] {
            let mut message = json!({"kind": "Error", "stage": 0});
            message[field] = if field == "step" { json!(count) } else { json!({"step": count}) };
            assert_eq!(TerminationMessage::from_json(&message.to_string()), None, "{field}");
        }
    }
}

proptest! {
    #[test]
    fn a_termination_message_fits_and_keeps_what_decides(text in "\\PC{0,3000}|[\\x00-\\x1f\"\\\\]{0,6000}|(é|🔑){0,2500}") {
        let message = TerminationMessage { step: Some(7), ..TerminationMessage::new(FailureKind::NonFinite, 2, text.as_str()) };
        let json = message.to_json();
        prop_assert!(json.len() <= TERMINATION_MESSAGE_BYTES);
        let read = TerminationMessage::from_json(&json).unwrap();
        prop_assert_eq!((read.kind, read.stage, read.step), (FailureKind::NonFinite, 2, Some(7)));
        // `from_json` makes the text visible, because a reader may show it on a terminal
        let text = visible(&text);
        prop_assert!(text.starts_with(read.message.trim_end_matches("...")) || read.message == text);
        // If the text was shortened, the JSON still fills nine tenths of the available space.
        prop_assert!(read.message == text || json.len() > TERMINATION_MESSAGE_BYTES * 9 / 10, "{}", json.len());
    }

    /// An environment with one to three other values is refused, or read as the environment that it describes.
    #[test]
    fn reading_an_environment_never_panics(
        is_spare in any::<bool>(),
        changes in proptest::collection::vec((proptest::sample::select(env::ALL.to_vec()), value()), 1..=3),
    ) {
        let spare = StageEnv { rank: 0, incarnation: 0, spare: Some(5), ..stage_env() };
        let unchanged = if is_spare { spare } else { stage_env() };
        let mut vars: HashMap<_, _> = unchanged.to_vars().into_iter().collect();
        for (variable, value) in changes {
            match value {
                Some(value) => vars.insert(variable, value),
                None => vars.remove(variable),
            };
        }
        if let Ok(read) = StageEnv::from_vars(vars) {
            prop_assert_eq!(StageEnv::from_vars(read.to_vars()), Ok(read));
        }
    }
}

/// Returns values of a variable: numbers near the limits, any text, or no value.
fn value() -> impl Strategy<Value = Option<String>> {
    let limits = [0, 1, 2, 3, 4, 255, 256, 257, u64::from(u16::MAX), u64::from(u32::MAX), u64::MAX];
    prop_oneof![
        proptest::sample::select(limits.to_vec()).prop_map(|number| Some(number.to_string())),
        any::<String>().prop_map(Some),
        Just(None::<String>),
    ]
}
