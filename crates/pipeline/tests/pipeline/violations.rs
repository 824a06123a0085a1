//! Tests a broken program for every kind of violation. The error names the rank, the position, the action and the
//! remedy.

use stagecoach_pipeline::{Limits, Placement, Programs, Violation, verify, verify_evaluation};

const GOOD: [&str; 2] = [
    "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0RECV_B1 0B0 0B1 REDUCE_TIED EXCHANGE UPDATE SNAPSHOT",
    "1RECV_F0 1RECV_F1 1F0 1F1 1B0 1SEND_B0 1B1 1SEND_B1 REDUCE_TIED EXCHANGE UPDATE SNAPSHOT",
];

fn programs(ranks: &[&str]) -> Programs {
    let actions = |text: &&str| text.split_whitespace().map(|action| action.parse().unwrap()).collect();
    let ranks: Vec<_> = ranks.iter().map(actions).collect();
    Programs { placement: Placement::linear(2), microbatches: 2, ranks }
}

fn refuse(rank: usize, old: &str, new: &str, sends_in_flight: usize) -> String {
    let mut ranks = GOOD.map(str::to_owned);
    assert!(ranks[rank].contains(old), "{old}");
    ranks[rank] = ranks[rank].replacen(old, new, 1);
    let programs = programs(&[&ranks[0], &ranks[1]]);
    verify(&programs, &Limits { sends_in_flight, max_in_flight: None }).expect_err(new).to_string()
}

#[test]
fn valid_programs_are_accepted() {
    verify(&programs(&GOOD), &Limits::default()).unwrap();
    assert_eq!(programs(&GOOD).in_flight(), [2, 2]);
}

/// The programs of one of several replicas, with chunks 0 and 3 on rank 0, and chunks 1 and 2 on rank 1.
const REPLICA: [&str; 2] = [
    "0F0 0SEND_F0 3RECV_F0 0RECV_B0 3F0 3B0 3SEND_B0 3REDUCE 0B0 0REDUCE EXCHANGE UPDATE 0GATHER 3GATHER SNAPSHOT",
    "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 2REDUCE 1B0 1SEND_B0 1REDUCE EXCHANGE UPDATE 1GATHER 2GATHER SNAPSHOT",
];

fn replica(ranks: [&str; 2]) -> Programs {
    Programs { placement: Placement::v_shaped(2), microbatches: 1, ..programs(&ranks) }
}

#[test]
fn a_replica_exchanges_a_chunk_as_soon_as_it_can() {
    let good = replica(REPLICA);
    assert!(good.replicated() && verify(&good, &Limits::default()).is_ok());
    assert_eq!(Programs::from_text(&good.to_text()), Ok(good.clone()));
    let mut alone = good.clone();
    alone.ranks.iter_mut().for_each(|actions| actions.retain(|action| !action.is_between_replicas()));
    assert!(!alone.replicated() && verify(&alone, &Limits::default()).is_ok());
    assert_eq!(alone.replicate(), good, "each REDUCE is behind the last gradient and what is sent with it");
    let tied = programs(&GOOD).replicate();
    assert!(verify(&tied, &Limits::default()).is_ok());
    assert!(tied.to_text().contains("0B1 0REDUCE REDUCE_TIED EXCHANGE UPDATE 0GATHER SNAPSHOT"), "{}", tied.to_text());
}

