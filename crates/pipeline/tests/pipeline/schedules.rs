//! Every schedule over many sizes. The schedules lower, verify, match the papers' formulas, and round-trip through
//! text.

use stagecoach_pipeline::{
    Action, Costs, Limits, Partition, Placement, Programs, SCHEDULES, Schedule, WorkItem, forward_only_programs,
    from_csv, gpipe, interleaved_one_f_one_b, interleaved_zero_bubble, lower, one_f_one_b, simulate, to_csv, verify,
    verify_evaluation, zbv_zero_bubble,
};

#[test]
fn the_documentation_has_a_row_for_every_schedule() {
    let (_, table) = include_str!("../../../../docs/design/schedules.md").split_once("| `schedule.type` |").unwrap();
    let rows = table.lines().skip(2).map_while(|row| row.strip_prefix("| `")?.split('`').next());
    let names = SCHEDULES.iter().map(|schedule| schedule.name).chain(["Csv"]);
    assert_eq!(rows.collect::<Vec<_>>(), names.collect::<Vec<_>>());
}

#[test]
fn a_schedule_has_the_name_and_the_chunks_of_its_type() {
    for schedule in SCHEDULES {
        let built = schedule.schedule(3, schedule.chunks.fixed().unwrap_or(2), 4);
        assert_eq!(built.name, schedule.name);
        assert!((1..=4).any(|chunks| schedule.chunks.allows(chunks) && built.placement.chunks() == 3 * chunks));
    }
}

fn every_size(check: impl Fn(usize, usize)) {
    for stages in 1..=8 {
        for microbatches in 1..=32 {
            check(stages, microbatches);
        }
    }
}

fn both(stages: usize, microbatches: usize) -> [Schedule; 2] {
    [gpipe(stages, microbatches), one_f_one_b(stages, microbatches)]
}

/// Every schedule with `chunks_per_rank` chunks per rank.
fn every_schedule(ranks: usize, chunks_per_rank: usize, microbatches: usize) -> Vec<Schedule> {
    let fitting = SCHEDULES.iter().filter(|schedule| schedule.chunks.allows(chunks_per_rank));
    fitting.map(|schedule| schedule.schedule(ranks, chunks_per_rank, microbatches)).collect()
}

/// Checks 1 to 16 ranks, 1 to 4 chunks and 1 to 64 microbatches. Only numbers of microbatches around multiples of the
/// ranks are checked, because schedules change there. `STAGECOACH_SCHEDULES=all` checks all numbers.
fn every_layout(check: impl Fn(usize, usize, usize)) {
    let all = std::env::var("STAGECOACH_SCHEDULES").is_ok_and(|v| v == "all");
    for (ranks, chunks) in (1..=16).flat_map(|ranks| (1..=4).map(move |chunks| (ranks, chunks))) {
        let near = |m: usize| [1, 2, 3, ranks, 2 * ranks, 3 * ranks].iter().any(|&k| m.abs_diff(k) < 2) || m == 64;
        (1..=64).filter(|&m| all || near(m)).for_each(|microbatches| check(ranks, chunks, microbatches));
    }
}

/// All forwards, chunk by chunk, then all backwards in the opposite order: valid for any placement.
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
fn every_schedule_verifies_with_one_message_in_flight() {
    let limits = Limits { sends_in_flight: 1, max_in_flight: None };
    every_size(|stages, microbatches| {
        for schedule in both(stages, microbatches) {
            for tied in [false, true] {
                let programs = lower(&schedule, tied).unwrap();
                assert_eq!(programs.tied(), tied);
                verify(&programs, &limits).unwrap_or_else(|e| panic!("{} {stages}x{microbatches}: {e}", schedule.name));
            }
        }
    });
}

