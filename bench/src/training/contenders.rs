//! The contenders, and their comparisons.

use super::contender::{Contender, Framework, Pipeline};
use super::run::MeasuredRun;
use super::workload::{EIGHT_LAYERS, TWELVE_LAYERS, TrainingCase};

pub(super) const EAGER: Framework = Framework::Torch { compiled: false, fused: true };
const COMPILED: Framework = Framework::Torch { compiled: true, fused: true };
/// PyTorch with the recipe that an article gives for the model of twelve layers: AdamW with its default settings, which
/// do not select the fused kernel.
const RECIPE: Framework = Framework::Torch { compiled: false, fused: false };

/// A measured number of a run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Figure {
    StepSeconds,
    CpuSeconds,
    PeakBytes,
    StartSeconds,
}

impl Figure {
    pub(super) fn of(self, run: &MeasuredRun) -> f64 {
        match self {
            Figure::StepSeconds => run.step_seconds(),
            Figure::CpuSeconds => run.cpu_seconds,
            Figure::PeakBytes => run.peak_bytes(),
            Figure::StartSeconds => run.start_seconds,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Figure::StepSeconds => "stepSeconds",
            Figure::CpuSeconds => "cpuSecondsPerStep",
            Figure::PeakBytes => "peakBytes",
            Figure::StartSeconds => "startSeconds",
        }
    }
}

/// A reported ratio: a figure of the contender `ours`, divided by the same figure of the contender `theirs`. The ratio
/// should be at most `goal`.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) what: String,
    pub(super) ours: String,
    pub(super) theirs: String,
    pub(super) figure: Figure,
    pub(super) goal: f64,
}

/// Describes the comparison of `ours` with `theirs`.
pub(super) fn compare(what: &str, ours: &Contender, theirs: &Contender, figure: Figure, goal: f64) -> Comparison {
    Comparison { what: what.to_owned(), ours: ours.name.clone(), theirs: theirs.name.clone(), figure, goal }
}

/// Splits the layers into nearly equal parts. If there is a remainder, the first parts are larger.
fn equal_split(layers: usize, chunks: usize) -> Vec<usize> {
    (0..chunks).map(|chunk| layers / chunks + usize::from(chunk < layers % chunks)).collect()
}

pub(super) fn single(trainer: Framework, threads: usize, bf16: bool) -> Contender {
    let pipeline = Pipeline { schedule: "1F1B", ranks: 1, data_parallel: 1, split: vec![EIGHT_LAYERS.layers] };
    contender(&EIGHT_LAYERS, trainer, threads, bf16, pipeline)
}

/// Returns a contender that trains one replica of a pipeline in fp32, with one thread per rank.
fn pipelined(
    workload: &'static TrainingCase,
    trainer: Framework,
    schedule: &'static str,
    ranks: usize,
    chunks: usize,
) -> Contender {
    let split = equal_split(workload.layers, ranks * chunks);
    contender(workload, trainer, 1, false, Pipeline { schedule, ranks, data_parallel: 1, split })
}

fn contender(
    workload: &'static TrainingCase,
    trainer: Framework,
    threads: usize,
    bf16: bool,
    pipeline: Pipeline,
) -> Contender {
    let who = match trainer {
        Framework::Stagecoach => "stagecoach",
        Framework::Torch { compiled: false, .. } => "torch",
        Framework::Torch { compiled: true, .. } => "torch.compile",
    };
    let how = match &pipeline {
        Pipeline { data_parallel: 2.., ranks, .. } => format!("d={} p={ranks}", pipeline.data_parallel),
        Pipeline { ranks: 1, .. } => format!("{threads} thread{}", if threads == 1 { "" } else { "s" }),
        Pipeline { schedule, ranks, .. } => format!("{schedule} p={ranks}"),
    };
    let twelve = if *workload == TWELVE_LAYERS { " 12 layers" } else { "" };
    let name = format!("{who} {how}{}{twelve}", if bf16 { " bf16" } else { "" });
    Contender { name, workload, trainer, threads, bf16, pipeline, is_checked: false }
}

/// Returns a contender that trains several replicas of a pipeline in fp32, with one thread per rank.
pub(super) fn replicated(trainer: Framework, ranks: usize, data_parallel: usize) -> Contender {
    let split = equal_split(EIGHT_LAYERS.layers, ranks);
    let pipeline = Pipeline { schedule: "1F1B", ranks, data_parallel, split };
    Contender { is_checked: true, ..contender(&EIGHT_LAYERS, trainer, 1, false, pipeline) }
}

/// Returns PyTorch's recipe with Stagecoach's partition. This partition takes the cost of the head into account.
fn recipe_with_our_partition() -> Contender {
    let mut contender = pipelined(&TWELVE_LAYERS, RECIPE, "GPipe", 3, 1);
    contender.pipeline.split = OUR_PARTITION.to_vec();
    contender.name += " our partition";
    contender
}

/// The partition that `stagecoach plan` finds for [`TWELVE_LAYERS`] over three stages.
const OUR_PARTITION: [usize; 3] = [5, 6, 1];