#[test]
fn an_exchange_between_replicas_at_the_wrong_time_is_refused() {
    for (rank, old, new, error) in [
        (0, "3REDUCE ", "", "0REDUCE (rank 0, position 8): the action needs 3REDUCE earlier"),
        (0, "0REDUCE ", "", "EXCHANGE (rank 0, position 9): the action needs 0REDUCE earlier"),
        (1, "2B0 2REDUCE", "2REDUCE 2B0", "2REDUCE (rank 1, position 5): the action needs 2B0 earlier"),
        (1, "2B0 2REDUCE", "2I0 2REDUCE 2W0", "2REDUCE (rank 1, position 6): the action needs 2W0 earlier"),
        (1, "1REDUCE EXCHANGE", "EXCHANGE 1REDUCE", "EXCHANGE (rank 1, position 9): the action needs 1REDUCE earlier"),
        (1, "1REDUCE EXCHANGE", "1REDUCE 1REDUCE EXCHANGE", "1REDUCE (rank 1, position 10): its work is already done"),
        (
            0,
            "3REDUCE 0B0 0REDUCE",
            "0B0 0REDUCE 3REDUCE",
            "0REDUCE (rank 0, position 8): the action needs 3REDUCE earlier",
        ),
        (0, "UPDATE 0GATHER", "0GATHER UPDATE", "0GATHER (rank 0, position 11): the action needs UPDATE earlier"),
        (0, "0GATHER 3GATHER", "3GATHER 0GATHER", "3GATHER (rank 0, position 12): the action needs 0GATHER earlier"),
        (0, "0GATHER 3GATHER", "0GATHER", "SNAPSHOT (rank 0, position 13): the action needs 3GATHER earlier"),
        (0, "3GATHER", "3GATHER 3GATHER", "3GATHER (rank 0, position 14): its work is already done"),
        (0, "3GATHER", "1GATHER", "1GATHER (rank 0, position 13): that chunk is on rank 1: move the action there"),
        (0, "3GATHER", "4GATHER", "4GATHER (rank 0, position 13): there are 4 chunks"),
        (0, "0GATHER 3GATHER SNAPSHOT", "0GATHER SNAPSHOT 3GATHER", "the action needs 3GATHER earlier"),
        // a REDUCE needs the last gradient of its chunk
        (0, "0B0 0REDUCE", "0REDUCE", "0REDUCE (rank 0, position 8): the action needs 0B0 earlier"),
    ] {
        let mut ranks = REPLICA.map(str::to_owned);
        assert!(ranks[rank].contains(old), "{old}");
        ranks[rank] = ranks[rank].replacen(old, new, 1);
        let printed = verify(&replica([&ranks[0], &ranks[1]]), &Limits::default()).expect_err(new).to_string();
        assert!(printed.contains(error), "{old} -> {new}: {printed}");
    }
    let forward_behind =
        "3RECV_F0 0RECV_B0 3F0 3B0 3SEND_B0 3REDUCE 0B0 0REDUCE EXCHANGE UPDATE 0GATHER 3GATHER 0F0 SNAPSHOT";
    let printed = verify(&replica([forward_behind, REPLICA[1]]), &Limits::default()).unwrap_err().to_string();
    assert!(printed.contains("the action needs 0F0 earlier"), "{printed}");
    let again = REPLICA[0].replace("3GATHER", "3GATHER 3F0");
    let printed = verify(&replica([&again, REPLICA[1]]), &Limits::default()).unwrap_err().to_string();
    assert!(printed.contains("3F0 (rank 0, position 14)"), "{printed}");
    // every rank must have REDUCE and GATHER if another rank has them
    let without = REPLICA[1].replace("2REDUCE ", "").replace("1REDUCE ", "").replace("1GATHER 2GATHER ", "");
    let printed = verify(&replica([REPLICA[0], &without]), &Limits::default()).unwrap_err().to_string();
    assert!(printed.contains("EXCHANGE (rank 1, position 8): the action needs 1REDUCE earlier"), "{printed}");
}

