//! Tests of layouts. The partition, the schedule, recomputation and the transport change no bit of the results.

use stagecoach_api::job::{Encryption, Precision, Recompute, Transport};
use stagecoach_pipeline::{
    Schedule, from_csv, gpipe, interleaved_one_f_one_b, interleaved_zero_bubble, one_f_one_b, zbv_zero_bubble,
};

use crate::gradients::{long_step, setup, step, steps, weights_last};
use crate::support::pipeline::{Setup, train};

#[test]
fn partition_schedule_recompute_and_transport_change_no_bit() {
    for (tied, precision) in [
        (false, Precision::Float32),
        (true, Precision::Float32),
        (false, Precision::BFloat16),
        (true, Precision::BFloat16),
    ] {
        let setup = |layers: &[usize]| Setup { precision, ..setup(tied, layers) };
        let one = train(&setup(&[2]), &steps());
        assert!(one.losses.iter().all(|loss| loss.is_finite()));
        for layers in [vec![1, 1], vec![2, 0], vec![0, 2], vec![1, 0, 1], vec![0, 1, 0, 1, 0]] {
            for (schedule, recompute, transport, encryption) in [
                (one_f_one_b as fn(_, _) -> _, Recompute::Full, Transport::Tcp, Encryption::None),
                (gpipe, Recompute::None, Transport::Shm, Encryption::None),
                (weights_last, Recompute::Selective, Transport::Tcp, Encryption::Required),
            ] {
                let setup = Setup { schedule, recompute, transport, encryption, ..setup(&layers) };
                let same = one == train(&setup, &steps());
                assert!(same, "{layers:?} layers, recompute {recompute:?}, {transport:?}, {precision:?}");
            }
        }
    }
}

/// Returns a schedule with half as many stages as chunks.
fn interleaved(chunks: usize, microbatches: usize) -> Schedule {
    interleaved_one_f_one_b(chunks / 2, 2, microbatches)
}

fn zero_bubble_in_two(chunks: usize, microbatches: usize) -> Schedule {
    interleaved_zero_bubble(chunks / 2, 2, microbatches)
}

fn zbv(chunks: usize, microbatches: usize) -> Schedule {
    zbv_zero_bubble(chunks / 2, microbatches)
}

fn zb_h1(chunks: usize, microbatches: usize) -> Schedule {
    interleaved_zero_bubble(chunks, 1, microbatches)
}

/// Returns a schedule with all chunks on one stage.
fn on_one_stage(chunks: usize, microbatches: usize) -> Schedule {
    interleaved_one_f_one_b(1, chunks, microbatches)
}

/// The layouts include empty chunks, and embedding and head on one stage (ZB-V) or on two.
#[test]
fn schedules_with_several_chunks_a_stage_change_no_bit() {
    for (tied, precision) in [(false, Precision::Float32), (true, Precision::Float32), (true, Precision::BFloat16)] {
        let setup = |layers: &[usize]| Setup { precision, ..setup(tied, layers) };
        let one = train(&setup(&[2]), &steps());
        for (schedule, recompute, transport) in [
            (interleaved as fn(_, _) -> _, Recompute::Full, Transport::Tcp),
            (zero_bubble_in_two, Recompute::None, Transport::Shm),
            (zbv, Recompute::Selective, Transport::Tcp),
            (zb_h1, Recompute::Full, Transport::Shm),
            (on_one_stage, Recompute::None, Transport::Tcp),
        ] {
            for layers in [vec![1, 0, 1, 0], vec![0, 1, 0, 0, 1, 0]] {
                let setup = Setup { schedule, recompute, transport, ..setup(&layers) };
                let name = schedule(layers.len(), 4).name;
                assert!(one == train(&setup, &steps()), "{name}, {layers:?}, tied {tied}, {precision:?}");
            }
        }
    }
}

/// The results equal those of one stage with the same number of gradient blocks. They differ from the results with a
/// single block, but only within rounding.
#[test]
fn no_layout_changes_the_bits_of_blocks() {
    for (tied, precision) in [(false, Precision::Float32), (true, Precision::Float32), (true, Precision::BFloat16)] {
        let steps = [long_step(0), long_step(11)];
        let one_block = train(&Setup { precision, ..setup(tied, &[2]) }, &steps);
        for gradient_blocks in [2, 4, 8] {
            let setup = |layers: &[usize]| Setup { precision, gradient_blocks, ..setup(tied, layers) };
            let one = train(&setup(&[2]), &steps);
            for (schedule, layers) in [
                (one_f_one_b as fn(_, _) -> _, vec![1, 0, 1]),
                (weights_last, vec![1, 1]),
                (interleaved, vec![1, 0, 1, 0]),
                (zbv, vec![0, 1, 0, 0, 1, 0]),
                (zb_h1, vec![2, 0]),
                (on_one_stage, vec![1, 0, 1]),
            ] {
                let name = schedule(layers.len(), 8).name;
                let same = one == train(&Setup { schedule, ..setup(&layers) }, &steps);
                assert!(same, "{gradient_blocks} blocks, {name}, {layers:?}, tied {tied}, {precision:?}");
            }
            assert!(one.weights != one_block.weights, "{gradient_blocks} blocks are added in another order");
            let bound = if precision == Precision::Float32 { 1e-6 } else { 2e-2 };
            for (loss, expected) in one.losses.iter().zip(&one_block.losses) {
                assert!((loss - expected).abs() <= bound * expected, "{loss} {expected}");
            }
            for (name, expected) in &one_block.gradients {
                let largest = expected.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
                let pairs = one.gradients[name].iter().zip(expected);
                let off = pairs.fold(0.0, |most: f32, (found, expected)| most.max((found - expected).abs()));
                assert!(
                    off <= bound * largest,
                    "{gradient_blocks} blocks: the gradient of {name} is {off} off; its largest value is {largest}"
                );
            }
        }
    }
}

/// torch and torchtitan wrote the files. In one of them, DualPipeV overlaps a forward with a backward.
#[test]
fn schedules_that_others_wrote_change_no_bit() {
    macro_rules! csv {
        ($name:literal, $ranks:literal) => {{
            const TEXT: &str = include_str!(concat!("../../../crates/pipeline/tests/data/", $name, ".csv"));
            (|_, _| from_csv(TEXT, $ranks).unwrap()) as fn(usize, usize) -> Schedule
        }};
    }
    for (schedule, microbatches, chunks) in [
        (csv!("torch-DualPipeV-4-ranks-10-microbatches", 4), 10, 8),
        (csv!("torchtitan-2-ranks", 2), 8, 4),
        (csv!("torchtitan-4-ranks", 4), 6, 8),
        (csv!("torchtitan-8-ranks", 8), 10, 8),
    ] {
        let mut step = step(0);
        step.microbatches = step.microbatches.iter().cycle().take(microbatches).cloned().collect();
        let steps = [step];
        let mut layers = vec![0; chunks];
        (layers[1], layers[chunks - 1]) = (1, 1);
        let one = train(&setup(true, &[2]), &steps);
        assert!(one == train(&Setup { schedule, ..setup(true, &layers) }, &steps), "{microbatches} microbatches");
    }
}
