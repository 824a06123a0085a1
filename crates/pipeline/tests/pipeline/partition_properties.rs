//! Compares each result of `balanced_partition` for one chunk per rank with all other partitions. For several chunks
//! per rank, checks that the result fits into the memory of the ranks. The models, schedules and speeds are generated.

use proptest::prelude::*;
use stagecoach_pipeline::{
    Action, ModelCost, ModuleCost, Partition, PartitionError, Placement, RankMemory, RankSpeeds, Schedule, WorkItem,
    balanced_partition,
};

use crate::partition::balanced;

fn compositions(stages: usize, layers: usize) -> Vec<Vec<usize>> {
    if stages == 1 {
        return vec![vec![layers]];
    }
    let rest =
        |first| compositions(stages - 1, layers - first).into_iter().map(move |rest| [vec![first], rest].concat());
    (0..=layers).flat_map(rest).collect()
}

/// Generates models whose costs are small whole numbers, so that floating-point sums are exact and ties are frequent.
fn models() -> impl Strategy<Value = ModelCost> {
    let module = |name: &'static str| {
        let bytes = (0..20u64, 0..5u64, 0..5u64);
        (0..6u32, 0..6u32, 0..6u32, bytes).prop_map(move |(f, i, w, (parameters, activations, inputs))| ModuleCost {
            name: name.to_owned(),
            forward: f64::from(f),
            backward_input: f64::from(i),
            backward_weight: f64::from(w),
            parameter_bytes: parameters,
            activation_bytes: activations,
            weight_gradient_bytes: inputs,
            ..ModuleCost::default()
        })
    };
    let rank = (0..9u64, 0..9u64, 0..9u64, 0..40u64).prop_map(
        |(parameter_bytes, link_bytes, process_bytes, step_end_bytes)| RankMemory {
            parameter_bytes,
            copied_bytes: 0,
            link_bytes,
            process_bytes,
            step_end_bytes,
        },
    );
    let modules = (module("embedding"), prop::collection::vec(module("layer"), 0..8), module("head"));
    // the temporary bytes of an action are the same for all layers
    (modules, [0..9u64, 0..9, 0..9], prop::collection::vec(rank, 0..6)).prop_map(|(modules, temporaries, ranks)| {
        let [embedding, layer, head] = temporaries;
        let with = |module, temporary_bytes| ModuleCost { temporary_bytes, ..module };
        ModelCost {
            embedding: with(modules.0, embedding),
            layers: modules.1.into_iter().map(|module| with(module, layer)).collect(),
            head: with(modules.2, head),
            boundary_bytes: 0,
            ranks,
        }
    })
}

/// Returns a schedule in which every rank first holds the activations of `held[rank].0` microbatches at once, and then
/// the W inputs of `held[rank].1` microbatches.
fn holding(placement: Placement, held: &[(usize, usize)]) -> Schedule {
    let rank = |rank| {
        let items = |microbatches: usize| {
            let items = move |chunk| (0..microbatches).map(move |microbatch| WorkItem { chunk, microbatch });
            placement.chunks_of(rank).flat_map(items)
        };
        let (whole, split): (usize, usize) = held[rank];
        let first = items(whole).map(Action::Forward).chain(items(whole).map(Action::FullBackward));
        let later = |item: WorkItem| WorkItem { microbatch: item.microbatch + whole, ..item };
        let second = items(split).map(later).flat_map(|item| [Action::Forward(item), Action::BackwardInput(item)]);
        let last = items(split).map(later).map(Action::BackwardWeight);
        first.chain(second).chain(last).collect()
    };
    let ranks = (0..placement.ranks()).map(rank).collect();
    Schedule { name: "test".to_owned(), placement: placement.clone(), microbatches: 1, ranks }
}

