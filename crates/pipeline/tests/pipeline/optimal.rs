//! Tests the search for the best schedule. For small pipelines, the tests compare the result with all possible
//! schedules. For larger pipelines, they compare it with 1F1B, GPipe and ZB-H1.

use proptest::prelude::*;
use stagecoach_pipeline::{
    Action, ChunkCosts, Costs, Limits, Placement, Schedule, WorkItem, gpipe, interleaved_zero_bubble, lower,
    one_f_one_b, optimal_schedule, simulate, verify,
};

const UNLIMITED: u64 = u64::MAX;
const MANY_STATES: u64 = 1_000_000;

fn makespan(schedule: &Schedule, costs: &Costs) -> f64 {
    // the search does not limit the sends in flight
    simulate(&lower(schedule, false).unwrap(), &Costs { sends_in_flight: 1000, ..costs.clone() }).makespan
}

/// Returns the peak bytes of activations and of weight-gradient inputs that each rank holds.
fn held(schedule: &Schedule, costs: &Costs) -> Vec<u64> {
    simulate(&lower(schedule, false).unwrap(), costs).peak_bytes
}

/// Returns all interleavings of F, I and W of one rank within `limit`. F, I and W each run in microbatch order.
fn interleavings(chunk: usize, cost: &ChunkCosts, microbatches: usize, limit: u64) -> Vec<Vec<Action>> {
    let mut all = Vec::new();
    let mut open = vec![(Vec::new(), 0, 0, 0, 0u64)];
    while let Some((actions, f, i, w, held)) = open.pop() {
        if w == microbatches {
            all.push(actions);
            continue;
        }
        let mut push = |action: fn(WorkItem) -> Action, microbatch, f, i, w, held: u64| {
            if held <= limit {
                let mut actions: Vec<Action> = actions.clone();
                actions.push(action(WorkItem { chunk, microbatch }));
                open.push((actions, f, i, w, held));
            }
        };
        let (activations, inputs) = (cost.activation_bytes, cost.weight_gradient_bytes);
        if f < microbatches {
            push(Action::Forward, f, f + 1, i, w, held + activations);
        }
        if i < f {
            push(Action::BackwardInput, i, f, i + 1, w, held + inputs - activations);
        }
        if i < f && w == i {
            push(Action::FullBackward, i, f, i + 1, w + 1, held - activations);
        }
        if w < i {
            push(Action::BackwardWeight, w, f, i, w + 1, held - inputs);
        }
    }
    all
}

/// Returns the seconds of the shortest schedule, or `None` if no schedule is within the limits.
fn shortest(costs: &Costs, microbatches: usize, limits: &[u64]) -> Option<f64> {
    let ranks: Vec<Vec<Vec<Action>>> =
        (0..limits.len()).map(|rank| interleavings(rank, &costs.chunks[rank], microbatches, limits[rank])).collect();
    let mut best: Option<f64> = None;
    for first in &ranks[0] {
        for second in &ranks[1] {
            let ranks = vec![first.clone(), second.clone()];
            let schedule = Schedule { name: String::new(), placement: Placement::linear(2), microbatches, ranks };
            if lower(&schedule, false).is_ok() {
                let seconds = makespan(&schedule, costs);
                best = Some(best.map_or(seconds, |best| best.min(seconds)));
            }
        }
    }
    best
}

