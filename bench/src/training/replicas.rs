//! Compares training with several replicas of the pipeline with training in one process and with PyTorch's
//! DistributedDataParallel over gloo.

use super::contender::{Contender, Framework};
use super::contenders::{Comparison, EAGER, Figure, compare, replicated, single};

/// Returns all contenders, in the order in which the first round of the benchmark runs them.
pub(super) fn contenders() -> Vec<Contender> {
    let by_trainer = |trainer| {
        let alone = Contender { is_checked: true, ..single(trainer, 1, false) };
        [alone, replicated(trainer, 1, 2), replicated(trainer, 2, 2)]
    };
    let pairs = by_trainer(EAGER).into_iter().zip(by_trainer(Framework::Stagecoach));
    pairs.flat_map(|(torch, own)| [torch, own]).collect()
}

/// Returns the ratios that are reported, with their goals.
pub(super) fn comparisons() -> Vec<Comparison> {
    let [alone, two, two_by_two] = [
        single(Framework::Stagecoach, 1, false),
        replicated(Framework::Stagecoach, 1, 2),
        replicated(Framework::Stagecoach, 2, 2),
    ];
    let [ddp, ddp_by_two] = [1, 2].map(|ranks| replicated(EAGER, ranks, 2));
    let step = Figure::StepSeconds;
    vec![
        compare("two replicas to one process", &two, &alone, step, 1.0 / 1.9),
        compare("torch: two replicas to one process", &ddp, &single(EAGER, 1, false), step, 1.0 / 1.9),
        compare("two replicas to DDP", &two, &ddp, step, 1.0 / 1.2),
        compare("peak memory, two replicas to DDP", &two, &ddp, Figure::PeakBytes, 0.7),
        compare("peak memory, two replicas to one process", &two, &alone, Figure::PeakBytes, 1.0),
        compare("two replicas of two stages to DDP", &two_by_two, &ddp_by_two, step, 1.0 / 1.2),
    ]
}
