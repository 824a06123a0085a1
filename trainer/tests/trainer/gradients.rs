//! Tests of gradients. Every parameter gets a gradient, through stages with and without layers. Gradients add up in the
//! order of the microbatches. The rotary tables are those of the RoPE paper.

use std::collections::BTreeSet;
use std::sync::Arc;

use stagecoach_api::job::{AdamWSpec, Encryption, ModelType, Precision, Recompute, Transport};
use stagecoach_data::{IGNORE_INDEX, MicrobatchLayout};
use stagecoach_engine::execute::{ChunkOutput, LossInputs, Stage};
use stagecoach_model::{CuSeqlens, ForwardContext, LlamaConfig, ModelConfig, WeightGradient, names};
use stagecoach_pipeline::{Action, Schedule, WorkItem, gpipe, one_f_one_b};
use tch::{Device, Tensor};

use crate::support::pipeline::{MicrobatchData, Setup, StepData, Weights, build, train};

const VOCAB_SIZE: i64 = 50;

fn config(tied: bool) -> LlamaConfig {
    LlamaConfig {
        model_type: ModelType::Llama,
        hidden_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 6,
        intermediate_size: 32,
        vocab_size: VOCAB_SIZE as usize,
        max_position_embeddings: 16,
        rope_theta: 10_000.0,
        rope_scaling: None,
        rms_norm_eps: 1e-5,
        tie_word_embeddings: tied,
        initializer_range: 0.2,
    }
}

pub(crate) fn setup(tied: bool, layers: &[usize]) -> Setup {
    Setup {
        config: Arc::new(config(tied)),
        layers: layers.to_vec(),
        schedule: one_f_one_b,
        transport: Transport::Tcp,
        encryption: Encryption::None,
        recompute: Recompute::None,
        precision: Precision::Float32,
        optimizer: AdamWSpec { beta2: 0.99, weight_decay: 0.1, ..AdamWSpec::default() },
        clip: Some(1.0),
        gradient_blocks: 1,
        weights: None,
        lora: None,
        freeze: Vec::new(),
    }
}

/// Returns four microbatches of unequal length. The second has two documents in its first row, and the third has only
/// padding.
pub(crate) fn step(offset: i64) -> StepData {
    let id =
        |microbatch: usize, at: usize| (offset + 31 * microbatch as i64 + 7 * (at * at) as i64) % (VOCAB_SIZE - 10);
    let microbatch = |index: usize, length: usize| {
        let ids: Vec<i64> = (0..=2 * length).map(|at| id(index, at)).collect();
        let mut targets = ids[1..].to_vec();
        let mut document_starts = vec![vec![], vec![]];
        match index {
            1 => (document_starts[0], targets[2]) = (vec![3], IGNORE_INDEX),
            2 => targets.fill(IGNORE_INDEX),
            _ => {}
        }
        let layout = MicrobatchLayout { rows: 2, length, document_starts };
        MicrobatchData { layout, inputs: ids[..2 * length].to_vec(), targets }
    };
    let lengths = [6, 9, 3, 5];
    StepData {
        microbatches: lengths.iter().enumerate().map(|(m, &length)| microbatch(m, length)).collect(),
        learning_rate: 1e-2,
        target_count: None,
    }
}

pub(crate) fn steps() -> Vec<StepData> {
    vec![step(0), step(11), step(23)]
}

/// The pipeline has an empty stage in the middle. The test detects these faults:
///
/// - A stage passes no gradient to the previous stage, so that all gradients before it are zero.
/// - The rotary tables are zero, so that the attention scores and the gradients of queries and keys are zero.
/// - The head of the model (logits and loss) has no gradient.
/// - A gradient contains uninitialised memory, so that it is not finite.
#[test]
fn every_parameter_has_a_finite_gradient_that_is_not_zero() {
    for tied in [false, true] {
        let steps = [step(0)];
        let gradients = train(&setup(tied, &[1, 0, 1]), &steps).gradients;
        let expected = config(tied).architecture(Device::Cpu).parameter_names();
        assert!(gradients.keys().eq(&expected), "{:?}", gradients.keys());
        for (name, gradient) in &gradients {
            assert!(gradient.iter().all(|g| g.is_finite()), "{name}");
            if !tied && name == names::EMBEDDING {
                // padding and a document's last token have no targets
                let all = steps[0].microbatches.iter().flat_map(|m| m.inputs.iter().zip(&m.targets));
                let counting: BTreeSet<_> = all.filter(|&(_, &target)| target >= 0).map(|(&id, _)| id).collect();
                assert_eq!(rows_with_a_gradient(gradient), counting, "the embedding's rows");
            } else {
                let zeros = gradient.iter().filter(|&&g| g == 0.0).count();
                assert_eq!(zeros, 0, "{name}: {zeros} of {} gradients are zero", gradient.len());
            }
        }
    }
}

