//! Tests that each rule of `validate` refuses a job that breaks it, with the expected message.

use stagecoach_api::Problem;

use crate::jobs::{CUSTOM, MINIMAL, with};

fn problems(job: &str, overrides: &[(&str, &str)]) -> Vec<String> {
    with(job, overrides).unwrap().validate().iter().map(Problem::to_string).collect()
}

#[test]
fn each_rule_has_its_sentence() {
    let rows = [
        ("stages", "0", "spec.stages: is 0; a job has 1 to 256 stages"),
        (
            "pipeline",
            "{transport: Nccl, encryption: Required}",
            "spec.pipeline.transport: is Nccl, which does not encrypt, and spec.pipeline.encryption is Required: set \
             the transport to Tcp, or encryption to None",
        ),
        (
            "training",
            "{steps: 4, globalBatchSize: 8, microbatches: 4, learningRate: {peak: 1e-3}, kernels: Portable, device: \
             Cuda}",
            "spec.training.kernels: is Portable, but spec.training.device is Cuda: Portable gives the same bits on \
             the CPUs of all makers, and there are no such kernels for GPUs; set kernels to Fastest, or device to Cpu",
        ),
        ("training.microbatches", "0", "spec.training.microbatches: is 0; it must be at least 1"),
        (
            "training.gradientClipNorm",
            "0",
            "spec.training.gradientClipNorm: is 0; give a norm above 0, or remove it to clip nothing",
        ),
        (
            "training.gradientClipNorm",
            ".inf",
            "spec.training.gradientClipNorm: is infinite or not a number; give a norm above 0, or remove it to clip \
             nothing",
        ),
        (
            "training.optimizer",
            "{type: AdamW, adamW: {beta2: 1}}",
            "spec.training.optimizer.adamW.beta2: is 1; it must be from 0 to below 1",
        ),
        (
            "training.optimizer",
            "{type: AdamW, adamW: {epsilon: 0}}",
            "spec.training.optimizer.adamW.epsilon: is 0; it must be a number above 0",
        ),
        (
            "training.optimizer",
            "{type: AdamW, adamW: {weightDecay: -1}}",
            "spec.training.optimizer.adamW.weightDecay: is -1; it must be 0 or more",
        ),
        (
            "training.learningRate.peak",
            ".nan",
            "spec.training.learningRate.peak: is infinite or not a number; it must be a number above 0",
        ),
        (
            "training.learningRate.warmupStart",
            "1.5",
            "spec.training.learningRate.warmupStart: is 1.5; it is a fraction of the peak, 0 to 1",
        ),
        (
            "training.learningRate",
            "{peak: 1, schedule: WSD, decayFraction: 0}",
            "spec.training.learningRate.decayFraction: is 0; the decay's share of decaySteps lies above 0 and is at \
             most 1",
        ),
        ("data.paths", "[]", "spec.data.paths: is empty: name at least one file or glob"),
        (
            "data.sequenceLength",
            "1",
            "spec.data.sequenceLength: is 1; a sequence needs at least 2 tokens, one to read and one to predict",
        ),
        (
            "data.streaming",
            "{windowSequences: 16777217}",
            "spec.data.streaming.windowSequences: is 16777217; it must be from 1 to 16777216",
        ),
        (
            "data.evaluation",
            "{fraction: 1}",
            "spec.data.evaluation.fraction: is 1; the held-out share lies above 0 and below 1 (remove `evaluation` \
             to hold nothing out)",
        ),
        (
            "data.evaluation",
            "{sets: [{name: a, paths: [a.txt, tiny/*.txt]}]}",
            "metadata.name: \"tiny\" is where spec.data.evaluation.sets[0].paths[1], \"tiny/*.txt\", looks for text: \
             give the job another folder by spec.storage.path",
        ),
        (
            "data.tokenizer.train.vocabSize",
            "258",
            "spec.data.tokenizer.train.vocabSize: is 258; a vocabulary has at least 259 tokens: 256 bytes and 3 \
             special tokens",
        ),
        ("data.textField", "\"\"", "spec.data.textField: is empty: name the field or column that holds the text"),
        (
            "data.tokenizer",
            "{type: File, file: {path: \"\"}}",
            "spec.data.tokenizer.file.path: is empty: give a path relative to the volume's root",
        ),
        (
            "storage.path",
            "./",
            "spec.storage.path: \"./\" is the volume's root: give the job a folder of its own, such as \"tiny\"",
        ),
        (
            "storage.path",
            "./cache/mine",
            "spec.storage.path: \"./cache/mine\" is the token cache's, which all jobs share: give the job another \
             folder by spec.storage.path",
        ),
        (
            "data.paths",
            "[a.txt, tiny/texts/*.txt]",
            "metadata.name: \"tiny\" is where spec.data.paths[1], \"tiny/texts/*.txt\", looks for text: give the job \
             another folder by spec.storage.path",
        ),
        (
            "checkpoint.keepLast",
            "0",
            "spec.checkpoint.keepLast: is 0; keep at least 1 checkpoint: without one, a restart begins at step 0",
        ),
        (
            "restart.exitCodes",
            "[{codes: [], action: Fail}]",
            "spec.restart.exitCodes[0].codes: is empty: list at least one exit code",
        ),
        (
            "restart.exitCodes",
            "[{codes: [0], action: Fail}]",
            "spec.restart.exitCodes[0].codes[0]: is 0; exit codes of a failure are 1 to 255",
        ),
        (
            "template",
            "{stages: [{stage: 0, spec: {containers: [{name: trainer, env: [{name: A}, {name: RANK}]}]}}]}",
            "spec.template.stages[0].spec.containers[0].env[1].name: RANK is set by Stagecoach for every stage: \
             remove it, or use another name",
        ),
        ("template", "{stages: {stage: 0}}", "spec.template.stages: is no list: write `- {stage: 0, spec: {...}}`"),
        (
            "template",
            "{stages: [{spec: {}}]}",
            "spec.template.stages[0].stage: is missing, or is not a whole number: give the number of the stage to \
             which the override applies, counted from 0",
        ),
        (
            "template",
            "{stages: [{stage: 1}, {stage: 1}]}",
            "spec.template.stages[1].stage: is also the stage of an earlier override: merge the two overrides",
        ),
        (
            "template",
            "{stages: [{stage: 1, specs: {}}]}",
            "spec.template.stages[0].specs: is not known: an override has the fields stage, metadata and spec",
        ),
    ];
    for (path, value, expected) in rows {
        let found = problems(MINIMAL, &[(path, value)]);
        assert!(found.iter().any(|problem| problem == expected), "{path}={value}: {found:#?}");
    }
}

