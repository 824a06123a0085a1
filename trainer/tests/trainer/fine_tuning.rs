//! Compares the trainer with Transformers and PEFT, for whole models, models with frozen weights, and adapters. The
//! trainer reproduces twenty steps (`tests/reference/fine_tuning.py`) with any number of microbatches, and no layout
//! changes a bit.

use stagecoach_api::job::{Precision, Recompute};
use stagecoach_model::model_types;
use stagecoach_pipeline::{gpipe, interleaved_one_f_one_b, interleaved_zero_bubble, one_f_one_b, zbv_zero_bubble};

use crate::reference::{Scheduler, compare, setup};
use crate::support::pipeline::{Setup, train};
use crate::support::reference_data::Reference;

/// The largest accepted error of a loss, relative to the loss of PEFT in float32.
const LOSS_TOLERANCE: f64 = 1e-6;

#[test]
fn every_case_is_reproduced() {
    let reference = Reference::of_peft();
    for name in reference.names() {
        let case = reference.case(name);
        assert_eq!(case.losses.len(), 20);
        for microbatches in [1, 8] {
            let (setup, expected) = setup(&reference, name, &[case.layers()], one_f_one_b);
            let trained = train(&setup, &reference.steps(case, microbatches));
            compare(&format!("{name}, {microbatches} microbatches"), &trained, &expected);
            let errors = trained.losses.iter().zip(&expected.losses).map(|(a, b)| (f64::from(a / b) - 1.0).abs());
            let worst = errors.fold(0.0, f64::max);
            assert!(worst <= LOSS_TOLERANCE, "{name}: a loss is {worst:.1e} off");
        }
    }
}

/// Stages, schedules, recomputation and split backward passes change no bit.
#[test]
fn no_layout_changes_a_bit() {
    let reference = Reference::of_peft();
    let layouts: [(&[usize], Scheduler); 6] = [
        (&[1, 1], gpipe),
        (&[1, 1], one_f_one_b),
        (&[1, 0, 0, 1], |chunks, microbatches| interleaved_one_f_one_b(chunks / 2, 2, microbatches)),
        (&[1, 1], |chunks, microbatches| interleaved_zero_bubble(chunks, 1, microbatches)),
        (&[1, 0, 1], |chunks, microbatches| interleaved_zero_bubble(chunks, 1, microbatches)),
        (&[0, 1, 1, 0], |chunks, microbatches| zbv_zero_bubble(chunks / 2, microbatches)),
    ];
    for name in reference.names() {
        let case = reference.case(name);
        let steps = &reference.steps(case, 4)[..3];
        for precision in [Precision::Float32, Precision::BFloat16] {
            let with_layers =
                |layers: &[usize], schedule| Setup { precision, ..setup(&reference, name, layers, schedule).0 };
            let one = train(&with_layers(&[2], one_f_one_b), steps);
            for (layers, schedule) in layouts {
                for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
                    let other = train(&Setup { recompute, ..with_layers(layers, schedule) }, steps);
                    assert!(one == other, "{name} in {precision}, {layers:?} layers, {recompute} recomputation");
                }
            }
        }
    }
}

/// Checks that the cases have the properties on which the comparison depends.
#[test]
fn the_reference_has_every_family_and_every_way() {
    let reference = Reference::of_peft();
    let cases = || reference.names().map(|name| reference.case(name));
    for model_type in model_types() {
        for way in ["lora", "full"] {
            assert!(reference.names().any(|name| name == format!("{way}-{model_type}")), "no {way}-{model_type}");
        }
    }
    assert!(cases().any(|case| !case.freeze.is_empty()));
    assert!(cases().any(|case| case.lora.as_ref().is_some_and(|lora| lora.use_rslora)));
    assert!(cases().any(|case| case.lora.as_ref().is_some_and(|lora| lora.targets.is_empty())));
}
