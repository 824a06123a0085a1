//! Tests against an independent reference: five steps that plain PyTorch computed in one pass over the whole batch
//! (`tests/reference/reference.py`), reproduced with any number of microbatches and stages.

use crate::support::pipeline::{Setup, Trained, Weights, train};
use crate::support::reference_data::{BFloat16Errors, Reference, tensors};
use stagecoach_api::job::{Encryption, Precision, Recompute, Transport};
use stagecoach_model::{SourceConfig, model_types};
use stagecoach_pipeline::{Schedule, gpipe, one_f_one_b};

/// The largest accepted value of max |a - b| / max |b| over a tensor. PyTorch in float32 deviates from float64 by up to
/// 5e-6 here (`reference.json`).
const TOLERANCE: f64 = 1e-5;

pub(crate) type Scheduler = fn(usize, usize) -> Schedule;

/// Returns the setup for the training of case `name`, and PyTorch's results.
pub(crate) fn setup(reference: &Reference, name: &str, layers: &[usize], schedule: Scheduler) -> (Setup, Trained) {
    let case = reference.case(name);
    let (initial, expected) = tensors(name, case);
    let setup = Setup {
        config: case.source.config.clone(),
        layers: layers.to_vec(),
        schedule,
        transport: Transport::Tcp,
        encryption: Encryption::None,
        recompute: Recompute::None,
        precision: Precision::Float32,
        optimizer: reference.adamw(),
        clip: Some(case.clip),
        gradient_blocks: 1,
        weights: Some(initial),
        lora: case.lora.clone(),
        freeze: case.freeze.clone(),
    };
    (setup, expected)
}

/// Trains case `name`, and compares the results with PyTorch's. Returns the results.
fn reproduce(name: &str, layers: &[usize], schedule: Scheduler, microbatches: usize, transport: Transport) -> Trained {
    let reference = Reference::read();
    let (setup, expected) = setup(&reference, name, layers, schedule);
    let trained = train(&Setup { transport, ..setup }, &reference.steps(reference.case(name), microbatches));
    let what = format!("{name}, {layers:?} layers, {microbatches} microbatches");
    compare(&what, &trained, &expected);
    trained
}

pub(crate) fn compare(what: &str, ours: &Trained, reference: &Trained) {
    let scalars = |t: &Trained| t.losses.iter().map(|&l| f64::from(l)).chain(t.norms.clone()).collect::<Vec<_>>();
    for (index, (a, b)) in scalars(ours).into_iter().zip(scalars(reference)).enumerate() {
        assert!((a - b).abs() <= TOLERANCE * b.abs(), "{what}: loss or norm {index} is {a}, PyTorch has {b}");
    }
    assert_eq!(ours.losses.len(), reference.losses.len());
    let gradients = distances(&ours.gradients, &reference.gradients);
    let weights = distances(&ours.weights, &reference.weights);
    // AdamW divides a gradient by its size, so that the rounding of a gradient near zero changes the weights more
    for (kind, distances, tolerance) in [("gradient", gradients, TOLERANCE), ("final", weights, 2.0 * TOLERANCE)] {
        let (worst, name) = distances.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        assert!(worst <= tolerance, "{what}: the {kind} of {name} is {worst:.1e} off");
        println!("{what}: {kind} within {worst:.1e} ({name})");
    }
}

fn distances(ours: &Weights, reference: &Weights) -> Vec<(f64, String)> {
    assert!(ours.keys().eq(reference.keys()), "{:?} against {:?}", ours.keys(), reference.keys());
    let distance = |a: &[f32], b: &[f32]| {
        assert_eq!(a.len(), b.len());
        let largest = b.iter().fold(0.0, |most: f64, &b| most.max(f64::from(b.abs())));
        let off = a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs());
        // a NaN counts as an infinite distance
        off.fold(0.0, |most, d| if d.is_nan() { f64::INFINITY } else { f64::max(most, d) }) / largest
    };
    reference.iter().map(|(name, b)| (distance(&ours[name], b), name.clone())).collect()
}