#[test]
fn what_is_too_long_says_how_long_it_may_be() {
    let list = format!("[{}]", vec!["a"; 1001].join(", "));
    let text = format!("\"{}\"", "1".repeat(65));
    assert_eq!(
        problems(MINIMAL, &[("data.paths", &list), ("pipeline.memoryLimit", &text)]),
        [
            "spec.data.paths: has 1001 items; at most 1000 are possible",
            "spec.pipeline.memoryLimit: has 65 characters; at most 64 are possible",
        ]
    );
}

#[test]
fn a_job_does_not_live_where_its_corpus_is_searched_to_any_depth() {
    let found = problems(MINIMAL, &[("data.paths", "[\"books/**/*.txt\"]"), ("storage.path", "books/./run-1")]);
    let expected = "spec.storage.path: \"books/./run-1\" is where spec.data.paths[0], \"books/**/*.txt\", looks for \
                    text: give the job another folder by spec.storage.path";
    assert_eq!(found, [expected]);
}

#[test]
fn a_custom_trainer_needs_its_container() {
    assert_eq!(
        problems(CUSTOM, &[("template.spec.containers[0].name", "main")]),
        ["spec.template.spec.containers: has no container called `trainer`: with spec.trainer.type Custom, its \
          command is the trainer"]
    );
}