#[test]
fn each_violation_names_the_action_and_the_remedy() {
    let table = [
        (0, "0F1", "7F1", "7F1 (rank 0, position 2): there are 2 chunks and 2 microbatches"),
        (0, "0F1", "0F2", "0F2 (rank 0, position 2): there are 2 chunks and 2 microbatches"),
        (0, "0F1", "1F1", "1F1 (rank 0, position 2): that chunk is on rank 1: move the action there"),
        (0, "0RECV_B0", "0RECV_F0", "0RECV_F0 (rank 0, position 4): no message is needed"),
        (1, "1SEND_B0", "1SEND_F0", "1SEND_F0 (rank 1, position 5): no message is needed"),
        (0, "0F1", "0F0", "0F0 (rank 0, position 2): its work is already done by 0F0 at position 0"),
        (0, "0B1", "0B0", "0B0 (rank 0, position 7): its work is already done by 0B0 at position 6"),
        (0, "0B1", "0I1 0B1", "0B1 (rank 0, position 8): its work is already done by 0I1 at position 7"),
        (0, "0RECV_B0 ", "", "0B0 (rank 0, position 5): the action needs 0RECV_B0 earlier"),
        (1, "1RECV_F1 1F0 1F1", "1F0 1F1", "1F1 (rank 1, position 2): the action needs 1RECV_F1 earlier"),
        (1, "1F1 1B0", "1B1 1F1 1B0", "1B1 (rank 1, position 3): the action needs 1F1 earlier"),
        (0, "0F1 0SEND_F1", "0SEND_F1 0F1", "0SEND_F1 (rank 0, position 2): the action needs 0F1 earlier"),
        (1, "1B0 1SEND_B0", "1SEND_B0 1B0", "1SEND_B0 (rank 1, position 4): the action needs 1B0 earlier"),
        (1, "1B1", "1I1", "REDUCE_TIED (rank 1, position 8): the action needs 1W1 earlier"),
        (0, "0B1", "", "REDUCE_TIED (rank 0, position 7): the action needs 0B1 earlier"),
        (0, "REDUCE_TIED ", "", "EXCHANGE (rank 0, position 8): the action needs REDUCE_TIED earlier"),
        (0, "EXCHANGE UPDATE", "UPDATE EXCHANGE", "UPDATE (rank 0, position 9): the action needs EXCHANGE earlier"),
        (0, "UPDATE SNAPSHOT", "SNAPSHOT UPDATE", "SNAPSHOT (rank 0, position 10): the action needs UPDATE earlier"),
        (1, "1F0 1F1", "1F1 1F0", "1F1 (rank 1, position 2): the losses of chunk 1 are added in microbatch order"),
        (0, "0B0 0B1", "0B1 0B0", "0B1 (rank 0, position 6): the weight gradients of chunk 0 are added in"),
        (0, "SNAPSHOT", "REDUCE_TIED", "REDUCE_TIED (rank 0, position 11): its work is already done"),
        (0, "0SEND_F1 ", "", "rank 0: 0SEND_F1 is missing (the list ends at position 11): add it"),
        (1, "1SEND_B1 ", "", "rank 1: 1SEND_B1 is missing"),
        (1, " SNAPSHOT", "", "rank 1: SNAPSHOT is missing (the list ends at position 11): add it"),
        (
            1,
            "1RECV_F0 1RECV_F1",
            "1RECV_F1 1RECV_F0",
            "0SEND_F0 (rank 0, position 1) pairs with 1RECV_F1 (rank 1, position 0)",
        ),
    ];
    for (rank, old, new, expected) in table {
        let error = refuse(rank, old, new, 2);
        assert!(error.contains(expected), "{old} -> {new}: {error}");
    }
    let late = refuse(0, "0B1 REDUCE_TIED EXCHANGE", "EXCHANGE 0B1", 2);
    assert!(late.contains("EXCHANGE (rank 0, position 7): the action needs REDUCE_TIED earlier"), "{late}");
    let late = refuse(
        0,
        "0SEND_F1 0RECV_B0 0RECV_B1 0B0 0B1 REDUCE_TIED EXCHANGE",
        "0RECV_B0 0RECV_B1 0B0 0B1 REDUCE_TIED EXCHANGE 0SEND_F1",
        2,
    );
    assert!(
        late.contains("0SEND_F1 (rank 0, position 9): only UPDATE, GATHER and SNAPSHOT may follow EXCHANGE"),
        "{late}"
    );
}

#[test]
fn a_deadlock_lists_the_blocked_actions() {
    // Rank 0 waits for the first gradient before its second forward. Rank 1 waits for that forward before its first
    // backward.
    let deadlock = refuse(0, "0F1 0SEND_F1 0RECV_B0 0RECV_B1 0B0", "0RECV_B0 0B0 0F1 0SEND_F1 0RECV_B1", 2);
    assert!(deadlock.contains("0B0 (rank 0, position 3), 1F1 (rank 1, position 3)"), "{deadlock}");
    // rank 1 posts its second receive late: one message in flight is enough, and a limit of 0 is a deadlock
    let late = |sends_in_flight| {
        let ranks = [
            "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0RECV_B1 0B0 0B1 EXCHANGE UPDATE SNAPSHOT",
            "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 EXCHANGE UPDATE SNAPSHOT",
        ];
        verify(&programs(&ranks), &Limits { sends_in_flight, max_in_flight: None })
    };
    assert!(late(1).is_ok() && late(2).is_ok());
    assert!(matches!(late(0), Err(Violation::Deadlock { .. })));
    // rank 0 receives gradients only after all its sends, so that one message in flight per edge is too few
    let crossed = |sends_in_flight| {
        let ranks = [
            "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0F3 0SEND_F3 0RECV_B0 0B0 0RECV_B1 0B1 0RECV_B2 0B2 0RECV_B3 0B3 \
             EXCHANGE UPDATE SNAPSHOT",
            "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F2 1F2 1B2 1SEND_B2 1RECV_F3 1F3 1B3 1SEND_B3 \
             EXCHANGE UPDATE SNAPSHOT",
        ];
        let programs = Programs { microbatches: 4, ..programs(&ranks) };
        verify(&programs, &Limits { sends_in_flight, max_in_flight: None })
    };
    let error = crossed(1).unwrap_err().to_string();
    assert!(error.contains("0SEND_F3 (rank 0, position 7), 1SEND_B1 (rank 1, position 7)"), "{error}");
    assert!(error.contains("allow more messages in flight"), "{error}");
    assert!(crossed(2).is_ok());
}

