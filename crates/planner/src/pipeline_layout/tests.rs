//! Tests of the choices of `Auto`.

use stagecoach_pipeline::{RankSpeeds, SCHEDULES};

use super::*;
use crate::identity::tests::config;

/// Returns the plan of the sample job over three stages, with twelve layers and the changes `set`.
fn plan(set: &[(&str, &str)]) -> Result<PipelineLayout, StageError> {
    plan_at(&[1.0; 3], set)
}

/// Returns the plan of the same job over stages with the relative speeds `speeds`.
fn plan_at(speeds: &[f64], set: &[(&str, &str)]) -> Result<PipelineLayout, StageError> {
    let config = config(&[&[("model.llama.numHiddenLayers", "12")][..], set].concat());
    plan_pipeline(
        &config,
        config.architecture(4096, tch::Device::Cpu).as_ref(),
        speeds.len(),
        &RankSpeeds::new(speeds).unwrap(),
    )
}

const AUTO: (&str, &str) = ("pipeline.schedule.type", "Auto");

#[test]
fn auto_takes_the_fastest_and_says_what_the_others_would_take() {
    let auto = plan(&[AUTO]).unwrap();
    let every = SCHEDULES.iter().flat_map(|schedule| (1..=4).map(move |chunks| (schedule, chunks)));
    let every = every.filter(|(schedule, chunks)| {
        schedule.chunks.allows(*chunks) && (schedule.name, *chunks) != ("Interleaved1F1B", 1)
    });
    for (schedule, chunks) in every {
        let (schedule, chunks) = (schedule.name, &chunks.to_string());
        let named = plan(&[("pipeline.schedule.type", schedule), ("pipeline.virtualStages", chunks)]).unwrap();
        let seconds = named.timeline.makespan;
        assert!(auto.timeline.makespan <= seconds, "{schedule} with {chunks} chunks takes {seconds}");
        let is_wanted = |a: &&Alternative| a.schedule == schedule && &a.chunks_per_stage.to_string() == chunks;
        let alternative = auto.alternatives.iter().find(is_wanted).unwrap();
        assert_eq!(alternative.step.as_ref().unwrap().0, seconds);
        assert!(named.alternatives.is_empty() && named.notes.is_empty());
        assert!(auto.notes[0].contains(&format!("{schedule} ")), "{:?}", auto.notes);
    }
    assert!(auto.timeline.makespan < 0.9 * plan(&[]).unwrap().timeline.makespan, "1F1B has a bubble");
}

#[test]
fn a_stage_alone_has_several_chunks_if_replicas_exchange_them() {
    let chunks = |data_parallel| {
        let set = [AUTO, ("training.gradientBlocks", "2"), ("dataParallel", data_parallel)];
        let layout = plan_at(&[1.0], &set).unwrap();
        layout.alternatives.iter().map(|alternative| alternative.chunks_per_stage).max()
    };
    assert_eq!((chunks("1"), chunks("2")), (Some(1), Some(4)));
}

#[test]
fn replicas_divide_the_chunks_of_a_stage() {
    let set = |data_parallel| [("training.gradientBlocks", "2"), ("dataParallel", data_parallel)];
    let (one, two) = (plan(&set("1")).unwrap(), plan(&set("2")).unwrap());
    assert_eq!((one.parts, one.programs.placement.chunks()), (vec![1; 3], 3));
    // a part has at least one layer
    assert_eq!((&two.partition, &two.parts), (&one.partition, &two.partition.layers));
    assert_eq!(two.program_partition().layers, [1; 12]);
    assert_eq!(two.programs.placement.chunks(), 12);
    assert_eq!((two.costs.reduce_seconds.len(), two.costs.chunks.len()), (12, 12));
    let set = [("model.llama.numHiddenLayers", "36"), ("pipeline.schedule.type", "Interleaved1F1B")];
    let set = [("training.gradientBlocks", "2"), ("dataParallel", "2"), ("pipeline.virtualStages", "2")]
        .into_iter()
        .chain(set);
    let several = plan(&set.collect::<Vec<_>>()).unwrap();
    assert_eq!(several.parts, [4; 6], "eight a stage at most");
}

#[test]
fn auto_computes_more_again_where_only_that_fits() {
    let limit = |bytes: u64| plan(&[AUTO, ("pipeline.memoryLimit", &format!("\"{bytes}\""))]);
    let ample = limit(1 << 40).unwrap();
    assert_eq!(ample.recompute, Recompute::None);
    let error = limit(1000).unwrap_err().message;
    let (_, needed) = error.split_once("raise the limit to ").unwrap();
    let needed: u64 = needed.split(',').next().unwrap().parse().unwrap();
    let tight = limit(needed).unwrap();
    assert_eq!(tight.recompute, Recompute::Full);
    assert!(tight.memory.iter().all(|stage| stage.parts.total() <= needed));
    assert!(tight.timeline.makespan > ample.timeline.makespan);
    // the plan recomputes no less than the job specifies
    let full = plan(&[AUTO, ("pipeline.recompute", "Full"), ("pipeline.memoryLimit", "1Ti")]).unwrap();
    assert_eq!(full.recompute, Recompute::Full);
}

#[test]
fn auto_follows_a_partition_that_is_given() {
    let layers = ("pipeline.partition", "{strategy: Explicit, layers: [1, 2, 3, 3, 2, 1]}");
    let given = plan(&[AUTO, layers]).unwrap();
    assert_eq!(given.partition.layers, [1, 2, 3, 3, 2, 1]);
    assert!(given.alternatives.iter().all(|alternative| alternative.chunks_per_stage == 2));
}

#[test]
fn unequal_stages_get_unequal_layers() {
    let equal = plan(&[]).unwrap();
    let slow = plan_at(&[1.0, 1.0, 0.5], &[]).unwrap();
    assert!(slow.partition.layers[2] < equal.partition.layers[2], "{:?}", slow.partition);
    let printed = format!("the stages are 1.00/1.00/0.50 times as fast as the fastest: their layers are {}", {
        slow.partition.layers.iter().map(usize::to_string).collect::<Vec<String>>().join("/")
    });
    assert_eq!(slow.notes, [printed]);
    // an explicit partition does not change, and the simulated step gets longer
    let given = ("pipeline.partition", "{strategy: Explicit, layers: [4, 4, 4]}");
    let (even, slow_even) = (plan(&[given]).unwrap(), plan_at(&[1.0, 1.0, 0.5], &[given]).unwrap());
    assert_eq!(slow_even.partition, even.partition);
    assert!(slow_even.timeline.makespan > 1.5 * even.timeline.makespan);
    assert!(slow.timeline.makespan < 0.8 * slow_even.timeline.makespan);
    assert!(plan_at(&[1.0, 1.0, 0.5], &[AUTO]).unwrap().timeline.makespan <= slow.timeline.makespan);
}