fn rows_with_a_gradient(embedding: &[f32]) -> BTreeSet<i64> {
    let rows = embedding.chunks(config(false).hidden_size).enumerate();
    rows.filter(|(_, row)| row.iter().any(|&g| g != 0.0)).map(|(id, _)| id as i64).collect()
}

/// Tests a model whose embedding and head are on one stage, and one whose embedding and head are connected by a link.
#[test]
fn the_gradient_of_a_tied_embedding_is_the_sum_of_embedding_and_head() {
    let names = config(true).architecture(Device::Cpu).parameter_names();
    let mut weights: Weights = fresh_weights(true);
    assert!(weights.keys().eq(&names));
    weights.insert(names::HEAD.into(), weights[names::EMBEDDING].clone());
    for layers in [vec![2], vec![1, 0, 1]] {
        let run = |tied| train(&Setup { weights: Some(weights.clone()), ..setup(tied, &layers) }, &[step(0)]);
        let (apart, tied) = (run(false).gradients, run(true).gradients);
        let both = apart[names::EMBEDDING].iter().zip(&apart[names::HEAD]);
        assert_eq!(tied[names::EMBEDDING], both.map(|(a, b)| a + b).collect::<Vec<_>>(), "{layers:?}");
    }
}

fn fresh_weights(tied: bool) -> Weights {
    let stage = one_stage(&setup(tied, &[2]));
    let values = |value: &Tensor| Vec::<f32>::try_from(value.reshape([-1])).unwrap();
    stage.parameters.iter().map(|p| (p.spec.name.clone(), values(&p.value))).collect()
}

fn one_stage(setup: &Setup) -> Stage {
    tch::set_num_threads(1);
    build(setup, 0)
}

/// Returns a step of eight microbatches.
pub(crate) fn long_step(offset: i64) -> StepData {
    let microbatches = [step(offset), step(offset + 5)].into_iter().flat_map(|step| step.microbatches).collect();
    StepData { microbatches, ..step(offset) }
}

/// A gradient block is a group of consecutive microbatches. The gradients of a block are added in the order of its
/// microbatches. A binary tree then adds the sums of the blocks.
#[test]
fn the_gradient_is_the_tree_of_its_blocks() {
    for (tied, gradient_blocks) in [(false, 8), (true, 8), (false, 4), (true, 4), (false, 2), (true, 2)] {
        let whole = long_step(0);
        let block_gradients = |microbatches: &[MicrobatchData]| {
            let target_count = Some(whole.own_targets());
            let part = StepData { microbatches: microbatches.to_vec(), target_count, ..whole.clone() };
            train(&setup(tied, &[2]), &[part]).gradients
        };
        let blocks: Vec<Weights> = whole.microbatches.chunks(8 / gradient_blocks).map(block_gradients).collect();
        let add = |a: &Weights, b: &Weights| -> Weights {
            let sum = |name: &String| a[name].iter().zip(&b[name]).map(|(a, b)| a + b).collect();
            a.keys().map(|name| (name.clone(), sum(name))).collect()
        };
        let mut tree = blocks;
        while tree.len() > 1 {
            tree = tree.chunks(2).map(|pair| add(&pair[0], &pair[1])).collect();
        }
        let gradients = train(&Setup { gradient_blocks, ..setup(tied, &[2]) }, &[whole]).gradients;
        // a tied weight is left out: it has two trees, one of the embedding and one of the head, which are added at the
        // end
        for (name, gradient) in gradients.iter().filter(|(name, _)| !tied || *name != names::EMBEDDING) {
            assert_eq!(*gradient, tree[0][name], "{name}, tied {tied}, {gradient_blocks} blocks");
        }
    }
}

/// bf16 rounds activations to 8 significant bits: losses, gradients and weights are close to those of fp32, but not
/// equal.
#[test]
fn bf16_trains_as_fp32_does_up_to_its_rounding() {
    let setup = setup(false, &[1, 1]);
    let exact = train(&setup, &steps());
    let rounded = train(&Setup { precision: Precision::BFloat16, ..setup }, &steps());
    for (exact, rounded) in exact.losses.iter().zip(&rounded.losses) {
        assert!(exact != rounded && (exact - rounded).abs() < 0.01 * exact, "{exact} {rounded}");
    }
    for (name, exact) in &exact.gradients {
        let largest = exact.iter().fold(0.0, |max: f32, g| max.max(g.abs()));
        let error = exact.iter().zip(&rounded.gradients[name]).fold(0.0, |max: f32, (a, b)| max.max((a - b).abs()));
        assert!(error < 0.06 * largest, "{name}: off by {error}, the largest gradient is {largest}");
    }
    // the master weights are not bf16, so that updates below bf16's resolution are not lost
    let fine = |weight: &f32| weight.to_bits() & 0xffff != 0;
    assert!(rounded.weights.values().flatten().filter(|w| fine(w)).count() > 1000);
}