/// Verifies with one message in flight on every edge, which is less than the links allow.
#[test]
fn every_layout_verifies_and_simulates_without_deadlock() {
    let limits = Limits { sends_in_flight: 1, max_in_flight: None };
    every_layout(|ranks, chunks, microbatches| {
        for schedule in every_schedule(ranks, chunks, microbatches) {
            let what = || format!("{} {ranks} ranks of {chunks}, {microbatches} microbatches", schedule.name);
            let programs = lower(&schedule, true).unwrap_or_else(|e| panic!("{}: {e}", what()));
            let report = verify(&programs, &limits).unwrap_or_else(|e| panic!("{}: {e}", what()));
            assert_eq!(report.peak_in_flight, schedule.in_flight());
            let timeline = simulate(&programs, &Costs::uniform(ranks * chunks));
            assert!(timeline.spans.iter().zip(&programs.ranks).all(|(spans, actions)| spans.len() == actions.len()));
            assert_eq!(timeline.peak_bytes, report.peak_in_flight.iter().map(|&n| n as u64).collect::<Vec<_>>());
            let evaluation = forward_only_programs(&schedule.placement, microbatches);
            verify_evaluation(&evaluation, &limits).unwrap_or_else(|e| panic!("{}: {e}", what()));
        }
    });
}

/// Work items between F and B or W. Interleaved 1F1B has one more than its forwards ahead. The number is that of ranks
/// in ZB-H1, and twice that on every rank in ZB-V, each with half the layers.
#[test]
fn what_schedules_with_chunks_have_in_flight_is_what_the_papers_say() {
    every_layout(|ranks, chunks, microbatches| {
        let all = chunks * microbatches;
        let round = microbatches.div_ceil((microbatches / ranks).max(1));
        let ahead = (chunks - 1) * round;
        let exactly = |schedule: Schedule, expected: Vec<usize>| {
            let programs = lower(&schedule, false).unwrap();
            let report =
                verify(&programs, &Limits { max_in_flight: Some(expected.clone()), ..Limits::default() }).unwrap();
            assert_eq!(report.peak_in_flight, expected, "{} {ranks}x{chunks}, {microbatches}", schedule.name);
        };
        let one_f_one_b = (0..ranks).map(|rank| (ahead + 2 * (ranks - 1 - rank) + 1).min(all));
        exactly(interleaved_one_f_one_b(ranks, chunks, microbatches), one_f_one_b.collect());
        exactly(interleaved_zero_bubble(ranks, chunks, microbatches), vec![(ahead + ranks).min(all); ranks]);
        if microbatches >= 2 * ranks - 1 {
            exactly(zbv_zero_bubble(ranks, microbatches), vec![2 * ranks; ranks]);
        }
    });
}

/// Idle seconds of a rank if F, I and W take one second each. A chunk of interleaved 1F1B has a fraction of the rank's
/// work, so that the same number of seconds is a smaller share of the step. With W split off, a third of the idle time
/// remains.
#[test]
fn idle_time_of_schedules_with_chunks_matches_the_formulas() {
    every_layout(|ranks, chunks, microbatches| {
        if microbatches < ranks {
            return;
        }
        let mut costs = Costs::uniform(ranks * chunks);
        for chunk in &mut costs.chunks {
            (chunk.backward_input_seconds, chunk.backward_weight_seconds) = (1.0, 1.0);
        }
        let idle = |schedule: Schedule| {
            simulate(&lower(&schedule, false).unwrap(), &costs).makespan - (3 * chunks * microbatches) as f64
        };
        assert_eq!(idle(interleaved_one_f_one_b(ranks, chunks, microbatches)), (3 * (ranks - 1)) as f64);
        assert_eq!(idle(interleaved_zero_bubble(ranks, chunks, microbatches)), (ranks - 1) as f64);
        if chunks == 2 && microbatches >= 2 * ranks - 1 {
            assert_eq!(idle(zbv_zero_bubble(ranks, microbatches)), (ranks - 1) as f64);
        }
    });
}