/// Tests one stage, with every number of microbatches that divides the batch, and with both schedules for four
/// microbatches.
#[test]
fn every_model_on_one_stage() {
    let reference = Reference::read();
    for name in reference.names() {
        let layers = [reference.case(name).layers()];
        for microbatches in [1, 2, 4, 8] {
            reproduce(name, &layers, one_f_one_b, microbatches, Transport::Tcp);
        }
        reproduce(name, &layers, gpipe, 4, Transport::Tcp);
    }
}

#[test]
fn llama_3s_rotary_frequencies_differ_from_the_plain_ones() {
    let reference = Reference::read();
    let (mut setup, expected) = setup(&reference, "llama3", &[2], one_f_one_b);
    let mut fields = reference.case("llama3").source.fields.clone();
    fields.remove("rope_scaling");
    setup.config = SourceConfig::parse(fields).unwrap().config;
    let plain = train(&setup, &reference.steps(reference.case("llama3"), 4));
    let off = distances(&plain.gradients, &expected.gradients).into_iter().map(|(off, _)| off).fold(0.0, f64::max);
    assert!(off > 100.0 * TOLERANCE, "{off}");
}

#[test]
fn gradients_that_are_added_in_blocks() {
    let reference = Reference::read();
    for (name, layers) in [("padded", 2), ("tied", 2), ("packed", 3)] {
        for gradient_blocks in [2, 8] {
            let (setup, expected) = setup(&reference, name, &[layers], one_f_one_b);
            let trained = train(&Setup { gradient_blocks, ..setup }, &reference.steps(reference.case(name), 8));
            compare(&format!("{name}, {gradient_blocks} blocks"), &trained, &expected);
        }
    }
}

#[test]
fn several_stages_and_both_schedules() {
    // links and partitions change no bit, so that these results are as close to PyTorch's as those of one stage
    let one = reproduce("padded", &[2], gpipe, 4, Transport::Tcp);
    assert!(one == reproduce("padded", &[1, 1], one_f_one_b, 4, Transport::Tcp));
    assert!(one == reproduce("padded", &[2, 0], gpipe, 4, Transport::Shm));
    let one = reproduce("tied", &[2], one_f_one_b, 8, Transport::Tcp);
    assert!(one == reproduce("tied", &[1, 1], gpipe, 8, Transport::Shm));
    let one = reproduce("packed", &[3], one_f_one_b, 8, Transport::Tcp);
    assert!(one == reproduce("packed", &[1, 1, 1], one_f_one_b, 8, Transport::Tcp));
    let reference = Reference::read();
    for name in reference.names() {
        let case = reference.case(name);
        let (all, each) = ([case.layers()], vec![1; case.layers()]);
        let one = reproduce(name, &all, gpipe, 4, Transport::Tcp);
        assert!(one == reproduce(name, &each, one_f_one_b, 4, Transport::Tcp), "{name}");
        for recompute in [Recompute::Selective, Recompute::Full] {
            let (setup, _) = setup(&reference, name, &each, one_f_one_b);
            let again = train(&Setup { recompute, ..setup }, &reference.steps(case, 4));
            assert!(one == again, "{name} with {recompute} recomputation");
        }
    }
}

/// Returns |a - b| / |b|, with all tensors as one vector.
fn relative_error(ours: &Weights, reference: &Weights) -> f64 {
    let pairs = reference.iter().flat_map(|(name, b)| ours[name].iter().zip(b));
    let (mut difference, mut square) = (0.0, 0.0);
    for (&a, &b) in pairs {
        difference += (f64::from(a) - f64::from(b)).powi(2);
        square += f64::from(b).powi(2);
    }
    (difference / square).sqrt()
}