/// Returns the sort key of a partition with one chunk per rank: slowest chunk, sum of squares, layers. A smaller key is
/// better.
fn rank(model: &ModelCost, partition: &Partition, speeds: &RankSpeeds) -> (u64, u64, Vec<usize>) {
    let time = |chunk| partition.work(model, chunk) / speeds.of(chunk);
    let times: Vec<f64> = (0..partition.layers.len()).map(time).collect();
    let slowest = times.iter().copied().fold(0.0, f64::max) as u64;
    (slowest, times.iter().map(|time| time * time).sum::<f64>() as u64, partition.layers.clone())
}

/// Generates speeds that are powers of two, so that times are exact.
fn speeds(ranks: usize) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(prop::sample::select(vec![0.5, 1.0, 2.0, 4.0]), ranks)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn only_the_ratios_of_speeds_matter(
        model in models(),
        stages in 1..6usize,
        held in prop::collection::vec((0..6usize, 0..4usize), 5),
        given in speeds(5),
        unit in 1e-3..1e3f64,
    ) {
        let schedule = holding(Placement::linear(stages), &held);
        let partition = |speeds: Vec<f64>| balanced_partition(&model, &schedule, None, &RankSpeeds::new(&speeds).unwrap());
        prop_assert_eq!(partition(given.clone()), partition(given.iter().map(|speed| speed * unit).collect()));
        prop_assert_eq!(partition(vec![unit; stages]), balanced(&model, &schedule, None));
    }

    #[test]
    fn exhaustive_search_finds_nothing_better(
        model in models(),
        stages in 1..6usize,
        limit in prop::option::of(0..160u64),
        held in prop::collection::vec((0..6usize, 0..4usize), 5),
        speeds in speeds(5),
    ) {
        let schedule = holding(Placement::linear(stages), &held);
        let speeds = RankSpeeds::new(&speeds[..stages]).unwrap();
        let all = compositions(stages, model.layers.len()).into_iter().map(|layers| Partition { layers });
        let fullest = |p: &Partition| p.peak_bytes(&model, &schedule).into_iter().max().unwrap();
        let (fitting, over): (Vec<_>, Vec<_>) = all.partition(|p| limit.is_none_or(|limit| fullest(p) <= limit));
        match balanced_partition(&model, &schedule, limit, &speeds) {
            Ok(found) => prop_assert_eq!(Some(rank(&model, &found, &speeds)), fitting.iter().map(|p| rank(&model, p, &speeds)).min()),
            Err(PartitionError::Memory { stage, layers, needed_bytes, excess_bytes, .. }) => {
                prop_assert!(fitting.is_empty());
                let least = over.iter().map(fullest).min().unwrap();
                prop_assert_eq!((needed_bytes, excess_bytes), (least, least - limit.unwrap()));
                let is_found = |p: &Partition| p.peak_bytes(&model, &schedule)[stage] == least && p.layers[stage] == layers;
                prop_assert!(over.iter().any(|p| fullest(p) == least && is_found(p)));
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn several_chunks_are_within_the_memory_of_their_rank(
        model in models(),
        ranks in 1..4usize,
        v_shaped in any::<bool>(),
        limit in 0..300u64,
        held in prop::collection::vec((0..6usize, 0..4usize), 3),
    ) {
        let placement = if v_shaped { Placement::v_shaped(ranks) } else { Placement::looped(ranks, 2) };
        let schedule = holding(placement, &held);
        let fastest = balanced(&model, &schedule, None).unwrap();
        let fullest = |p: &Partition| p.peak_bytes(&model, &schedule).into_iter().max().unwrap();
        match balanced(&model, &schedule, Some(limit)) {
            Ok(found) => {
                prop_assert!(fullest(&found) <= limit);
                prop_assert!(fullest(&fastest) > limit || found == fastest);
            }
            Err(PartitionError::Memory { needed_bytes, excess_bytes, .. }) => {
                prop_assert!(fullest(&fastest) > limit);
                prop_assert_eq!(needed_bytes - excess_bytes, limit);
                // the remedy in the error message works
                let raised = balanced(&model, &schedule, Some(needed_bytes)).unwrap();
                prop_assert!(fullest(&raised) <= needed_bytes);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}
