//! `stagecoach diff` finds the first step and the first tensor in which two runs differ. `stagecoach replay --dump`
//! writes the tensors of a step to a file, which these tests check too.

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use stagecoach_tests::fixture::{copy, records};
use stagecoach_tests::{Launched, TestJob, corpus, each, run, text};

use crate::audit::flip;
use crate::fine_tuning::file_tensors;
use crate::replay::job;

/// Trains `job` under the name `name`. Returns the job's folder.
fn train(workspace: &Path, name: &str, job: TestJob, set: &[&str]) -> PathBuf {
    let arguments: Vec<&str> = set.iter().flat_map(|set| ["--set", *set]).collect();
    Launched::start(workspace, &TestJob { name: name.into(), ..job }, &arguments).finish(workspace).hashes();
    workspace.join(name)
}

#[test]
fn the_tensors_of_a_step_are_the_same_over_any_stages() {
    let workspace = corpus::workspace();
    for (name, tied) in [("untied", false), ("tied", true)] {
        let job = TestJob { tied, ..job(20) };
        let folder = train(workspace.path(), name, job.clone(), &[]);
        let dump = |stages: &str, names: &[&str]| {
            let file = workspace.path().join(format!("{name}-{stages}.safetensors"));
            let names: Vec<&str> = names.iter().flat_map(|name| ["--dump", *name]).collect();
            let always = ["replay", text(&folder), "--step", "14", "--stages", stages, "--dump-file", text(&file)];
            let (code, printed) = run(&[&always, names.as_slice()].concat());
            assert_eq!(code, Some(0), "{printed}");
            assert!(printed.contains("tensors into") && printed.contains("equal"), "{printed}");
            file
        };
        let file = dump("1", &["*"]);
        assert!(std::fs::read(&file).unwrap() == std::fs::read(dump("3", &["*"])).unwrap(), "{name}");
        let bytes = std::fs::read(&file).unwrap();
        let dumped = SafeTensors::deserialize(&bytes).unwrap();
        assert!(dumped.iter().all(|(_, view)| view.dtype() == Dtype::F32), "{name}");
        let all = file_tensors(&file);
        // two tensors for each of the four layers and the norm, and two for each weight of the checkpoint
        let weights = all.keys().filter(|name| name.ends_with("weight.value")).count();
        assert_eq!(all.len(), 2 * (job.layers + 1) + 2 * weights);
        let outputs = all.iter().filter(|(name, ..)| name.starts_with("layer.") && name.ends_with("output"));
        for (name, (shape, _)) in outputs {
            assert_eq!(shape, &[12 * 24, 32], "{name}");
        }
        // the norm of the gradients of all weights is the gradient norm of the step
        let gradients = all.iter().filter(|(name, ..)| name.ends_with("weight.gradient"));
        let squares: f64 = gradients.flat_map(|(_, (_, values))| values).map(|value| f64::from(*value).powi(2)).sum();
        let norm = records(&folder)[13]["gradientNorm"].as_f64().unwrap();
        assert!((squares.sqrt() / norm - 1.0).abs() < 1e-6, "{} {norm}", squares.sqrt());
        let some: Vec<String> = file_tensors(&dump("2", &["layer.*.output"])).into_keys().collect();
        assert_eq!(some, ["layer.0.output", "layer.1.output", "layer.2.output", "layer.3.output"]);
    }
    let (code, printed) =
        run(&["replay", text(&workspace.path().join("tied")), "--step", "1", "--dump", "layer.9.output"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("no tensor of the step matches --dump: available are layer.N.output"), "{printed}");
}

/// Trains another run beside `one` in a new workspace, and compares both. Returns the exit code and the output.
fn diff_with(one: &Path, train_other: impl FnOnce(&Path) -> PathBuf) -> (Option<i32>, String) {
    let workspace = tempfile::tempdir().unwrap();
    copy(one.parent().unwrap(), workspace.path());
    let other = train_other(workspace.path());
    run(&["diff", text(&workspace.path().join("one")), text(&other), "--stages", "1"])
}

#[test]
fn runs_that_part_are_distinguished_by_step_and_tensor() {
    let workspace = corpus::workspace();
    let one = train(workspace.path(), "one", job(30), &[]);
    let same = TestJob { stages: 2, schedule: "ZBVZeroBubble", virtual_stages: 2, ..job(30) };
    // a row has a job, its `--set` arguments, the exit code of `stagecoach diff`, and parts of its output
    let runs: [(TestJob, &[&str], i32, &[&str]); 5] = [
        (same, &[], 0, &["equal: 30 steps and 3 checkpoints of both runs"]),
        (
            job(30),
            &["training.seed=7"],
            74,
            &["training.seed is 42 and 7", "diverge at step 1: loss", "weight.value, ", "bits apart"],
        ),
        (
            job(30),
            &["training.precision=BFloat16"],
            74,
            &["diverge at step 1", "layer.0.output, Float[288, 32] and BFloat16[288, 32]"],
        ),
        (
            job(30),
            &["training.learningRate.warmupSteps=4"],
            74,
            &["diverge at step 2", "the update of step 2 is the first that differs"],
        ),
        (job(30), &["training.gradientClipNorm=0.2"], 74, &["training.gradientClipNorm is 0.7 and 0.2", "step"]),
    ];
    each("runs", &runs, |_, (job, set, expected, words)| {
        let (code, printed) = diff_with(&one, |workspace| train(workspace, "other", job.clone(), set));
        assert_eq!(code, Some(*expected), "{set:?}\n{printed}");
        let missing = words.iter().find(|words| !printed.contains(**words));
        assert_eq!(missing, None, "{set:?}\n{printed}");
    });
}

/// One run resumes from a checkpoint in which a bit was flipped. The command reports that the runs differ at this
/// checkpoint, although step 20 gives equal results for both runs when the command trains it.
#[test]
fn a_bit_that_flipped_in_a_checkpoint_is_distinguished_from_a_step() {
    let workspace = corpus::workspace();
    let one = train(workspace.path(), "one", job(30), &[]);
    let (code, printed) = diff_with(&one, |workspace| {
        let flipped = train(workspace, "flipped", job(20), &[]);
        flip(&flipped, 20, "", &mut corpus::Draws(3));
        train(workspace, "flipped", job(30), &[])
    });
    assert_eq!(code, Some(74), "{printed}");
    assert!(
        printed.contains("the runs differ at the checkpoint of step 20, although their records are equal"),
        "{printed}"
    );
    assert!(printed.contains("on this machine, step 20 of both runs gives equal results"), "{printed}");
}
