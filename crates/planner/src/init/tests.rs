use std::path::Path;

use proptest::prelude::*;
use stagecoach_api::PipelineJob;

use super::*;
use crate::{JobConfig, plan_pipeline};

/// A workspace without measurements.
const NOWHERE: &str = "/nowhere";

fn facts(bytes: u64, memory_gib: u64, processors: usize, gpus: usize) -> Facts {
    let texts = Texts { patterns: vec!["corpus/*.txt".into()], files: 1, bytes, ..Texts::default() };
    Facts { name: "first".into(), stages: None, gpus, processors, memory_bytes: memory_gib << 30, texts }
}

/// Parses and validates the job.
fn read(text: &str) -> PipelineJob {
    let job = stagecoach_api::parse(text, "job.yaml").unwrap_or_else(|error| panic!("{error}\n{text}"));
    let problems = job.validate();
    assert!(problems.is_empty(), "{problems:?}\n{text}");
    job
}

/// Returns the sum of the stages' peak bytes in `workspace`, and the job. Panics if the job is invalid.
pub(super) fn planned(text: &str, workspace: &Path) -> (u64, JobConfig) {
    let job = read(text);
    let stages = job.spec.stages as usize;
    let config = JobConfig::new(job, workspace).unwrap();
    let architecture = config.architecture(config.planned_vocab_size().unwrap(), tch::Device::Cpu);
    let layout = plan_pipeline(&config, architecture.as_ref(), stages, &Default::default()).unwrap();
    (layout.memory.iter().map(|stage| stage.parts.total()).sum(), config)
}

/// Returns the lines with a number and without a comment that explains it.
pub(super) fn without_comment(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.starts_with('#') && line.contains(|c: char| c.is_ascii_digit()) && !line.contains("  # "))
        .collect()
}

fn proposed(facts: &Facts) -> String {
    propose(facts, &|text| Ok(planned(text, NOWHERE.as_ref()).0)).unwrap_or_else(|error| panic!("{facts:?}: {error}"))
}

#[test]
fn the_plays_of_shakespeare_get_a_job_for_a_machine_of_two_processors() {
    let text = proposed(&facts(5_000_000, 8, 2, 0));
    let job = read(&text);
    let spec = serde_json::to_value(&job.spec).unwrap();
    let number = |path: &str| spec.pointer(path).unwrap().as_f64().unwrap();
    assert_eq!(
        (number("/stages"), number("/model/llama/hiddenSize"), number("/data/tokenizer/train/vocabSize")),
        (2.0, 192.0, 4096.0)
    );
    let steps = number("/training/steps");
    assert!((200.0..=400.0).contains(&steps), "{steps}");
    assert!(
        text.contains("# Written by `stagecoach init` for 5.00 MB of text in 1 file, about 1.5 million tokens,"),
        "{text}"
    );
    // a comment explains every number
    assert_eq!(without_comment(&text), ["apiVersion: stagecoach.dev/v1alpha1"]);
}

#[test]
fn what_was_asked_for_is_kept_and_strings_are_quoted() {
    let mut facts = facts(200_000, 4, 8, 0);
    facts.stages = Some(5);
    facts.texts.patterns = vec!["a \"b\": # c/*.txt".into(), "*.jsonl".into()];
    facts.texts.field = Some("true".into());
    let job = read(&proposed(&facts));
    let data = job.spec.data.unwrap();
    assert_eq!((job.spec.stages, data.paths.unwrap(), data.text_field), (5, facts.texts.patterns, "true".to_owned()));
}

#[test]
fn a_name_that_is_none_and_memory_that_is_too_small_are_refused() {
    let refused = |facts: &Facts| {
        let planned = |text: &str| {
            let job =
                stagecoach_api::parse(text, "job.yaml").map_err(|error| StageError::invalid(error.to_string()))?;
            JobConfig::new(job, NOWHERE.as_ref())?;
            Ok(u64::MAX)
        };
        propose(facts, &planned).unwrap_err().to_string()
    };
    let named = |name: &str| Facts { name: name.into(), ..facts(200_000, 4, 2, 0) };
    for name in ["", "My Job", "true: x", "a\nb", "7"] {
        let error = refused(&named(name));
        assert!(error.contains("metadata.name"), "{name:?}: {error}");
    }
    let error = refused(&named("true"));
    assert!(error.contains("the smallest model over 1 stage needs") && !error.contains("--stages"), "{error}");
    let error = refused(&Facts { stages: Some(2), ..named("true") });
    assert!(error.contains("the smallest model over 2 stages needs") && error.contains("--stages"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_file_validates_and_fits_into_the_memory(
        // the corpus has from 1 kB to 1 TB
        magnitude in 3.0f64..12.0,
        memory in 0.0f64..11.0,
        processors in 1usize..=256,
        gpus in 0usize..=16,
    ) {
        let facts = facts(10f64.powf(magnitude) as u64, memory.exp2() as u64, processors, gpus);
        let text = proposed(&facts);
        let (needed, config) = planned(&text, NOWHERE.as_ref());
        prop_assert!(needed <= facts.memory_bytes, "{needed} bytes\n{text}");
        let stages = config.job.spec.stages as usize;
        let expected = if gpus >= 2 { gpus } else { processors.clamp(2, 3) };
        prop_assert!(stages == expected || facts.memory_bytes < 8 << 30 && stages < expected, "{stages} stages");
    }
}
