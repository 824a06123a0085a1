//! `training.kernels`: with `Portable`, the instruction set of the processor does not change a bit of the results. With
//! `Fastest`, it does. The test emulates other processors with settings that limit the instruction sets of libtorch's
//! libraries.

use std::path::Path;

use stagecoach_tests::{Launched, Outcome, TestJob, corpus, has_avx512, stagecoach};

/// The settings that emulate other processors. This machine must have the instruction sets of an emulated processor.
const PROCESSORS: [&[(&str, &str)]; 4] = [
    &[],
    &[("ATEN_CPU_CAPABILITY", "avx512"), ("MKL_CBWR", "AVX512"), ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")],
    &[("ATEN_CPU_CAPABILITY", "avx2"), ("MKL_ENABLE_INSTRUCTIONS", "AVX2"), ("DNNL_MAX_CPU_ISA", "AVX2")],
    &[("ATEN_CPU_CAPABILITY", "default"), ("MKL_ENABLE_INSTRUCTIONS", "SSE4_2"), ("DNNL_MAX_CPU_ISA", "SSE41")],
];

fn run(workspace: &Path, name: &str, training: &str, environment: &[(&str, &str)]) -> Outcome {
    let job = TestJob { name: name.into(), stages: 2, layers: 2, ..TestJob::default() };
    let file = workspace.join(format!("{name}.yaml"));
    std::fs::write(&file, job.yaml().replace("  training:\n", &format!("  training:\n    {training}\n"))).unwrap();
    Launched::start_program(&stagecoach(), workspace, &file, workspace.join(name), &[], environment).finish(workspace)
}

#[test]
fn a_portable_jobs_numbers_are_those_of_every_processor() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    let all = |kernels: &str| {
        let training = format!("kernels: {kernels}");
        let on = |(at, environment): (usize, &&[(&str, &str)])| {
            run(path, &format!("{}-{at}", kernels.to_lowercase()), &training, environment).numbers()
        };
        PROCESSORS.iter().enumerate().filter(|(at, _)| *at != 1 || has_avx512()).map(on).collect::<Vec<_>>()
    };
    let portable = all("Portable");
    assert!(portable.iter().all(|numbers| *numbers == portable[0]), "{portable:#?}");
    // the emulated processors give different bits if the kernels may depend on them
    let fastest = all("Fastest");
    assert_ne!(fastest[fastest.len() - 2], fastest[fastest.len() - 1]);
    if has_avx512() {
        assert_ne!(fastest[1], fastest[2]);
        assert_ne!(fastest[0], portable[0]);
    }
}

#[test]
fn a_change_of_kernels_is_refused_once_training_began() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    run(path, "job", "kernels: Portable", &[]).hashes();
    let refused = run(path, "job", "kernels: Fastest", &[]);
    assert_eq!(refused.status.code(), Some(78), "{}\n{}", refused.stdout, refused.stderr);
    let text = format!("{}{}", refused.stdout, refused.stderr);
    assert!(text.contains("training.kernels"), "{text}");
    let gpu = run(path, "gpu", "kernels: Portable\n    device: Cuda", &[]);
    assert_eq!(gpu.status.code(), Some(78), "{}\n{}", gpu.stdout, gpu.stderr);
}
