//! Tests that valid job files are read, and that invalid job files are refused with the expected messages.

use proptest::prelude::*;
use stagecoach_api::job::*;
use stagecoach_api::{PipelineJob, parse, parse_with};

use stagecoach_pipeline::SCHEDULES;

use crate::jobs::{CUSTOM, FULL, MINIMAL, MIXTURE, with};

#[test]
fn the_examples_parse_and_validate() {
    for (name, text) in [("minimal", MINIMAL), ("full", FULL), ("mixture", MIXTURE), ("custom", CUSTOM)] {
        let job = parse(text, name).unwrap();
        assert_eq!(job.validate(), [], "{name}");
    }
}

#[test]
fn defaults_are_as_documented() {
    let job = parse(MINIMAL, "minimal.yaml").unwrap();
    let built_in = job.spec.built_in().unwrap();
    let ModelSpec::Llama(llama) = built_in.model else { panic!("{:?}", built_in.model) };
    assert_eq!((llama.key_value_heads(), llama.head_dim(), llama.vocab_size), (4, 16, None));
    assert_eq!((llama.rope_theta, llama.rms_norm_eps, llama.initializer_range), (10_000.0, 1e-5, 0.02));
    assert_eq!(built_in.training.optimizer, OptimizerSpec::AdamW(AdamWSpec::default()));
    assert_eq!(built_in.training.length(), Some(TrainingLength::Steps(20)));
    assert_eq!(built_in.training.microbatch_size(), 2);
    assert_eq!(built_in.training.learning_rate.schedule, LearningRateSchedule::Cosine);
    assert_eq!(job.spec.pipeline, PipelineSpec::default());
    assert_eq!(job.spec.pipeline.schedule.name(), "1F1B");
    assert_eq!(job.spec.restart.max_restarts, 10);
    assert_eq!(job.folder(), "tiny");
    assert!(built_in.data.packing && !job.spec.suspend);
}

#[test]
fn yaml_and_json_bring_the_same_job_back() {
    for text in [MINIMAL, FULL, MIXTURE, CUSTOM] {
        let job = parse(text, "x").unwrap();
        assert_eq!(parse(&job.to_yaml().unwrap(), "yaml").unwrap(), job);
        assert_eq!(parse(&job.to_json().unwrap(), "json").unwrap(), job);
        assert_eq!(serde_json::from_str::<PipelineJob>(&job.to_json().unwrap()).unwrap(), job);
    }
}

