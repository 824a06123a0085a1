//! Tests partitions of small models and of the 12-layer reference model against known results, and the errors of
//! partitions.

use stagecoach_pipeline::{
    ModelCost, ModuleCost, Partition, PartitionError, Placement, RankSpeeds, Schedule, StageMemory, balance_ratio,
    balanced_partition, explicit_partition, gpipe, interleaved_one_f_one_b, interleaved_zero_bubble, one_f_one_b,
    zbv_zero_bubble,
};

fn module(name: &str, work: f64, parameter_bytes: u64, activation_bytes: u64) -> ModuleCost {
    ModuleCost {
        name: name.to_owned(),
        forward: work,
        backward_input: work,
        backward_weight: work,
        parameter_bytes,
        activation_bytes,
        ..ModuleCost::default()
    }
}

/// Returns the balanced partition over ranks of equal speed.
pub(crate) fn balanced(
    model: &ModelCost,
    schedule: &Schedule,
    limit: Option<u64>,
) -> Result<Partition, PartitionError> {
    balanced_partition(model, schedule, limit, &RankSpeeds::default())
}

/// Returns the balance ratio over ranks of equal speed, with one chunk each.
fn balance(model: &ModelCost, partition: &Partition) -> f64 {
    balance_ratio(model, partition, &Placement::linear(partition.layers.len()), &RankSpeeds::default())
}

/// Returns the costs of the reference model in multiply-adds per token. The model has h=768, 12 query heads, 3
/// key-value heads, an intermediate size of 3,072, a vocabulary of 50,000 and 512 positions. A layer has 2 h^2 + 2 h
/// (h/4) + 3 h 3072 multiply-adds for the weights and 512 h for causal attention.
fn reference() -> ModelCost {
    ModelCost {
        embedding: module("embedding", 0.0, 0, 0),
        layers: vec![module("layer", 8_945_664.0, 0, 0); 12],
        head: module("head", 38_400_000.0, 0, 0),
        ..ModelCost::default()
    }
}

#[test]
fn the_reference_models_balances() {
    let model = reference();
    for (layers, expected) in [
        (vec![4, 4, 4], 0.655),
        (vec![5, 6, 1], 0.905),
        (vec![3, 3, 3, 3], 0.559),
        (vec![4, 4, 4, 0], 0.949),
        (vec![6, 6], 0.791),
        (vec![8, 4], 0.982),
    ] {
        let partition = explicit_partition(&model, &layers, &gpipe(layers.len(), 1), None).unwrap();
        let ratio = balance(&model, &partition);
        assert!((ratio - expected).abs() < 5e-4, "{layers:?}: {ratio}");
    }
    for best in [vec![12], vec![8, 4], vec![5, 6, 1], vec![4, 4, 4, 0]] {
        assert_eq!(balanced(&model, &gpipe(best.len(), 1), None).unwrap().layers, best);
    }
}

#[test]
fn more_stages_than_layers() {
    let mut model = reference();
    model.layers.truncate(2);
    let partition = balanced(&model, &gpipe(6, 1), None).unwrap();
    assert_eq!(partition.layers, [0, 0, 0, 1, 1, 0]);
    assert_eq!(
        (partition.range(3), partition.range(4), partition.range(5), partition.range(9)),
        (0..1, 1..2, 2..2, 2..2)
    );
    model.layers.clear();
    assert_eq!(balanced(&model, &gpipe(3, 1), None).unwrap().layers, [0, 0, 0]);
    let free = ModelCost { head: module("head", 0.0, 0, 0), ..model };
    assert_eq!(balance(&free, &balanced(&free, &gpipe(3, 1), None).unwrap()), 1.0);
}

#[test]
fn equal_layers_tie_whatever_their_binary_form() {
    // 0.1 has no exact binary form, so that floating-point sums of three layers can differ in the last bit
    for (layers, stages, expected) in [(6, 3, vec![2, 2, 2]), (7, 3, vec![2, 2, 3]), (8, 3, vec![2, 3, 3])] {
        for work in [0.1, 1e-9, 1e300, 3.3e17] {
            let model = ModelCost {
                embedding: module("embedding", 0.0, 0, 0),
                layers: vec![module("layer", work, 0, 0); layers],
                head: module("head", 0.0, 0, 0),
                ..ModelCost::default()
            };
            assert_eq!(balanced(&model, &gpipe(stages, 1), None).unwrap().layers, expected, "{work}");
        }
    }
}

#[test]
fn a_difference_of_one_flop_in_1e15_decides() {
    let most = 2f64.powi(50);
    let layers = [most - 1.0, 1.0, most].map(|work| module("layer", work, 0, 0)).to_vec();
    let free = module("end", 0.0, 0, 0);
    let model = ModelCost { embedding: free.clone(), layers, head: free, boundary_bytes: 0, ranks: Vec::new() };
    assert_eq!(balanced(&model, &gpipe(2, 1), None).unwrap().layers, [2, 1]);
}

#[test]
fn explicit_partition_is_validated() {
    let model = reference();
    let error =
        |layers: &[usize], stages| explicit_partition(&model, layers, &gpipe(stages, 1), None).unwrap_err().to_string();
    assert_eq!(
        error(&[5, 6], 3),
        "the partition [5, 6] lists 2 chunks but the pipeline has 3: give one number of layers per chunk"
    );
    assert_eq!(
        error(&[5, 6, 2], 3),
        "the partition [5, 6, 2] adds up to 13 layers but the model has 12: change the numbers so that they do"
    );
    assert!(error(&[usize::MAX, 13, 0], 3).contains("adds up to"));
    assert_eq!(explicit_partition(&model, &[0, 12, 0], &gpipe(3, 1), None).unwrap().layers, [0, 12, 0]);
}