#[test]
fn a_pretrained_model_brings_its_weights_along() {
    let pretrained = ("model", "{type: Pretrained, pretrained: {path: models/a}}");
    let from = ("checkpoint", "{initFrom: {path: models/b}}");
    assert_eq!(problems(MINIMAL, &[pretrained]), [""; 0]);
    assert_eq!(problems(MINIMAL, &[from]), [""; 0]);
    let refused = "spec.checkpoint.initFrom: is given, but a model of type Pretrained already has weights: remove \
                   initFrom, or set another type of model";
    assert_eq!(problems(MINIMAL, &[pretrained, from]), [refused]);
}

#[test]
fn what_fits_is_not_refused() {
    let rows: [&[(&str, &str)]; 10] = [
        &[("data.paths", "[tiny.txt, books/tiny/a.txt]")],
        &[("data.paths", "[\"**/*.txt\"]")],
        &[("data.paths", "[books/a.txt, \"books/*.txt\"]"), ("storage.path", "books/run-1")],
        &[("stages", "256")],
        // A job keeps its list of layers when it is scaled. The planner then falls back to Auto.
        &[("stages", "3"), ("pipeline.partition", "{strategy: Explicit, layers: [1, 3]}")],
        &[("pipeline.partition", "{strategy: Explicit, layers: [0, 4]}")],
        &[("pipeline", "{schedule: {type: Interleaved1F1B}, virtualStages: 2}")],
        &[("model.llama.hiddenSize", "66"), ("model.llama.headDim", "16")],
        &[("training.learningRate", "{peak: 1e-3, schedule: Constant, warmupSteps: 1000}")],
        &[("metadata.name", "a12345678901234567890123456789012345678901234567890123")],
    ];
    for overrides in rows {
        assert_eq!(problems(MINIMAL, overrides), Vec::<String>::new(), "{overrides:?}");
    }
}

#[test]
fn an_explicit_partition_counts_only_for_its_number_of_chunks() {
    let explicit = [("pipeline.partition", "{strategy: Explicit, layers: [1, 3]}")];
    let pipeline = with(MINIMAL, &explicit).unwrap().spec.pipeline;
    assert_eq!(pipeline.explicit_layers(2), Some([1, 3].as_slice()));
    assert_eq!(pipeline.explicit_layers(3), None);
    assert_eq!(pipeline.partition_mismatch(2), None);
    let unfitting = pipeline.partition_mismatch(3).unwrap();
    assert!(unfitting.contains("has 2 entries, but the pipeline has 3 chunks"), "{unfitting}");
    assert_eq!(with(MINIMAL, &[]).unwrap().spec.pipeline.partition_mismatch(3), None);
}

#[test]
fn quantities_are_bytes() {
    let bytes = |text: &str| stagecoach_api::job::Quantity(text.into()).bytes();
    assert_eq!(bytes("40Gi"), Some(40 << 30));
    assert_eq!(bytes("1.5Ki"), Some(1536));
    assert_eq!(bytes("500M"), Some(500_000_000));
    assert_eq!(bytes("12"), Some(12));
    for wrong in ["", "Gi", "-1", "1e3", "1 Gi", "nan", "1.2.3"] {
        assert_eq!(bytes(wrong), None, "{wrong}");
    }
}

#[test]
fn a_memory_limit_may_be_a_number_of_bytes() {
    for bytes in [1, 1 << 30] {
        let limit = |written: String| {
            let job = with(MINIMAL, &[("pipeline.memoryLimit", &written)]).unwrap();
            assert!(job.validate().is_empty(), "{written}");
            job.spec.pipeline.memory_limit.unwrap()
        };
        let (number, text) = (limit(bytes.to_string()), limit(format!("\"{bytes}\"")));
        assert_eq!((&number, number.bytes()), (&text, Some(bytes)));
    }
    assert_eq!(
        problems(MINIMAL, &[("pipeline.memoryLimit", "-1")]),
        ["spec.pipeline.memoryLimit: \"-1\" is not an amount of memory: write it as 40Gi, 500Mi or plain bytes"]
    );
}
