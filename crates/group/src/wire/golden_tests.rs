//! Tests the bytes of one frame of each kind. postcard encodes fields and variants by position, not by name. A failure
//! here means that a field or variant was reordered, added or removed. Two versions of the trainer would then decode
//! the same bytes differently.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::activity::Heartbeat;
use crate::wire::messages::{CoordinatorMessage, MemberMessage, PROTOCOL_VERSION, encode_message, preamble};
use crate::{
    AbortKind, BlockLosses, FieldMismatch, GroupFailure, Hello, Refusal, Roster, StepOutcome, StepVote, Verdict,
};

/// Formats the frame in hexadecimal.
fn hex<T: Serialize>(frame: &T) -> String {
    encode_message(frame).unwrap().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hello() -> Hello {
    Hello {
        job_uid: "j".to_owned(),
        attempt: 300,
        rank: 1,
        world_size: 2,
        lost_ranks: Some(vec![3]),
        incarnation: 4,
        pod_uid: "p".to_owned(),
        version: "v".to_owned(),
        config: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
        data_address: "d".to_owned(),
        host: "h".to_owned(),
    }
}

fn verdict(outcome: StepOutcome) -> CoordinatorMessage {
    CoordinatorMessage::Verdict(Verdict {
        step: 9,
        outcome,
        loss: 2.5,
        norm: 0.5,
        save: true,
        stop: false,
        regroup: true,
        consecutive_skips: 4,
        measurements: vec![vec![1.0], vec![]],
    })
}

#[test]
fn the_preamble_is_the_magic_and_the_version() {
    assert_eq!(PROTOCOL_VERSION, 12);
    assert_eq!(preamble(), *b"stgcoach\x0c\0\0\0");
}

#[test]
fn messages_of_a_member() {
    let heartbeat =
        Heartbeat { text: "F 5".to_owned(), waits_for: Some(2), sequence: 300, age: Duration::from_millis(1500) };
    let vote = StepVote {
        step: 9,
        losses: Some(BlockLosses { blocks: 2, target_count: 300, sums: vec![(1, 2.5)] }),
        squared_norms: vec![(1, 0.5)],
        stop_requested: true,
        save_due: false,
        save_in_progress: true,
        consecutive_skips: 4,
        all_finite: false,
        measurements: vec![1.0],
        unfinished: true,
    };
    assert_eq!(hex(&MemberMessage::Hello(hello())), "1800000000016aac0201020101030401700176010161016201640168");
    assert_eq!(hex(&MemberMessage::Heartbeat(heartbeat)), "0f00000001034620350102ac020180cab5ee01");
    assert_eq!(hex(&MemberMessage::Formed), "0100000002");
    assert_eq!(hex(&MemberMessage::Broadcast { topic: 7, bytes: vec![1, 2] }), "050000000307020102");
    assert_eq!(hex(&MemberMessage::Gather { topic: 7, bytes: vec![1, 2] }), "050000000407020102");
    assert_eq!(
        hex(&MemberMessage::Vote(vote)),
        "2900000005090102ac02010100000000000004400101000000000000e03f010001040001000000000000f03f01"
    );
    assert_eq!(hex(&MemberMessage::Leave { code: 75 }), "03000000069601");
    assert_eq!(hex(&MemberMessage::WaitAsSpare(hello())), "1800000007016aac0201020101030401700176010161016201640168");
}

#[test]
fn messages_of_the_coordinator() {
    assert_eq!(hex(&CoordinatorMessage::Preparing("p".to_owned())), "03000000000170");
    assert_eq!(hex(&CoordinatorMessage::Heartbeat), "0100000001");
    assert_eq!(
        hex(&CoordinatorMessage::Released { roster: Roster { members: vec![hello()] }, plan: vec![1, 2] }),
        "1c0000000301016aac0201020101030401700176010161016201640168020102"
    );
    assert_eq!(hex(&CoordinatorMessage::Formed), "0100000004");
    assert_eq!(hex(&CoordinatorMessage::Broadcast { topic: 7, bytes: vec![1, 2] }), "050000000507020102");
    assert_eq!(hex(&CoordinatorMessage::Gathered { topic: 7, parts: vec![vec![1], vec![]] }), "06000000060702010100");
    assert_eq!(
        hex(&verdict(StepOutcome::Apply { clip: 0.5 })),
        "26000000070900000000000000e03f00002040000000000000e03f010001040201000000000000f03f00"
    );
    assert_eq!(
        hex(&verdict(StepOutcome::Skip)),
        "1e00000007090100002040000000000000e03f010001040201000000000000f03f00"
    );
    assert_eq!(
        hex(&verdict(StepOutcome::Discard)),
        "1e00000007090300002040000000000000e03f010001040201000000000000f03f00"
    );
    assert_eq!(
        hex(&verdict(StepOutcome::Abort { kind: AbortKind::Mismatch, reason: "r".to_owned() })),
        "2100000007090201017200002040000000000000e03f010001040201000000000000f03f00"
    );
    assert_eq!(hex(&CoordinatorMessage::LeaveAcknowledged), "0100000008");
    assert_eq!(hex(&CoordinatorMessage::NextInLine { incarnation: 3 }), "020000000a03");
    assert_eq!(hex(&CoordinatorMessage::Promote { rank: 1, incarnation: 3 }), "030000000b0103");
    let waiting = CoordinatorMessage::Waiting { progress: "p".to_owned(), succeeds_leader: true };
    assert_eq!(hex(&waiting), "040000000c017001");
}

#[test]
fn refusals() {
    let refused = |refusal| hex(&CoordinatorMessage::Refused(refusal));
    let field = FieldMismatch { field: "f".to_owned(), expected: Some("e".to_owned()), found: None };
    assert_eq!(refused(Refusal::OtherJob { expected: "e".to_owned(), found: "f".to_owned() }), "06000000020001650166");
    assert_eq!(refused(Refusal::OtherAttempt { expected: 2, found: 1 }), "0400000002010201");
    assert_eq!(refused(Refusal::WorldSizeMismatch { expected: 2, found: 1 }), "0400000002020201");
    assert_eq!(refused(Refusal::RankOutOfRange { world_size: 2, found: 1 }), "0400000002030201");
    assert_eq!(refused(Refusal::ConfigMismatch { fields: vec![field] }), "09000000020401016601016500");
    assert_eq!(refused(Refusal::AlreadyFormed { rank: 1 }), "03000000020501");
    assert_eq!(refused(Refusal::GroupEnded { reason: "r".to_owned() }), "0400000002060172");
    assert_eq!(refused(Refusal::Replaced { rank: 1 }), "03000000020701");
}

#[test]
fn failures() {
    let failure = GroupFailure { root_cause_rank: Some(1), rank: 2, message: "m".to_owned(), has_ended: true };
    assert_eq!(hex(&CoordinatorMessage::GroupEnded(failure)), "0700000009010102016d01");
}