/// Returns GPipe with every backward split into I, the gradient of the input, and W, the gradients of the weights.
/// Every W comes after the last I, as late as possible.
pub(crate) fn weights_last(stages: usize, microbatches: usize) -> Schedule {
    let mut schedule = gpipe(stages, microbatches);
    for (chunk, actions) in schedule.ranks.iter_mut().enumerate() {
        for action in actions.iter_mut() {
            if let Action::FullBackward(item) = *action {
                *action = Action::BackwardInput(item);
            }
        }
        actions.extend((0..microbatches).map(|microbatch| Action::BackwardWeight(WorkItem { chunk, microbatch })));
    }
    schedule
}

/// A pipeline's sums equal sequential sums over the microbatches, bit for bit; any other order gives other bits.
#[test]
fn gradients_add_up_in_the_order_of_the_microbatches() {
    let sequential = |order: [usize; 4]| {
        let stage = one_stage(&setup(false, &[2]));
        let step = step(0);
        let count = step.microbatches.iter().flat_map(|m| &m.targets).filter(|&&t| t >= 0).count();
        order.iter().for_each(|&m| forward_backward(&stage, &step.microbatches[m], 1.0 / count as f64));
        let flat = |g: &Tensor| Vec::<f32>::try_from(g.reshape([-1])).unwrap();
        stage.parameters.iter().map(|p| (p.spec.name.clone(), flat(&p.gradient))).collect::<Weights>()
    };
    // `forward_backward` supports only rows of one document, so remove the second document of microbatch 1
    let mut step = step(0);
    step.microbatches[1].layout.document_starts = vec![vec![], vec![]];
    for schedule in [one_f_one_b, gpipe, weights_last] {
        let trained = train(&Setup { schedule, ..setup(false, &[1, 0, 1]) }, std::slice::from_ref(&step));
        assert!(trained.gradients == sequential([0, 1, 2, 3]));
        assert!(trained.gradients != sequential([3, 1, 2, 0]));
    }
}

/// Returns a context for rows of one document each.
fn context(rows: usize, length: usize) -> ForwardContext {
    let bounds: Vec<i64> = (0..=rows).map(|row| (row * length) as i64).collect();
    let cu_seqlens = CuSeqlens::new(&bounds, Device::Cpu);
    ForwardContext { length: length as i64, first_position: 0, cu_seqlens, recompute: Recompute::None }
}

fn forward_backward(stage: &Stage, microbatch: &MicrobatchData, scale: f64) {
    let MicrobatchLayout { rows, length, .. } = microbatch.layout;
    let (input, targets) = (Tensor::from_slice(&microbatch.inputs), Tensor::from_slice(&microbatch.targets));
    let chunk = &stage.chunks[&0];
    let (_, saved) = chunk.forward(input, context(rows, length), Some(LossInputs { targets: &targets, scale }));
    chunk.backward(saved, None, &mut WeightGradient::accumulate);
}

/// Compares the input gradient of the last chunk with a difference quotient along a direction.
#[test]
fn the_gradient_sent_to_the_previous_chunk_is_the_derivative_of_the_loss() {
    let setup = setup(false, &[0, 2]);
    tch::set_num_threads(1);
    let stage = build(&setup, 1);
    let chunk = &stage.chunks[&1];
    let wave = |f: fn(f64) -> f64| {
        let values: Vec<f32> = (0..2 * 5 * 24).map(|at| f(f64::from(at) * 1.7) as f32).collect();
        Tensor::from_slice(&values).view([10, 24])
    };
    let (x, direction) = (wave(f64::sin), wave(|at| (at * at).cos()));
    let targets = Tensor::from_slice(&[3i64, 1, 4, 1, 5, 9, 2, 6, -100, 5]);
    let loss = |x: Tensor| match chunk.evaluate(&x, &context(2, 5), Some(&targets)) {
        ChunkOutput::Loss(loss) => loss.sum.double_value(&[]),
        ChunkOutput::Activations(_) => panic!("the last chunk computes the loss"),
    };
    let h = 2e-3;
    let quotient = (loss(&x + &direction * h) - loss(&x - &direction * h)) / (2.0 * h);

    let loss_inputs = LossInputs { targets: &targets, scale: 1.0 };
    let (_, saved) = chunk.forward(x.shallow_clone(), context(2, 5), Some(loss_inputs));
    let dx = chunk.backward(saved, None, &mut WeightGradient::accumulate).unwrap();
    assert_eq!(dx.size(), x.size());
    let derivative = (dx * direction).sum(tch::Kind::Double).double_value(&[]);
    assert!(derivative.abs() > 0.1, "{derivative}: the direction is nearly orthogonal to the gradient");
    assert!(
        (derivative - quotient).abs() < 5e-3 * derivative.abs(),
        "derivative {derivative}, difference quotient {quotient}"
    );
}

