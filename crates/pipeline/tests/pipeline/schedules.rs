//! Tests every schedule over many sizes. Each schedule can be lowered and verified, matches the papers' formulas, and
//! is the same after a round trip through text.

use stagecoach_pipeline::{
    Costs, Limits, Placement, Programs, SCHEDULES, Schedule, forward_only_programs, from_csv, gpipe,
    interleaved_one_f_one_b, interleaved_zero_bubble, lower, one_f_one_b, simulate, to_csv, verify, verify_evaluation,
    zbv_zero_bubble,
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

/// Returns every schedule with `chunks_per_rank` chunks per rank.
fn every_schedule(ranks: usize, chunks_per_rank: usize, microbatches: usize) -> Vec<Schedule> {
    let fitting = SCHEDULES.iter().filter(|schedule| schedule.chunks.allows(chunks_per_rank));
    fitting.map(|schedule| schedule.schedule(ranks, chunks_per_rank, microbatches)).collect()
}

/// Checks 1 to 16 ranks, 1 to 4 chunks and 1 to 64 microbatches. The checked numbers of microbatches are small numbers,
/// numbers around the first three multiples of the number of ranks, and 64, because schedules change there.
/// `STAGECOACH_SCHEDULES=all` checks all numbers.
fn every_layout(check: impl Fn(usize, usize, usize)) {
    let all = std::env::var("STAGECOACH_SCHEDULES").is_ok_and(|v| v == "all");
    for (ranks, chunks) in (1..=16).flat_map(|ranks| (1..=4).map(move |chunks| (ranks, chunks))) {
        let near = |m: usize| [1, 2, 3, ranks, 2 * ranks, 3 * ranks].iter().any(|&k| m.abs_diff(k) < 2) || m == 64;
        (1..=64).filter(|&m| all || near(m)).for_each(|microbatches| check(ranks, chunks, microbatches));
    }
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
            verify(&programs, &limits).unwrap_or_else(|e| panic!("{}: {e}", what()));
            let in_flight = programs.in_flight();
            assert_eq!(in_flight, schedule.in_flight());
            let timeline = simulate(&programs, &Costs::uniform(ranks * chunks));
            assert!(timeline.spans.iter().zip(&programs.ranks).all(|(spans, actions)| spans.len() == actions.len()));
            assert_eq!(timeline.peak_bytes, in_flight.iter().map(|&items| items as u64).collect::<Vec<_>>());
            let evaluation = forward_only_programs(&schedule.placement, microbatches);
            verify_evaluation(&evaluation, &limits).unwrap_or_else(|e| panic!("{}: {e}", what()));
        }
    });
}

/// Checks the peak number of work items in flight: items whose F has run and whose B or W has not. Interleaved 1F1B has
/// one more than its warm-up forwards. ZB-H1 has as many as there are ranks. With several chunks per rank, the forwards
/// of the first round in all chunks but the last are added. ZB-V has twice the number of ranks on every rank, each item
/// with half the layers.
#[test]
fn what_schedules_with_chunks_have_in_flight_is_what_the_papers_say() {
    every_layout(|ranks, chunks, microbatches| {
        let all = chunks * microbatches;
        let round = microbatches.div_ceil((microbatches / ranks).max(1));
        let ahead = (chunks - 1) * round;
        let exactly = |schedule: Schedule, expected: Vec<usize>| {
            let programs = lower(&schedule, false).unwrap();
            verify(&programs, &Limits { max_in_flight: Some(expected.clone()), ..Limits::default() }).unwrap();
            assert_eq!(programs.in_flight(), expected, "{} {ranks}x{chunks}, {microbatches}", schedule.name);
        };
        let one_f_one_b = (0..ranks).map(|rank| (ahead + 2 * (ranks - 1 - rank) + 1).min(all));
        exactly(interleaved_one_f_one_b(ranks, chunks, microbatches), one_f_one_b.collect());
        exactly(interleaved_zero_bubble(ranks, chunks, microbatches), vec![(ahead + ranks).min(all); ranks]);
        if microbatches >= 2 * ranks - 1 {
            exactly(zbv_zero_bubble(ranks, microbatches), vec![2 * ranks; ranks]);
        }
    });
}

/// Checks the idle seconds of a rank if F, I and W take one second each. A chunk of interleaved 1F1B has a fraction of
/// the rank's work, so that the same number of seconds is a smaller share of the step. With a split backward, a third
/// of the idle time remains.
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

/// The schedules must equal the lists of actions that torch generates.
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
            let programs = lower(schedule, false).unwrap();
            verify(&programs, &Limits::default()).unwrap();
            let in_flight = programs.in_flight();
            assert_eq!(in_flight, schedule.in_flight());
            let bytes = simulate(&programs, &Costs::uniform(stages)).peak_bytes;
            assert_eq!(bytes, in_flight.iter().map(|&items| items as u64).collect::<Vec<_>>());
            in_flight
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
    assert!(error.contains("1F2 (rank 1, position") && error.contains("3 work items are in flight"), "{error}");
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
fn evaluation_is_forward_only_and_keeps_no_activations() {
    every_size(|stages, microbatches| {
        let programs = forward_only_programs(&Placement::linear(stages), microbatches);
        verify_evaluation(&programs, &Limits { sends_in_flight: 1, max_in_flight: None }).unwrap();
        assert_eq!(programs.in_flight(), vec![0; stages]);
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