fn cost() -> impl Strategy<Value = ChunkCosts> {
    (1..5u8, 1..5u8, 1..5u8, 1..4u64, 0..4u64).prop_map(|(forward, input, weight, activations, inputs)| ChunkCosts {
        forward_seconds: f64::from(forward),
        backward_input_seconds: f64::from(input),
        backward_weight_seconds: f64::from(weight),
        activation_bytes: activations,
        weight_gradient_bytes: inputs,
        static_bytes: 0,
        temporary_bytes: 0,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_is_shorter(
        chunks in [cost(), cost()], link in 0..2u8, limits in [2..12u64, 2..12u64], microbatches in 1..=3usize
    ) {
        let costs = Costs { chunks: chunks.to_vec(), link_seconds: f64::from(link) / 2.0, ..Costs::uniform(0) };
        let found = optimal_schedule(&costs, microbatches, &limits, MANY_STATES);
        let shortest = shortest(&costs, microbatches, &limits);
        prop_assert_eq!(found.is_some(), shortest.is_some());
        if let (Some(found), Some(shortest)) = (found, shortest) {
            prop_assert!(found.is_proven());
            // messages do not wait for each other in the search
            prop_assert!(found.seconds <= shortest);
            if link == 0 {
                prop_assert_eq!(makespan(&found.schedule, &costs), found.seconds);
                prop_assert_eq!(found.seconds, shortest);
            }
            for (rank, bytes) in held(&found.schedule, &costs).into_iter().enumerate() {
                prop_assert!(bytes <= limits[rank]);
            }
        }
    }

    #[test]
    fn known_schedules_are_not_shorter(chunks in prop::collection::vec(cost(), 2..=4), microbatches in 1..=6usize) {
        let ranks = chunks.len();
        let costs = Costs { chunks, ..Costs::uniform(0) };
        for schedule in
            [gpipe(ranks, microbatches), one_f_one_b(ranks, microbatches), interleaved_zero_bubble(ranks, 1, microbatches)]
        {
            let limits = held(&schedule, &costs);
            let found = optimal_schedule(&costs, microbatches, &limits, 20_000).unwrap();
            let known = makespan(&schedule, &costs);
            prop_assert!(found.lower_bound <= known + 1e-9, "bound {} {known}", found.lower_bound);
            prop_assert!(!found.is_proven() || found.seconds <= known + 1e-9, "{} {known}", found.seconds);
            let programs = lower(&found.schedule, true).unwrap();
            prop_assert!(verify(&programs, &Limits::default()).is_ok());
        }
    }
}

#[test]
fn zero_bubble_is_optimal_in_its_memory() {
    for (ranks, microbatches) in [(2, 4), (4, 8)] {
        let schedule = interleaved_zero_bubble(ranks, 1, microbatches);
        let costs = Costs::uniform(ranks);
        let mut costs = costs;
        for chunk in &mut costs.chunks {
            (chunk.backward_input_seconds, chunk.backward_weight_seconds) = (1.0, 1.0);
        }
        let limits = held(&schedule, &costs);
        let found = optimal_schedule(&costs, microbatches, &limits, MANY_STATES).unwrap();
        assert!(found.is_proven(), "{ranks} ranks: {} to {}", found.lower_bound, found.seconds);
        assert_eq!(found.seconds, makespan(&schedule, &costs), "{ranks} ranks");
        // with enough memory, ranks wait only for the first forwards
        let unlimited = optimal_schedule(&costs, microbatches, &vec![UNLIMITED; ranks], MANY_STATES).unwrap();
        assert!(unlimited.is_proven());
        assert_eq!(unlimited.seconds, (3 * microbatches + ranks - 1) as f64);
    }
}

#[test]
fn what_does_not_fit_is_no_schedule_and_a_search_may_be_cut_short() {
    let costs = Costs::uniform(2);
    assert_eq!(optimal_schedule(&costs, 2, &[1, 0], MANY_STATES), None);
    let mut uneven = Costs::uniform(3);
    for (index, chunk) in uneven.chunks.iter_mut().enumerate() {
        chunk.forward_seconds = 1.0 + 0.37 * index as f64;
        chunk.backward_weight_seconds = 1.3 - 0.41 * index as f64;
    }
    let cut = optimal_schedule(&uneven, 6, &[2, 2, 2], 0).unwrap();
    assert!(
        cut.lower_bound <= cut.seconds && verify(&lower(&cut.schedule, false).unwrap(), &Limits::default()).is_ok()
    );
}