#[test]
fn list_lengths_are_checked_first() {
    let fails = |programs: &Programs, limits: &Limits| verify(programs, limits).unwrap_err().to_string();
    let good = programs(&GOOD);
    let none = Programs { microbatches: 0, ..good.clone() };
    assert!(fails(&none, &Limits::default()).contains("at least one chunk and one microbatch, got 2 and 0"));
    let short = programs(&GOOD[..1]);
    assert!(fails(&short, &Limits::default()).contains("2 ranks but there are 1 lists"));
    let limits = Limits { max_in_flight: Some(vec![2]), ..Limits::default() };
    assert!(fails(&good, &limits).contains("lists 1 ranks but there are 2"));
    let limits = Limits { max_in_flight: Some(vec![2, 1]), ..Limits::default() };
    let error = fails(&good, &limits);
    assert!(error.contains("1F1 (rank 1, position 3)") && error.contains("the limit is 1"), "{error}");
}

#[test]
fn reduce_tied_is_allowed_on_first_and_last_rank_only() {
    let three = |middle: &str| Programs {
        placement: Placement::linear(3),
        microbatches: 1,
        ranks: [
            "0F0 0SEND_F0 0RECV_B0 0B0 REDUCE_TIED EXCHANGE UPDATE SNAPSHOT",
            &format!("1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0 {middle} EXCHANGE UPDATE SNAPSHOT"),
            "2RECV_F0 2F0 2B0 2SEND_B0 REDUCE_TIED EXCHANGE UPDATE SNAPSHOT",
        ]
        .map(|text| text.split_whitespace().map(|action| action.parse().unwrap()).collect())
        .to_vec(),
    };
    assert!(verify(&three(""), &Limits::default()).is_ok());
    let error = verify(&three("REDUCE_TIED"), &Limits::default()).unwrap_err().to_string();
    assert!(
        error.contains("REDUCE_TIED (rank 1, position 6): only the ranks of the first and the last chunk"),
        "{error}"
    );
}

#[test]
fn the_exchange_comes_after_every_gradient() {
    let one = |actions: &str| Programs {
        placement: Placement::linear(1),
        microbatches: 1,
        ranks: vec![actions.split_whitespace().map(|action| action.parse().unwrap()).collect()],
    };
    let fails = |actions| verify(&one(actions), &Limits::default()).unwrap_err().to_string();
    assert!(verify(&one("0F0 0I0 0W0 EXCHANGE UPDATE SNAPSHOT"), &Limits::default()).is_ok());
    assert!(
        fails("0F0 0I0 EXCHANGE 0W0 UPDATE SNAPSHOT")
            .contains("0W0 (rank 0, position 3): only UPDATE, GATHER and SNAPSHOT")
    );
    assert!(fails("0F0 0I0 EXCHANGE UPDATE SNAPSHOT").contains("rank 0: 0W0 is missing"));
    assert!(
        fails("0F0 0I0 0W0 REDUCE_TIED UPDATE SNAPSHOT")
            .contains("UPDATE (rank 0, position 4): the action needs EXCHANGE")
    );
}

#[test]
fn incomplete_evaluation_is_rejected() {
    let check = |ranks: &[&str]| verify_evaluation(&programs(ranks), &Limits::default()).map_err(|e| e.to_string());
    let good = ["0F0 0SEND_F0 0F1 0SEND_F1", "1RECV_F0 1RECV_F1 1F0 1F1"];
    assert!(check(&good).is_ok());
    assert!(check(&[good[0], "1RECV_F0 1RECV_F1 1F0"]).unwrap_err().contains("1F1 is missing"));
    assert!(check(&["0F0 0SEND_F0 0F1", good[1]]).unwrap_err().contains("0SEND_F1 is missing"));
    assert!(check(&[good[0], "1RECV_F0 1RECV_F1 1F1 1F0"]).unwrap_err().contains("the losses of chunk 1"));
    assert!(check(&["0F0 0SEND_F0 0F1 0SEND_F1 UPDATE", good[1]]).unwrap_err().contains("UPDATE (rank 0, position 4)"));
}
