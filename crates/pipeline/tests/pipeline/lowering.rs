//! Tests the messages that lowering adds to schedules, and the schedules that it refuses.

use stagecoach_pipeline::{
    Action, Limits, Placement, Programs, Schedule, WorkItem, forward_only_programs, gpipe, lower, one_f_one_b, verify,
    verify_evaluation,
};

/// Returns a schedule with all forwards, chunk by chunk, then all backwards in the opposite order of chunks. The
/// schedule is valid for any placement.
fn chunk_by_chunk(placement: &Placement, microbatches: usize) -> Schedule {
    let items = |chunk| (0..microbatches).map(move |microbatch| WorkItem { chunk, microbatch });
    let rank = |rank| {
        let chunks: Vec<usize> = placement.chunks_of(rank).collect();
        let forward = chunks.iter().flat_map(|&chunk| items(chunk)).map(Action::Forward);
        let backward = chunks.iter().rev().flat_map(|&chunk| items(chunk)).map(Action::FullBackward);
        forward.chain(backward).collect()
    };
    let ranks = (0..placement.ranks()).map(rank).collect();
    Schedule { name: "test".to_owned(), placement: placement.clone(), microbatches, ranks }
}

#[test]
fn several_chunks_per_rank_lower_verify_and_evaluate() {
    let limits = Limits { sends_in_flight: 1, max_in_flight: None };
    for ranks in 1..=5 {
        for placement in [Placement::v_shaped(ranks), Placement::looped(ranks, 2), Placement::looped(ranks, 3)] {
            for microbatches in [1, 2, 5, 9] {
                let programs = lower(&chunk_by_chunk(&placement, microbatches), true).unwrap();
                verify(&programs, &limits).unwrap();
                assert_eq!(Programs::from_text(&programs.to_text()).unwrap(), programs);
                for (rank, actions) in programs.ranks.iter().enumerate() {
                    let reduces = actions.contains(&Action::ReduceTied);
                    assert_eq!(reduces, placement.first_and_last_ranks().contains(&rank));
                }
                verify_evaluation(&forward_only_programs(&placement, microbatches), &limits).unwrap();
            }
        }
    }
}

#[test]
fn chunks_on_one_rank_exchange_no_messages() {
    let texts = |programs: Programs| -> Vec<String> { programs.to_text().lines().skip(1).map(str::to_owned).collect() };
    let one = lower(&one_f_one_b(1, 2), true).unwrap();
    assert_eq!(texts(one), ["rank 0: 0F0 0B0 0F1 0B1 REDUCE_TIED EXCHANGE UPDATE SNAPSHOT"]);
    let v = lower(&chunk_by_chunk(&Placement::v_shaped(2), 1), false).unwrap();
    assert_eq!(
        texts(v),
        [
            "rank 0: 0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0 EXCHANGE UPDATE SNAPSHOT",
            "rank 1: 1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0 EXCHANGE UPDATE SNAPSHOT",
        ]
    );
}

#[test]
fn receives_are_posted_ahead_so_that_transfers_overlap_computation() {
    let programs = lower(&gpipe(2, 2), true).unwrap();
    assert_eq!(
        programs.to_text(),
        "placement 0,1 microbatches 2\n\
         rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0RECV_B1 0B0 0B1 REDUCE_TIED EXCHANGE UPDATE SNAPSHOT\n\
         rank 1: 1RECV_F0 1RECV_F1 1F0 1F1 1B0 1SEND_B0 1B1 1SEND_B1 REDUCE_TIED EXCHANGE UPDATE SNAPSHOT\n"
    );
}

#[test]
fn schedules_that_cannot_work_are_not_lowered() {
    let mut deadlocked = one_f_one_b(2, 2);
    // rank 0 waits for a gradient before it sends the activations on which the gradient depends
    deadlocked.ranks[0] = ["0F0", "0B0", "0F1", "0B1"].map(|action| action.parse().unwrap()).to_vec();
    deadlocked.ranks[1] = ["1F0", "1F1", "1B0", "1B1"].map(|action| action.parse().unwrap()).to_vec();
    let error = lower(&deadlocked, false).unwrap_err().to_string();
    assert!(error.contains("1F1B") && error.contains("0B0 (rank 0, position 1), 1F1 (rank 1, position 1)"), "{error}");
    assert!(lower(&gpipe(0, 4), false).unwrap_err().to_string().contains("at least one chunk and one microbatch"));
    assert!(lower(&gpipe(4, 0), false).unwrap_err().to_string().contains("at least one chunk and one microbatch"));
}