#[test]
fn a_bad_file_is_refused_with_place_field_and_remedy() {
    // a row: a text of the minimal job, its replacement, and the expected message after the file's name
    let rows = [
        ("peak: 1e-3", "peek: 1e-3", "25:20: spec.training.learningRate.peek: unknown field; did you mean `peak`?"),
        (
            "peak: 1e-3",
            "peak: high",
            "25:26: spec.training.learningRate.peak: found the text \"high\", expected a number",
        ),
        ("peak: 1e-3", "", "25:5: spec.training.learningRate.peak: is missing and has no default: add it"),
        (
            "type: Llama",
            "type: Lama",
            "8:11: spec.model.type: found `Lama`; did you mean `Llama`? Allowed: `Llama` or `Pretrained`",
        ),
        ("type: Llama", "type: GPT", "8:11: spec.model.type: found `GPT`; expected `Llama` or `Pretrained`"),
        (
            "type: Llama",
            "type: Pretrained",
            "7:3: spec.model: `type` is Pretrained, but `pretrained` is missing: add `pretrained: {...}`",
        ),
        (
            "type: Llama",
            "pretrained: {path: a}\n    type: Llama",
            "7:3: spec.model: `type` is Llama, but `pretrained` is given too: remove `pretrained` or write `type: \
             Pretrained`",
        ),
        ("llama:", "pretrained:", "10:7: spec.model.pretrained.hiddenSize: unknown field; expected `path`"),
        ("paths: [a.txt]", "paths: [a.txt", "16:19: this is not YAML: illegal placement of ':' indicator"),
        (
            "hiddenSize: 64",
            "hidden_size: 64",
            "10:7: spec.model.llama.hidden_size: unknown field; did you mean `hiddenSize`?",
        ),
        (
            "paths: [a.txt]",
            "paths: [a.txt, 7]",
            "15:20: spec.data.paths[1]: found `7`, expected text (in quotes if it looks like something else)",
        ),
        ("paths: [a.txt]", "paths: a.txt", "15:12: spec.data.paths: found the text \"a.txt\", expected a list"),
        ("packing: true", "packing: yes", "17:14: spec.data.packing: found the text \"yes\", expected true or false"),
        ("steps: 20", "steps: 20\n    steps: 21", "23:5: `steps` is given twice: remove one of them"),
        ("steps: 20", "steps: -20", "22:12: spec.training.steps: found `-20`, expected a whole number, not negative"),
        ("steps: 20", "steps: 1.5", "22:12: spec.training.steps: found `1.5`, expected a whole number, not negative"),
        (
            "steps: 20",
            "precision: bfloat16",
            "22:16: spec.training.precision: found `bfloat16`; did you mean `BFloat16`? Allowed: `Float32` or \
             `BFloat16`",
        ),
        (
            "steps: 20",
            "optimizer: {type: AdamW, adamW: {beta3: 1}}",
            "22:38: spec.training.optimizer.adamW.beta3: unknown field; did you mean `beta1`?",
        ),
        (
            "stages: 2",
            "stages: two",
            "6:11: spec.stages: found the text \"two\", expected a whole number, not negative",
        ),
        (
            "stages: 2",
            "stages: 4294967296",
            "6:11: spec.stages: found `4294967296`, expected a whole number, not negative",
        ),
        (
            "stages: 2",
            "pipeline: {recompute: Fall}",
            "6:25: spec.pipeline.recompute: found `Fall`; did you mean `Full`? Allowed: `None`, `Selective` or `Full`",
        ),
        (
            "stages: 2",
            "pipeline: {schedule: {type: Csv}}",
            "6:14: spec.pipeline.schedule: `type` is Csv, but `csv` is missing: add `csv: {...}`",
        ),
        (
            "stages: 2",
            "pipeline: {schedule: 1F1B}",
            "6:24: spec.pipeline.schedule: found the text \"1F1B\", expected a map of fields",
        ),
        ("spec:", "specs:", "5:1: specs: unknown field; did you mean `spec`?"),
        ("name: tiny", "namespace: a", "3:1: metadata.name: is missing and has no default: add it"),
        ("kind: PipelineJob", "kind: Pod", "2:7: kind: found the text \"Pod\"; expected `PipelineJob`"),
        (
            "v1alpha1",
            "v2",
            "1:13: apiVersion: found the text \"stagecoach.dev/v2\"; expected `stagecoach.dev/v1alpha1`",
        ),
        ("kind: PipelineJob", "", "1:1: kind: is missing: add `kind: PipelineJob`"),
    ];
    for (from, to, expected) in rows {
        assert!(MINIMAL.contains(from), "the minimal job has no `{from}`");
        let refused = parse(&MINIMAL.replacen(from, to, 1), "job.yaml").unwrap_err();
        assert_eq!(refused.to_string(), format!("job.yaml:{expected}"), "{from} -> {to}");
    }
}

#[test]
fn what_is_no_job_at_all_is_refused() {
    let rows = [
        ("", "no-job.yaml:1:1: found nothing, expected a PipelineJob (apiVersion, kind, metadata, spec)"),
        ("# only words", "no-job.yaml:1:13: found nothing, expected a PipelineJob (apiVersion, kind, metadata, spec)"),
        ("[1]", "no-job.yaml:1:1: found a list, expected a PipelineJob (apiVersion, kind, metadata, spec)"),
        (
            "hello",
            "no-job.yaml:1:1: found the text \"hello\", expected a PipelineJob (apiVersion, kind, metadata, spec)",
        ),
        ("a: 1\n---\nb: 2", "no-job.yaml:3:1: a second document begins here: a job file holds one PipelineJob"),
    ];
    for (text, expected) in rows {
        assert_eq!(parse(text, "no-job.yaml").unwrap_err().to_string(), expected, "{text:?}");
    }
}

fn set(path: &str, value: &str) -> Result<PipelineJob, String> {
    with(MINIMAL, &[(path, value)]).map_err(|error| error.to_string())
}

#[test]
fn overrides_change_the_job() {
    let training = |job: PipelineJob| job.spec.training.unwrap();
    assert_eq!(training(set("training.steps", "5").unwrap()).steps, Some(5));
    assert_eq!(training(set("spec.training.learningRate.floor", "1e-5").unwrap()).learning_rate.floor, 1e-5);
    assert_eq!(set("metadata.name", "other").unwrap().metadata.name, "other");
    assert_eq!(set("pipeline.schedule", "{type: GPipe}").unwrap().spec.pipeline.schedule.name(), "GPipe");
    assert_eq!(set("pipeline.schedule.type", "GPipe").unwrap().spec.pipeline.schedule.name(), "GPipe");
    for path in ["data.paths[1]", "data.paths.1"] {
        assert_eq!(set(path, "b.txt").unwrap().spec.data.unwrap().paths.unwrap(), ["a.txt", "b.txt"]);
    }
    assert_eq!(with(MINIMAL, &[("stages", "3"), ("stages", "4")]).unwrap().spec.stages, 4);
}