/// The schedules with several chunks per rank or with a split backward: name, ranks, and chunks per rank.
const OTHER_SCHEDULES: [(&str, usize, usize); 4] = [
    ("Interleaved1F1B", 2, 2),
    ("InterleavedZeroBubble", 2, 1),
    ("InterleavedZeroBubble", 4, 1),
    ("ZBVZeroBubble", 2, 2),
];

/// Returns all contenders, in the order in which the first round of the benchmark runs them.
pub(super) fn contenders() -> Vec<Contender> {
    let mut all = Vec::new();
    for bf16 in [false, true] {
        for trainer in [EAGER, Framework::Stagecoach, COMPILED] {
            all.push(single(trainer, 1, bf16));
        }
    }
    for trainer in [EAGER, Framework::Stagecoach] {
        all.push(single(trainer, 2, false));
    }
    for ranks in [2, 3, 4] {
        for schedule in ["1F1B", "GPipe"] {
            for trainer in [EAGER, Framework::Stagecoach] {
                all.push(pipelined(&EIGHT_LAYERS, trainer, schedule, ranks, 1));
            }
        }
    }
    for (schedule, ranks, chunks) in OTHER_SCHEDULES {
        for trainer in [EAGER, Framework::Stagecoach] {
            all.push(pipelined(&EIGHT_LAYERS, trainer, schedule, ranks, chunks));
        }
    }
    all.extend([pipelined(&TWELVE_LAYERS, RECIPE, "GPipe", 3, 1), recipe_with_our_partition()]);
    all.push(pipelined(&TWELVE_LAYERS, Framework::Stagecoach, "GPipe", 3, 1));
    for contender in &mut all {
        let plain = contender.pipeline.ranks == 1 && contender.threads == 1 && !contender.bf16;
        contender.is_checked = plain || contender.workload == &TWELVE_LAYERS;
    }
    all
}

/// Returns the ratios that are reported, with their goals.
pub(super) fn comparisons() -> Vec<Comparison> {
    let ours = |threads, bf16| single(Framework::Stagecoach, threads, bf16);
    let (own, own_bf16, eager) = (ours(1, false), ours(1, true), single(EAGER, 1, false));
    let cpu = Figure::CpuSeconds;
    let mut all = vec![
        compare("CPU-seconds, fp32, eager", &own, &eager, cpu, 0.72),
        compare("CPU-seconds, bf16, autocast", &own_bf16, &single(EAGER, 1, true), cpu, 0.45),
        compare("CPU-seconds, fp32, torch.compile", &own, &single(COMPILED, 1, false), cpu, 0.85),
        compare("CPU-seconds, bf16, torch.compile", &own_bf16, &single(COMPILED, 1, true), cpu, 0.6),
        compare("bf16 to our own fp32", &own_bf16, &own, Figure::StepSeconds, 0.5),
        compare("two threads", &ours(2, false), &single(EAGER, 2, false), Figure::StepSeconds, 1.0),
    ];
    let two_stages = pipelined(&EIGHT_LAYERS, Framework::Stagecoach, "1F1B", 2, 1);
    all.push(compare(
        "two stages of one thread, relative to one stage of two threads",
        &two_stages,
        &ours(2, false),
        Figure::StepSeconds,
        1.0,
    ));
    for ranks in [2, 3, 4] {
        for schedule in ["1F1B", "GPipe"] {
            let pair =
                [Framework::Stagecoach, EAGER].map(|trainer| pipelined(&EIGHT_LAYERS, trainer, schedule, ranks, 1));
            let what = format!("{schedule}, p={ranks}");
            all.push(compare(&what, &pair[0], &pair[1], Figure::StepSeconds, 1.0 / 1.3));
            if schedule == "1F1B" {
                let memory = format!("peak memory, {what}");
                all.push(compare(&memory, &pair[0], &pair[1], Figure::PeakBytes, 0.7));
                all.push(compare(&format!("start, {what}"), &pair[0], &pair[1], Figure::StartSeconds, 0.5));
            }
        }
    }
    for (schedule, ranks, chunks) in OTHER_SCHEDULES {
        let [own, torch] =
            [Framework::Stagecoach, EAGER].map(|trainer| pipelined(&EIGHT_LAYERS, trainer, schedule, ranks, chunks));
        all.push(compare(&format!("{schedule}, p={ranks}"), &own, &torch, Figure::StepSeconds, 1.0 / 1.3));
    }
    let recipe = [Framework::Stagecoach, RECIPE].map(|trainer| pipelined(&TWELVE_LAYERS, trainer, "GPipe", 3, 1));
    all.push(compare("the recipe of 12 layers", &recipe[0], &recipe[1], Figure::StepSeconds, 1.0 / 1.5));
    let balanced = recipe_with_our_partition();
    all.push(compare(
        "the recipe of 12 layers, Stagecoach's partition in both",
        &recipe[0],
        &balanced,
        Figure::StepSeconds,
        1.0 / 1.3,
    ));
    all
}