/// The schedules must equal torch's own lists.
#[test]
fn orders_are_those_of_torch() {
    for (schedule, expected) in [
        (interleaved_one_f_one_b(2, 2, 2), "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n"),
        (
            interleaved_zero_bubble(2, 1, 3),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n",
        ),
        (
            zbv_zero_bubble(2, 3),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2\n\
             1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2\n",
        ),
    ] {
        assert_eq!(to_csv(&schedule), expected, "{}", schedule.name);
    }
}

#[test]
fn activations_in_flight_match_the_papers() {
    every_size(|stages, microbatches| {
        let peaks = |schedule: &Schedule| {
            let report = verify(&lower(schedule, false).unwrap(), &Limits::default()).unwrap();
            assert_eq!(report.peak_in_flight, schedule.in_flight());
            let bytes = simulate(&lower(schedule, false).unwrap(), &Costs::uniform(stages)).peak_bytes;
            assert_eq!(bytes, report.peak_in_flight.iter().map(|&items| items as u64).collect::<Vec<_>>());
            report.peak_in_flight
        };
        assert_eq!(peaks(&gpipe(stages, microbatches)), vec![microbatches; stages]);
        let expected: Vec<usize> = (0..stages).map(|stage| (stages - stage).min(microbatches)).collect();
        assert_eq!(peaks(&one_f_one_b(stages, microbatches)), expected);
    });
}

#[test]
fn the_limit_on_activations_is_exact() {
    let programs = lower(&one_f_one_b(4, 8), false).unwrap();
    let limited =
        |limits: [usize; 4]| verify(&programs, &Limits { sends_in_flight: 2, max_in_flight: Some(limits.to_vec()) });
    assert!(limited([4, 3, 2, 1]).is_ok());
    let error = limited([4, 2, 2, 1]).unwrap_err().to_string();
    assert!(error.contains("1F2 (rank 1, position") && error.contains("3 microbatches in flight"), "{error}");
}

#[test]
fn the_bubble_matches_the_formula() {
    every_size(|stages, microbatches| {
        for schedule in both(stages, microbatches) {
            let timeline = simulate(&lower(&schedule, true).unwrap(), &Costs::uniform(stages));
            let expected = (stages - 1) as f64 / (microbatches + stages - 1) as f64;
            for bubble in &timeline.bubble {
                assert!((bubble - expected).abs() < 1e-12, "{} {stages}x{microbatches}: {bubble}", schedule.name);
            }
            assert!((timeline.mean_bubble() - expected).abs() < 1e-12);
            assert_eq!(timeline.makespan, 2.0 * (microbatches + stages - 1) as f64);
        }
    });
}