#[test]
fn impossible_requests_are_refused() {
    let mut model = reference();
    assert_eq!(balanced(&model, &gpipe(0, 1), None), Err(PartitionError::NoChunks));
    for work in [f64::NAN, f64::INFINITY, -1.0] {
        model.layers[3] = module("layer 3", work, 0, 0);
        let error = balanced(&model, &gpipe(2, 1), None).unwrap_err().to_string();
        assert!(error.starts_with(&format!("the cost of layer 3 is {work}")), "{error}");
    }
}

#[test]
fn a_model_that_does_not_fit_is_reported_with_stage_and_bytes() {
    let model = ModelCost {
        embedding: module("embedding", 0.0, 500, 0),
        layers: vec![module("layer", 1.0, 100, 10); 4],
        head: module("head", 1.0, 200, 0),
        boundary_bytes: 1,
        ranks: Vec::new(),
    };
    let fit = |limit| balanced(&model, &one_f_one_b(2, 2), Some(limit));
    // [2, 2] holds 740 bytes on stage 0; [2, 2] and [3, 1] are the fastest partitions, and [2, 2] is preferred
    assert_eq!(fit(740).unwrap().layers, [2, 2]);
    // [0, 4] holds 640 bytes on stage 1, and [1, 3] holds 620 bytes on stage 0
    let error = fit(600).unwrap_err();
    assert_eq!(
        error,
        PartitionError::Memory {
            is_given: false,
            stage: 0,
            layers: 1,
            in_flight: 2,
            memory: StageMemory { parameters: 600, activations: 20, ..StageMemory::default() },
            needed_bytes: 620,
            excess_bytes: 20,
            limit_bytes: 600
        }
    );
    assert!(error.to_string().contains("stage 0 doesn't fit: with 1 layers"), "{error}");
    assert!(error.to_string().contains("620 bytes (600 bytes for parameters with their state, 20 bytes for activations), 20 more than the limit of 600"), "{error}");
    assert!(error.to_string().contains("raise the limit to 620,"), "{error}");
    assert_eq!(fit(620).unwrap().layers, [1, 3]);

    let given = |limit| explicit_partition(&model, &[3, 1], &one_f_one_b(2, 2), Some(limit));
    assert_eq!(given(860).unwrap().layers, [3, 1]);
    let error = given(859).unwrap_err().to_string();
    let expected = "stage 0 doesn't fit: with 3 layers and 2 microbatches in flight it holds 860 bytes (800 bytes for parameters \
                    with their state, 60 bytes for activations), 1 more than the limit of 859: raise the limit to 860, give \
                    the stage fewer layers, or use more stages";
    assert_eq!(error, expected);
}

/// The embedding or the head is the largest module of its rank and can't move. Layers must leave the rank instead.
#[test]
fn layers_make_room_for_what_cannot_move() {
    let (layer, free) = (module("layer", 1.0, 1, 0), module("free", 0.0, 0, 0));
    let layers = vec![layer; 8];
    let embedding = ModelCost { embedding: module("embedding", 0.0, 6, 0), layers, head: free, ..ModelCost::default() };
    let head = ModelCost { embedding: embedding.head.clone(), head: embedding.embedding.clone(), ..embedding.clone() };
    let looped = interleaved_one_f_one_b(2, 2, 1);
    for (model, schedule, limit) in [(&embedding, &looped, 7), (&head, &looped, 7), (&head, &zbv_zero_bubble(2, 1), 7)]
    {
        let partition = balanced(model, schedule, Some(limit)).unwrap();
        assert_eq!(partition.peak_bytes(model, schedule), [7, 7], "{partition:?}");
        assert!(balanced(model, schedule, Some(limit - 1)).is_err());
    }
}

/// The expected sums are computed by hand, for layers of 10 s with 8 bytes of activations, 20 bytes of W inputs and 100
/// bytes of weights.
#[test]
fn a_rank_holds_all_its_chunks_and_what_w_waits_for() {
    let layer = ModuleCost { weight_gradient_bytes: 20, ..module("layer", 10.0, 100, 8) };
    let free = module("end", 0.0, 0, 0);
    let model =
        ModelCost { embedding: free.clone(), layers: vec![layer; 4], head: free, boundary_bytes: 1, ranks: Vec::new() };
    let even = Partition { layers: vec![1; 4] };
    // interleaved 1F1B over two ranks with two chunks each holds 5 and 3 work items
    let interleaved = interleaved_one_f_one_b(2, 2, 4);
    assert_eq!(interleaved.in_flight(), [5, 3]);
    assert_eq!(even.peak_bytes(&model, &interleaved), [200 + 5 * 8, 200 + 3 * 8]);
    // With one chunk per rank, rank 0 runs each W directly after its I. The rank then holds the inputs of one W and the
    // activations of one other microbatch. Rank 1 runs each W one microbatch later, and so holds the inputs of two W.
    let two = Partition { layers: vec![2, 2] };
    assert_eq!(two.peak_bytes(&model, &interleaved_zero_bubble(2, 1, 4)), [200 + 16 + 40, 200 + 2 * 40]);
    let zbv = even.peak_bytes(&model, &zbv_zero_bubble(2, 4));
    assert!(zbv.iter().all(|&bytes| bytes > 200 + 3 * 8 && bytes <= 200 + 4 * 20), "{zbv:?}");
}
