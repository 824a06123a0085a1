//! Tests the analysis of measured timelines. The tests use simulated timelines instead of measured ones, because the
//! costs of a simulated step are known.

use proptest::prelude::*;
use stagecoach_pipeline::{
    ActionSpan, Advice, ChunkCosts, Costs, ModelCost, ModuleCost, Partition, Programs, Timeline, advise, breakdown,
    gpipe, interleaved_one_f_one_b, lower, one_f_one_b, simulate, zbv_zero_bubble,
};

/// Returns the spans that a trainer would measure in a simulated step: computations and the end of the step, without
/// messages.
fn measured(programs: &Programs, costs: &Costs) -> Timeline {
    let simulated = simulate(programs, costs);
    let seen = |spans: Vec<_>| spans.into_iter().filter(|span: &ActionSpan| !is_message(span)).collect();
    Timeline::new(simulated.spans.into_iter().map(seen).collect(), Vec::new())
}

fn is_message(span: &ActionSpan) -> bool {
    span.action.is_send() || span.action.is_recv()
}

#[test]
fn a_rank_computes_waits_for_work_or_waits_for_messages() {
    let programs = lower(&gpipe(2, 1), false).unwrap();
    let mut costs = Costs { link_seconds: 0.25, exchange_seconds: 0.5, ..Costs::uniform(2) };
    costs.chunks[1].forward_seconds = 3.0;
    // the step has F from 0 to 1, a message, F from 1.25 to 4.25, B to 5.25, a message, B from 5.5 to 6.5, and EXCHANGE
    // to 7
    let ranks = breakdown(&measured(&programs, &costs), &programs.placement);
    let seconds: Vec<_> = ranks
        .iter()
        .map(|rank| (rank.compute_seconds, rank.bubble_seconds, rank.exposed_communication_seconds, rank.imbalance))
        .collect();
    assert_eq!(seconds, [(2.0, 5.0, 0.25, 2.0 / 3.0), (4.0, 3.0, 0.25, 4.0 / 3.0)]);
}

#[test]
fn communication_behind_a_computation_is_not_exposed() {
    // stage 1 has the slower forwards, so all activations but the first arrive while stage 1 computes
    let programs = lower(&gpipe(2, 4), false).unwrap();
    let mut costs = Costs { link_seconds: 0.25, ..Costs::uniform(2) };
    costs.chunks[1].forward_seconds = 2.0;
    let ranks = breakdown(&measured(&programs, &costs), &programs.placement);
    assert_eq!(ranks[1].exposed_communication_seconds, 0.25);
}

#[test]
fn what_replicas_exchange_is_hidden_where_the_rank_computes() {
    let programs = lower(&interleaved_one_f_one_b(1, 2, 1), false).unwrap().replicate();
    let costs = Costs { reduce_seconds: vec![0.5, 3.0], gather_seconds: vec![0.25, 2.0], ..Costs::uniform(2) };
    let timeline = measured(&programs, &costs);
    // 0F0 runs from 0.25 to 1.25, 1F0 from 2.25, 1B0 to 4.25 and 0B0 to 5.25; the reduction of chunk 1 takes from 4.25
    // to 7.25, and the reduction of chunk 0 takes until 7.75
    let rank = breakdown(&timeline, &programs.placement)[0];
    assert_eq!((rank.data_parallel_seconds, rank.hidden_data_parallel_seconds), (5.75, 2.0));
    let found = Costs::measured(&[timeline], &programs.placement);
    assert_eq!((found.reduce_seconds, found.gather_seconds), (costs.reduce_seconds, costs.gather_seconds));
}