/// Bfloat16 has three digits, so that a trainer's errors mostly depend on the points at which it rounds. The bounds are
/// the errors of PyTorch's own training in bf16 plus a margin. Each of these errors is the larger one of two
/// measurements, with different orders of the sums over the batch.
#[test]
fn bf16_strays_no_further_than_pytorch_does() {
    let reference = Reference::read();
    for name in reference.names() {
        let case = reference.case(name);
        let (setup, expected) = setup(&reference, name, &[case.layers()], one_f_one_b);
        let worst = |error: fn(&BFloat16Errors) -> f64| case.bfloat16.iter().map(error).fold(0.0, f64::max);
        for microbatches in [1, 8] {
            let setup = Setup { precision: Precision::BFloat16, ..setup.clone() };
            let trained = train(&setup, &reference.steps(case, microbatches));
            let losses = trained.losses.iter().zip(&expected.losses);
            let loss_error = losses.map(|(a, b)| (f64::from(*a) / f64::from(*b) - 1.0).abs()).fold(0.0, f64::max);
            let gradient_error = relative_error(&trained.gradients, &expected.gradients);
            let final_error = relative_error(&trained.weights, &expected.weights);
            let ours = [loss_error, gradient_error, final_error];
            // a loss is a single number with a random error, and PyTorch's error was measured on another processor
            let torch =
                [2.0 * worst(|e| e.loss_error), 1.1 * worst(|e| e.gradient_error), 1.1 * worst(|e| e.final_error)];
            println!("{name}, {microbatches} microbatches: {ours:?}, PyTorch {torch:?}");
            assert!(gradient_error > 1e-3, "{name}: nothing was rounded");
            assert!(
                ours.iter().zip(torch).all(|(&a, b)| a <= b),
                "{name}, {microbatches}: {ours:?}, PyTorch {torch:?}"
            );
        }
    }
}

#[test]
fn learning_rates_are_those_of_torch() {
    let reference = Reference::read();
    for name in reference.names() {
        for (step, &expected) in reference.case(name).learning_rates.iter().enumerate() {
            let ours = reference.learning_rate().at(step as u64);
            assert!((ours - expected).abs() <= 1e-12 * expected, "step {step}: {ours}, torch has {expected}");
        }
    }
}

/// Checks the properties of the reference on which the comparison depends: without them a defect could stay hidden.
#[test]
fn the_reference_has_what_it_is_meant_to_have() {
    let reference = Reference::read();
    for name in reference.names() {
        let case = reference.case(name);
        let clipped = case.norms.iter().filter(|&&norm| norm > case.clip).count();
        assert!((1..case.norms.len()).contains(&clipped), "{name}: {clipped} steps are clipped");
        let steps = reference.steps(case, 4);
        let counts: Vec<_> =
            steps[0].microbatches.iter().map(|m| m.targets.iter().filter(|&&t| t >= 0).count()).collect();
        let documents = steps[0].microbatches.iter().flat_map(|m| &m.layout.document_starts).flatten().count();
        match name {
            "packed" => assert!(documents >= 8, "{documents}"),
            _ => assert!(counts.contains(&0) && counts.iter().max() > Some(&18), "{name}: {counts:?}"),
        }
    }
    for model_type in model_types() {
        let is_of = |name: &str| name == model_type || reference.case(name).source.fields["model_type"] == model_type;
        assert!(reference.names().any(is_of), "{model_type} has no case");
    }
    let is_tied = |name: &str| reference.case(name).source.fields["tie_word_embeddings"] == true;
    for name in ["padded", "tied", "packed", "llama3", "mistral", "qwen2", "qwen3"] {
        assert_eq!(is_tied(name), ["tied", "qwen2"].contains(&name), "{name}");
    }
    let explicit = |field: &str| reference.case("tied").source.fields[field].as_u64().unwrap();
    assert_ne!(explicit("head_dim"), explicit("hidden_size") / explicit("num_attention_heads"));
}
