//! Tests ranks of unequal speed, simulated and measured.

use proptest::prelude::*;
use stagecoach_pipeline::{
    Costs, ModelCost, ModuleCost, Partition, Placement, RankSpeeds, Timeline, balance_ratio, balanced_partition,
    interleaved_one_f_one_b, lower, one_f_one_b, simulate, zbv_zero_bubble,
};

fn module(work: f64) -> ModuleCost {
    ModuleCost { forward: work, backward_input: work, backward_weight: work, ..ModuleCost::default() }
}

/// Returns a model of twelve equal layers, whose embedding and head cost nothing.
fn model() -> ModelCost {
    ModelCost { embedding: module(0.0), layers: vec![module(1.0); 12], head: module(0.0), ..ModelCost::default() }
}

/// Simulates a step of `layers` over ranks of these speeds.
fn step(layers: &[usize], speeds: &RankSpeeds) -> Timeline {
    let programs = lower(&one_f_one_b(layers.len(), 8), false).unwrap();
    let partition = Partition { layers: layers.to_vec() };
    let costs = Costs::estimate(&model(), &partition, 1.0, f64::INFINITY);
    simulate(&programs, &costs.at_speeds(&programs.placement, speeds))
}

fn measured(layers: &[usize], timelines: &[Timeline]) -> Option<RankSpeeds> {
    let partition = Partition { layers: layers.to_vec() };
    RankSpeeds::measured(timelines, &partition.rank_work(&model(), &Placement::linear(layers.len())))
}

#[test]
fn a_slow_rank_gets_fewer_layers_and_the_step_is_shorter() {
    let schedule = one_f_one_b(3, 8);
    for (speeds, expected) in [([1.0, 1.0, 1.0], [4, 4, 4]), ([1.0, 1.0, 0.5], [5, 5, 2]), ([3.0, 1.0, 2.0], [6, 2, 4])]
    {
        let speeds = RankSpeeds::new(&speeds).unwrap();
        let partition = balanced_partition(&model(), &schedule, None, &speeds).unwrap();
        assert_eq!(partition.layers, expected);
        if !speeds.is_equal() {
            assert!(step(&expected, &speeds).makespan < step(&[4, 4, 4], &speeds).makespan);
        }
    }
    let speeds = RankSpeeds::new(&[3.0, 1.0, 2.0]).unwrap();
    let balance = |layers| balance_ratio(&model(), &Partition { layers }, &schedule.placement, &speeds);
    assert!((balance(vec![6, 2, 4]) - 1.0).abs() < 2e-3 && (balance(vec![4, 4, 4]) - 0.5).abs() < 2e-3);
}

#[test]
fn all_chunks_of_a_slow_rank_are_slow() {
    let speeds = RankSpeeds::new(&[1.0, 0.5]).unwrap();
    for (schedule, expected) in [
        (interleaved_one_f_one_b(2, 2, 4), vec![4, 2, 4, 2]),
        // the slow rank has the two middle chunks
        (zbv_zero_bubble(2, 4), vec![4, 2, 2, 4]),
    ] {
        assert_eq!(balanced_partition(&model(), &schedule, None, &speeds).unwrap().layers, expected);
    }
}

#[test]
fn speeds_are_measured_beside_the_estimates_and_noise_is_none() {
    let speeds = RankSpeeds::new(&[1.0, 0.9, 0.5]).unwrap();
    let slow = step(&[4, 6, 2], &speeds);
    assert_eq!(measured(&[4, 6, 2], std::slice::from_ref(&slow)), RankSpeeds::new(&[1.0, 1.0, 0.5]).ok());
    let noisy = step(&[4, 4, 4], &RankSpeeds::new(&[0.81, 1.0, 0.95]).unwrap());
    assert_eq!(measured(&[4, 4, 4], std::slice::from_ref(&noisy)), Some(RankSpeeds::default()));
    // one bad step of three changes nothing
    let equal = step(&[4, 4, 4], &RankSpeeds::default());
    let bad = step(&[4, 4, 4], &RankSpeeds::new(&[1.0, 0.1, 1.0]).unwrap());
    assert_eq!(measured(&[4, 4, 4], &[bad, equal.clone(), equal]), Some(RankSpeeds::default()));
    assert_eq!(measured(&[4, 4, 4], &[]), None);
    assert_eq!(measured(&[6, 6, 0], &[slow]), None, "a rank without work");
}

#[test]
fn what_is_no_speed_is_refused() {
    for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = RankSpeeds::new(&[1.0, speed]).unwrap_err().to_string();
        assert_eq!(error, format!("the speed of stage 1 is {speed}: it has to be a finite number above zero"));
    }
    assert_eq!(RankSpeeds::new(&[1e300, 1e-300]).unwrap().to_string(), "1.00/0.00");
    assert_eq!(RankSpeeds::new(&[3.0; 4]), Ok(RankSpeeds::default()));
}

proptest! {
    #[test]
    fn a_simulated_step_measures_its_own_speeds(
        speeds in prop::collection::vec(prop::sample::select(vec![0.1, 0.25, 0.5, 0.75, 1.0]), 4),
        layers in prop::sample::select(vec![[3, 3, 3, 3], [6, 2, 2, 2], [1, 1, 5, 5]]),
    ) {
        let speeds = RankSpeeds::new(&speeds).unwrap();
        prop_assert_eq!(measured(&layers, &[step(&layers, &speeds)]), Some(speeds));
    }
}