proptest! {
    #[test]
    fn costs_come_back_from_the_steps_that_they_made(
        forward in 1.0..4.0f64, backward in 1.0..8.0f64, link in 0.0..0.2f64, microbatches in 4..9usize
    ) {
        for schedule in [gpipe(3, microbatches), one_f_one_b(3, microbatches), zbv_zero_bubble(2, microbatches)] {
            let programs = lower(&schedule, false).unwrap();
            let chunks = programs.placement.chunks();
            let mut costs = Costs { link_seconds: link, exchange_seconds: 0.5, ..Costs::uniform(chunks) };
            for (index, chunk) in costs.chunks.iter_mut().enumerate() {
                *chunk = ChunkCosts {
                    forward_seconds: forward * (1.0 + index as f64),
                    backward_input_seconds: backward,
                    backward_weight_seconds: backward,
                    ..ChunkCosts::default()
                };
            }
            let step = measured(&programs, &costs);
            let back = Costs::measured(&[step.clone(), step.clone()], &programs.placement);
            for (chunk, back) in costs.chunks.iter().zip(&back.chunks) {
                prop_assert!((chunk.forward_seconds - back.forward_seconds).abs() < 1e-9);
                prop_assert!((chunk.backward_input_seconds - back.backward_input_seconds).abs() < 1e-9);
                prop_assert!((chunk.backward_weight_seconds - back.backward_weight_seconds).abs() < 1e-9);
            }
            prop_assert!((simulate(&programs, &back).makespan / step.makespan - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn computation_and_bubble_add_up_to_the_step(link in 0.0..2.0f64, microbatches in 1..9usize) {
        for schedule in [one_f_one_b(4, microbatches), interleaved_one_f_one_b(2, 3, microbatches)] {
            let programs = lower(&schedule, false).unwrap();
            let costs = Costs { link_seconds: link, ..Costs::uniform(programs.placement.chunks()) };
            let step = measured(&programs, &costs);
            let ranks = breakdown(&step, &programs.placement);
            for rank in &ranks {
                prop_assert!((rank.compute_seconds + rank.bubble_seconds - step.makespan).abs() < 1e-9);
                prop_assert!(rank.exposed_communication_seconds <= rank.bubble_seconds + 1e-9);
                prop_assert!(link > 0.0 || rank.exposed_communication_seconds < 1e-9);
            }
            prop_assert!((ranks.iter().map(|rank| rank.imbalance).sum::<f64>() / ranks.len() as f64 - 1.0).abs() < 1e-9);
        }
    }
}

/// Returns a model of twelve equal layers, an embedding that costs nothing, and a head as costly as three layers.
fn model() -> ModelCost {
    let module =
        |work: f64| ModuleCost { forward: work, backward_input: work, backward_weight: work, ..ModuleCost::default() };
    ModelCost { embedding: module(0.0), layers: vec![module(1.0); 12], head: module(3.0), ..ModelCost::default() }
}

fn advice(programs: &Programs, layers: &[usize], speeds: &[f64]) -> Advice {
    let partition = Partition { layers: layers.to_vec() };
    let mut costs = Costs::estimate(&model(), &partition, 1.0, f64::INFINITY);
    for (chunk, cost) in costs.chunks.iter_mut().enumerate() {
        let seconds = speeds[programs.placement.rank_of(chunk)];
        cost.forward_seconds *= seconds;
        cost.backward_input_seconds *= seconds;
        cost.backward_weight_seconds *= seconds;
    }
    advise(programs, &[measured(programs, &costs)], &model(), &partition).unwrap()
}

#[test]
fn advice_names_the_slowest_stage_and_a_better_partition() {
    let programs = lower(&one_f_one_b(3, 8), false).unwrap();
    // the chunks have the work of 4, 4 and 7 layers, and the best distribution is 5, 5 and 5
    let found = advice(&programs, &[4, 4, 4], &[1.0; 3]);
    assert_eq!((found.rank, found.imbalance), (2, 1.4));
    assert_eq!(found.better.as_ref().unwrap().0.layers, [5, 5, 2]);
    let expected = |layers: &[usize]| {
        let estimate = Costs::estimate(&model(), &Partition { layers: layers.to_vec() }, 1.0, f64::INFINITY);
        simulate(&programs, &estimate).makespan
    };
    let saving = 1.0 - expected(&[5, 5, 2]) / expected(&[4, 4, 4]);
    assert!((found.better.as_ref().unwrap().1 - saving).abs() < 1e-9);
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    assert_eq!(
        found.to_string(),
        format!(
            "stage 2 computes 1.40 times as long as the mean stage: with the mean time, the step would be {} shorter; \
             4/4/4 -> 5/5/2 would save {}",
            percent(found.saving),
            percent(saving)
        )
    );
}

#[test]
fn a_slower_machine_gets_fewer_layers() {
    let programs = lower(&one_f_one_b(3, 8), false).unwrap();
    let found = advice(&programs, &[5, 5, 2], &[2.0, 1.0, 1.0]);
    assert_eq!((found.rank, found.better.unwrap().0.layers), (0, vec![3, 6, 3]));
}

#[test]
fn balanced_stages_are_left_alone() {
    let programs = lower(&one_f_one_b(3, 8), false).unwrap();
    let found = advice(&programs, &[5, 5, 2], &[1.0; 3]);
    assert_eq!(found.better, None);
    assert!(found.to_string().starts_with("the stages are balanced"), "{found}");
    let nothing = Timeline::new(vec![Vec::new(); 3], Vec::new());
    let partition = Partition { layers: vec![5, 5, 2] };
    assert_eq!(advise(&programs, &[nothing], &model(), &partition), None);
    assert_eq!(advise(&programs, &[], &model(), &partition), None);
}