/// The names of the schedules come from a table and not from an enum, so serde does not derive the refusals.
#[test]
fn a_schedule_that_does_not_exist_is_refused_as_any_other_word() {
    let refused =
        |value| set("pipeline.schedule.type", value).unwrap_err().split_once(": found ").unwrap().1.to_owned();
    let names: Vec<String> = SCHEDULES.iter().map(|schedule| format!("`{}`", schedule.name)).collect();
    let all = format!("{}, `Csv` or `Auto`", names.join(", "));
    assert_eq!(refused("1F1C"), format!("`1F1C`; did you mean `1F1B`? Allowed: {all}"));
    assert_eq!(refused("nothing-near-it"), format!("`nothing-near-it`; expected {all}"));
    assert_eq!(refused("3"), format!("`3`; expected {all}"));
}

#[test]
fn a_bad_override_names_itself() {
    let rows = [
        ("training.step", "5", "spec.training.step: unknown field; did you mean `steps`?"),
        ("training.steps", "x", "spec.training.steps: found the text \"x\", expected a whole number, not negative"),
        (
            "pipeline.recompute",
            "Fall",
            "spec.pipeline.recompute: found `Fall`; did you mean `Full`? Allowed: `None`, `Selective` or `Full`",
        ),
        ("trainig.steps", "5", "spec.trainig: unknown field; did you mean `training`?"),
        ("stages.x", "5", "spec.stages: found `2`, which has no field `x`"),
        (
            "data.paths[3]",
            "x",
            "spec.data.paths: there is no item `3`: the list has 1 item, and an index from 0 to 1 can be set (1 \
             appends an item)",
        ),
        ("", "5", "a path is made of names and list positions: `training.steps` or `data.paths[0]`"),
        ("a..b", "5", "a path is made of names and list positions: `training.steps` or `data.paths[0]`"),
        ("training", "{steps: 1}", "spec.training.globalBatchSize: is missing and has no default: add it"),
        (
            "training.learningRate",
            "{peak: 1, flor: 0}",
            "spec.training.learningRate.flor: unknown field; did you mean `floor`?",
        ),
        ("stages", "[", "this is not YAML: unclosed bracket '['"),
    ];
    for (path, value, expected) in rows {
        assert_eq!(set(path, value).unwrap_err(), format!("--set {path}={value}: {expected}"));
    }
}

#[test]
fn numbers_and_nulls_are_read_as_kubectl_reads_them() {
    assert_eq!(set("training.steps", "010").unwrap().spec.training.unwrap().steps, Some(8));
    assert_eq!(set("training.steps", "1e3").unwrap().spec.training.unwrap().steps, Some(1000));
    assert_eq!(set("checkpoint", "{initFrom: null}").unwrap().spec.checkpoint, CheckpointSpec::default());
}

#[test]
fn yaml_beyond_any_job_is_refused_in_a_sentence() {
    let wide = format!("spec: [{}]", "1,".repeat(300_000));
    let error = parse(&wide, "job.yaml").unwrap_err().to_string();
    assert!(error.contains("the file has more values, aliases or nesting than any job has"), "{error}");
    let deep = format!("spec: {}{}", "[".repeat(5_000), "]".repeat(5_000));
    let error = parse(&deep, "job.yaml").unwrap_err().to_string();
    assert!(error.contains("this is not YAML: recursion limit exceeded"), "{error}");
}

proptest! {
    #[test]
    fn parsing_never_panics(text in any::<String>(), path in any::<String>(), value in any::<String>()) {
        let _ = parse(&text, "x");
        let _ = parse_with(MINIMAL, "x", &[(path, value)]).map(|job| job.validate());
    }

    /// A damaged job resembles a job more than random text does.
    #[test]
    fn parsing_a_damaged_job_never_panics(at in 0..FULL.len(), length in 0..20_usize, text in "[-a-z0-9:{}\\[\\]#&*!|>'\"%@,.? \n\t]{0,12}") {
        let mut damaged = FULL.to_owned();
        damaged.replace_range(at..(at + length).min(FULL.len()), &text);
        if let Ok(job) = parse(&damaged, "x") {
            let _ = job.validate();
        }
    }
}