/// Derives the rotary tables from the attention weights of a layer with one head. The value vector (V) of token t is
/// the t-th unit vector, so that the layer's output at a position is the row of this position's attention weights. The
/// rotation turns the elements i and i + d/2 of a head as a pair. Every query is zero except for element i. Every key
/// is zero except for one element of the same pair. The score of a query at position p and a key at position t depends
/// on the angle (p - t) theta^(-2i/d). If the key's element is i, the score is proportional to the cosine of this
/// angle. If the key's element is i + d/2, the score is proportional to the sine. The softmax hides a constant per
/// query, so the test checks the difference from the score of the key at the query's own position.
#[test]
fn rotary_tables_are_those_of_the_formula() {
    let (length, theta) = (16usize, 50.0f64);
    let (dim, hidden) = (length, length + 1);
    let config = LlamaConfig {
        hidden_size: hidden,
        num_hidden_layers: 1,
        num_attention_heads: 1,
        num_key_value_heads: 1,
        head_dim: dim,
        intermediate_size: 1,
        vocab_size: 1,
        max_position_embeddings: length,
        rope_theta: theta,
        rms_norm_eps: 0.0,
        ..config(false)
    };
    let mut setup = Setup { config: Arc::new(config), ..setup(false, &[1]) };
    // token t is the vector e_0 + e_(1+t), and the norm multiplies it by `scale`
    let scale = (hidden as f64 / 2.0).sqrt() as f32;
    let x = Tensor::eye(length as i64, (tch::Kind::Float, Device::Cpu));
    let x = Tensor::cat(&[Tensor::ones([length as i64, 1], (tch::Kind::Float, Device::Cpu)), x], 1);
    for (pair, half_turn) in (0..dim / 2).flat_map(|pair| [(pair, false), (pair, true)]) {
        let key = if half_turn { pair + dim / 2 } else { pair };
        setup.weights = Some(attention_weights(
            &one_stage(&Setup { weights: None, ..setup.clone() }),
            |name, row, column| match name {
                "q_proj" if (row, column) == (pair, 0) => 2.0 / scale,
                "k_proj" if (row, column) == (key, 0) => 2.0 / scale,
                "v_proj" if column == row + 1 => 1.0 / scale,
                "o_proj" if row == column + 1 => 1.0,
                _ => 0.0,
            },
        ));
        let stage = one_stage(&setup);
        let layer = stage.chunks[&0].layers[0].clone();
        let weights = (layer.forward(x.shallow_clone(), &context(1, length)).0 - &x).narrow(1, 1, length as i64);
        let frequency = theta.powf(-2.0 * pair as f64 / dim as f64);
        let formula =
            |distance: f64| if half_turn { (distance * frequency).sin() } else { (distance * frequency).cos() };
        for (p, t) in (0..length).flat_map(|p| (0..p).map(move |t| (p, t))) {
            let weight = |t: usize| weights.double_value(&[p as i64, t as i64]);
            let score = (weight(t) / weight(p)).ln() * (dim as f64).sqrt() / 4.0;
            let expected = formula((p - t) as f64) - formula(0.0);
            assert!((score - expected).abs() < 1e-5, "pair {pair}, query {p}, key {t}: {score}, formula {expected}");
        }
    }
}

/// Returns weights in which norms are ones and every other value is `value(projection, row, column)`.
fn attention_weights(stage: &Stage, value: impl Fn(&str, usize, usize) -> f32) -> Weights {
    let fill = |name: &str, shape: &[i64]| match shape {
        &[n] => vec![1.0; n as usize],
        shape => {
            let projection = name.rsplit('.').nth(1).unwrap_or_default();
            let (rows, columns) = (shape[0] as usize, shape[1] as usize);
            (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))).map(|(r, c)| value(projection, r, c)).collect()
        }
    };
    stage.parameters.iter().map(|p| (p.spec.name.clone(), fill(&p.spec.name, &p.spec.shape))).collect()
}