#[test]
fn text_and_csv_round_trip() {
    for (ranks, chunks, microbatches) in
        (1..=5).flat_map(|ranks| (1..=3).flat_map(move |chunks| (1..=9).map(move |m| (ranks, chunks, m))))
    {
        for schedule in every_schedule(ranks, chunks, microbatches) {
            let programs = lower(&schedule, true).unwrap();
            assert_eq!(Programs::from_text(&programs.to_text()).unwrap(), programs);
            let back = from_csv(&to_csv(&schedule), ranks).unwrap();
            assert_eq!(back, Schedule { name: "CSV".into(), ..schedule });
        }
    }
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
fn evaluation_is_forward_only_and_keeps_no_activations() {
    every_size(|stages, microbatches| {
        let programs = forward_only_programs(&Placement::linear(stages), microbatches);
        let report = verify_evaluation(&programs, &Limits { sends_in_flight: 1, max_in_flight: None }).unwrap();
        assert_eq!(report.peak_in_flight, vec![0; stages]);
        assert_eq!(simulate(&programs, &Costs::uniform(stages)).makespan, (microbatches + stages - 1) as f64);
        assert!(verify(&programs, &Limits::default()).is_err());
    });
    let training = lower(&gpipe(2, 2), false).unwrap();
    let error = verify_evaluation(&training, &Limits::default()).unwrap_err().to_string();
    assert!(
        error.contains("0RECV_B0 (rank 0") && error.contains("an evaluation may hold only F, SEND_F and RECV_F"),
        "{error}"
    );
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

#[test]
fn chunks_in_parts_do_the_same_work() {
    let sizes = [(1, 3), (2, 4), (3, 5)].into_iter();
    let schedules =
        sizes.flat_map(|(ranks, microbatches)| SCHEDULES.iter().map(move |s| s.schedule(ranks, 2, microbatches)));
    for (schedule, tied) in schedules.flat_map(|schedule| [(schedule.clone(), false), (schedule, true)]) {
        let whole = lower(&schedule, tied).unwrap();
        let chunks = whole.placement.chunks();
        assert_eq!(whole.split(&vec![1; chunks]), whole);
        assert_eq!((whole.in_flight(), whole.split(&[])), (schedule.in_flight(), whole.clone()));
        let parts: Vec<usize> = (0..chunks).map(|chunk| 1 + (chunk + 1) % 3).collect();
        let split = whole.split(&parts);
        assert_eq!(split.placement.chunks(), parts.iter().sum::<usize>());
        let limits = Limits { max_in_flight: Some(split.in_flight()), ..Limits::default() };
        let replica = split.clone().replicate();
        verify(&split, &limits).unwrap();
        verify(&replica, &limits).unwrap();
        verify_evaluation(&forward_only_programs(&split.placement, 4), &Limits::default()).unwrap();
        // splitting a chunk, with each part taking its share of the time, does not make the step longer
        let mut costs = Costs::uniform(split.placement.chunks());
        let of_part = parts.iter().flat_map(|&count| std::iter::repeat_n(1.0 / count as f64, count));
        for (chunk, share) in costs.chunks.iter_mut().zip(of_part) {
            chunk.forward_seconds *= share;
            chunk.backward_input_seconds *= share;
            chunk.backward_weight_seconds *= share;
        }
        let back = costs.merge(&parts).chunks;
        assert!(back.iter().all(|chunk| (chunk.forward_seconds - 1.0).abs() < 1e-9 && back.len() == chunks));
        let seconds = [simulate(&whole, &Costs::uniform(chunks)), simulate(&split, &costs)].map(|step| step.makespan);
        assert!((seconds[0] - seconds[1]).abs() < 1e-9, "{}: {seconds:?}", schedule.name);
    }
}

#[test]
fn a_chunk_in_parts_hides_its_exchange() {
    let whole = lower(&one_f_one_b(1, 1), false).unwrap();
    let text = |programs: &Programs| programs.ranks[0].iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(
        text(&whole.split(&[2]).replicate()),
        "0F0 1F0 1B0 1REDUCE 0B0 0REDUCE EXCHANGE UPDATE 0GATHER 1GATHER SNAPSHOT"
    );
    // nine seconds of computation and four seconds of exchange
    let seconds = |parts: usize| {
        let mut costs = Costs::uniform(parts);
        let share = 1.0 / parts as f64;
        for chunk in &mut costs.chunks {
            (chunk.forward_seconds, chunk.backward_input_seconds) = (3.0 * share, 6.0 * share);
            chunk.backward_weight_seconds = 0.0;
        }
        (costs.reduce_seconds, costs.gather_seconds) = (vec![2.0 * share; parts], vec![2.0 * share; parts]);
        simulate(&whole.split(&[parts]).replicate(), &costs).makespan
    };
    assert_eq!([seconds(1), seconds(2), seconds(8)], [13.0, 11.0, 9.5]);
}

#[test]
fn the_parts_of_a_partition_have_its_layers() {
    let partition = Partition { layers: vec![5, 0, 3] };
    let split = partition.split(&[3, 1, 2]);
    assert_eq!(split.layers, [1, 2, 2, 0, 1, 2]);
    assert_eq!((split.merge(&[3, 1, 2]), split.merge(&[])), (partition.clone(), split.clone()));
    assert_eq!(partition.split(&[]), partition);
}
