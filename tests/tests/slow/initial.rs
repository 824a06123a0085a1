//! The initial weights of a job: a Hugging Face model directory, another job's checkpoint, or an imported model. The
//! same weights in any of these formats give the same run, on any number of stages. The tests use "the tiny model",
//! whose model directory is [`hugging_face`].

use std::path::Path;

use serde_json::{Value, json};
use stagecoach_api::job::ModelType;
use stagecoach_tests::fixture::{copy, flip};
use stagecoach_tests::{Launched, Outcome, TestJob, corpus, hugging_face, saved, says, signal, text};

/// Returns a job that saves every 4 steps and has as many layers as the tiny model.
fn job(name: &str) -> TestJob {
    let extra = "  checkpoint: {everySteps: 4}\n  restart: {backoff: {initialSeconds: 0}}\n";
    TestJob { name: name.into(), stages: 2, layers: 2, extra: extra.into(), ..TestJob::default() }
}

/// Returns a workspace with the corpus, and with the tiny model's directory as `tiny`.
fn workspace() -> tempfile::TempDir {
    let workspace = corpus::workspace();
    tiny(workspace.path(), "tiny", json!({}));
    workspace
}

/// Writes the tiny model's directory as `name`, with `fields` merged into its `config.json`.
pub(crate) fn tiny(workspace: &Path, name: &str, fields: Value) {
    let to = workspace.join(name);
    copy(&hugging_face(), &to);
    let mut config = read_json(&to.join("config.json"));
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the YAML of `job` with the tiny model's tokenizer, and with `model` as its model.
pub(crate) fn yaml(job: &TestJob, model: &str) -> String {
    job.yaml_with(model, "tiny/tokenizer.json")
}

/// Adds `checkpoint.initFrom` to the YAML of [`job`].
pub(crate) fn init_from(from: &str, yaml: &str) -> String {
    yaml.replace("everySteps: 4", &format!("everySteps: 4, initFrom: {{path: {from}}}"))
}

pub(crate) fn pretrained(path: &str) -> String {
    format!("  model: {{type: Pretrained, pretrained: {{path: {path}}}}}\n")
}

/// Returns a model with the tiny model's shape and fresh weights, as YAML.
fn fresh() -> String {
    let config = read_json(&hugging_face().join("config.json"));
    let number = |field: &str| config[field].to_string();
    format!(
        "  model: {{type: Llama, llama: {{hiddenSize: {}, numHiddenLayers: {}, numAttentionHeads: {}, \
         numKeyValueHeads: {}, intermediateSize: {}, vocabSize: {}, maxPositionEmbeddings: {}, ropeTheta: {}, \
         rmsNormEps: {}}}}}\n",
        number("hidden_size"),
        number("num_hidden_layers"),
        number("num_attention_heads"),
        number("num_key_value_heads"),
        number("intermediate_size"),
        number("vocab_size"),
        number("max_position_embeddings"),
        number("rope_theta"),
        number("rms_norm_eps"),
    )
}

fn start(workspace: &Path, job: &TestJob, yaml: &str) -> Launched {
    let file = workspace.join(format!("{}.yaml", job.name));
    std::fs::write(&file, yaml).unwrap();
    Launched::start_file(workspace, &file, workspace.join(&job.name), &[])
}

fn run(workspace: &Path, job: &TestJob, yaml: &str) -> Outcome {
    start(workspace, job, yaml).finish(workspace)
}

fn checkpoint_command(arguments: &[&str]) {
    let (code, printed) = stagecoach_tests::run(&[&["checkpoint"], arguments].concat());
    assert_eq!(code, Some(0), "{printed}");
}

#[test]
fn a_model_directory_trains_alike_on_any_number_of_stages_and_over_a_kill() {
    let workspace = workspace();
    let path = workspace.path();
    // the job has no end until the test has killed a stage
    let killed = TestJob { decay_steps: Some(20), ..job("killed") };
    let mut launched = start(path, &killed, &yaml(&killed.endless(), &pretrained("tiny")));
    launched.wait_for_step(2);
    signal(launched.wait_for_stages(2)[1], libc::SIGKILL);
    launched.wait_for_restart(path);
    launched.interrupt(path);
    let rest = killed.ending_after(saved(&path.join("killed")));
    let expected = run(path, &rest, &yaml(&rest, &pretrained("tiny"))).hashes();
    for stages in [1, 2, 3] {
        let job = TestJob { name: format!("on-{stages}"), stages, ..rest.clone() };
        assert_eq!(run(path, &job, &yaml(&job, &pretrained("tiny"))).hashes(), expected, "{stages} stages");
    }
}

#[test]
fn the_same_weights_give_the_same_run_whatever_they_come_in() {
    let workspace = workspace();
    let path = workspace.path();
    let job_from = |name: &str, from: &str| {
        let job = job(name);
        TestJob { extra: init_from(from, &job.extra), ..job }
    };
    let expected = run(path, &job("one"), &yaml(&job("one"), &pretrained("tiny"))).numbers();
    let fresh_hashes = run(path, &job("fresh"), &yaml(&job("fresh"), &fresh())).numbers();
    assert_ne!(fresh_hashes, expected);

    // the import converts BF16 to F32, and the job verifies every byte that it reads
    let [tiny, imported] = ["tiny", "imported"].map(|name| path.join(name).display().to_string());
    checkpoint_command(&["import", "--from", &tiny, &imported]);
    let two = job_from("two", "imported");
    assert_eq!(run(path, &two, &yaml(&two, &fresh())).numbers(), expected, "from an imported model");

    // a job can start from another job's result in four ways: initFrom names the job's folder or one of its
    // checkpoints, or the model is `Pretrained` and its path is a checkpoint or an exported model
    let onward = job_from("onward", "one");
    let expected = run(path, &onward, &yaml(&onward, &fresh())).numbers();
    let last = "one/checkpoints/step-00000020";
    let exported = path.join("exported").display().to_string();
    checkpoint_command(&["export", "--to", "hf", "--output", &exported, &path.join("one").display().to_string()]);
    let step = job_from("step", last);
    assert_eq!(run(path, &step, &yaml(&step, &fresh())).numbers(), expected, "from a checkpoint");
    for (name, from) in [("as-pretrained", last), ("as-exported", "exported")] {
        let job = job(name);
        assert_eq!(run(path, &job, &yaml(&job, &pretrained(from))).numbers(), expected, "{name}");
    }
}

/// Each model type related to Llama trains from fresh weights and resumes from its checkpoints.
#[test]
fn relatives_of_llama_resume_from_their_own_checkpoints() {
    let workspace = workspace();
    let path = workspace.path();
    for model_type in ModelType::ALL.iter().filter(|&&model_type| model_type != ModelType::Llama) {
        let model_type = model_type.as_str();
        let fresh =
            fresh().replace("llama: {", &format!("llama: {{modelType: {model_type}, tieWordEmbeddings: true, "));
        let first = job(&format!("first-{}", model_type.to_lowercase()));
        run(path, &first, &yaml(&first, &fresh)).hashes();
        let checkpoint = format!("{}/checkpoints/step-00000020", first.name);
        let index = std::fs::read_to_string(path.join(&checkpoint).join("model.safetensors.index.json")).unwrap();
        let own = [("Qwen2", "self_attn.k_proj.bias"), ("Qwen3", "self_attn.q_norm.weight")];
        for (_, tensor) in own.iter().filter(|(of, _)| *of == model_type) {
            assert!(index.contains(tensor), "{index}");
        }
        let from = |name: &str, from: &str, stages: usize, model: &str| {
            let job = TestJob { stages, extra: init_from(from, &job("").extra), ..job(name) };
            run(path, &job, &yaml(&job, model))
        };
        let name = |name: &str| format!("{name}-{}", model_type.to_lowercase());
        let expected = from(&name("onward"), &first.name, 2, &fresh).numbers();
        let [source, imported] = [checkpoint.clone(), name("imported")].map(|at| path.join(at).display().to_string());
        checkpoint_command(&["import", "--from", &source, &imported]);
        assert_eq!(from(&name("from-imported"), &name("imported"), 3, &fresh).numbers(), expected, "{model_type}");
        let pretrained_job = job(&name("pretrained"));
        let outcome = run(path, &pretrained_job, &yaml(&pretrained_job, &pretrained(&checkpoint)));
        assert_eq!(outcome.numbers(), expected, "{model_type}");
        let refused = from(&name("other"), &first.name, 2, &fresh.replace(model_type, "Llama"));
        assert_eq!(refused.status.code(), Some(78), "{}", refused.stderr);
        says(&refused, &format!("modelType is Llama here and {model_type} there"));
    }
}

#[test]
fn a_checkpoints_config_says_what_its_source_says() {
    let workspace = workspace();
    let path = workspace.path();
    let fields = json!({
        "bos_token_id": 7, "eos_token_id": [5, 1], "pad_token_id": null, "transformers_version": "4.51.0",
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16, "rope_theta": 500.0},
    });
    tiny(path, "source", fields);
    let (stated, first) = (job("stated"), "stated/checkpoints/step-00000020/config.json");
    run(path, &stated, &yaml(&stated, &pretrained("source"))).hashes();
    let (config, source) = (read_json(&path.join(first)), read_json(&path.join("source/config.json")));
    for kept in
        ["bos_token_id", "eos_token_id", "transformers_version", "attention_dropout", "use_cache", "torch_dtype"]
    {
        assert_eq!(config[kept], source[kept], "{kept}");
    }
    // the padding token comes from the tokenizer
    assert_eq!(config["pad_token_id"], 2);
    assert_eq!(
        (&config["rope_theta"], &config["rope_scaling"]["original_max_position_embeddings"]),
        (&json!(500.0), &json!(16))
    );
    // the spec of this other job describes a model without the source's RoPE scaling
    let other = job("other");
    let from_source = init_from("source", &yaml(&other, &fresh()));
    let outcome = run(path, &other, &from_source);
    assert_eq!(outcome.status.code(), Some(78), "{}", outcome.stderr);
    says(
        &outcome,
        "set spec.model to {type: Pretrained, pretrained: {path: source}} and leave out spec.checkpoint.initFrom",
    );
}

/// The path of the last checkpoint of a job of 20 steps, in the job's folder.
const LAST: &str = "checkpoints/step-00000020";

#[test]
fn a_checkpoint_has_the_files_of_its_source() {
    let workspace = workspace();
    let path = workspace.path();
    tiny(path, "source", json!({"torch_dtype": "bfloat16", "eos_token_id": [1, 5]}));
    let files = [
        ("tokenizer_config.json", r#"{"eos_token": "[EOT]", "bos_token": "[BOT]", "theirs": 1}"#),
        ("special_tokens_map.json", r#"{"eos_token": "[EOT]"}"#),
        ("generation_config.json", r#"{"eos_token_id": [1, 5], "temperature": 0.6}"#),
        ("chat_template.jinja", "{{ messages }}"),
    ];
    files.iter().for_each(|(name, text)| std::fs::write(path.join("source").join(name), text).unwrap());
    let from_source = |job: &TestJob, tokenizer: &str| {
        yaml(job, &pretrained("source")).replace("{path: tiny/tokenizer.json}", tokenizer)
    };
    // another job with the same tokenizer.json has filled the token cache before the job under test starts
    run(path, &job("plain"), &yaml(&job("plain"), &pretrained("tiny"))).hashes();
    let kept = job("kept");
    run(path, &kept, &from_source(&kept, "{path: source/tokenizer.json}")).hashes();
    let checkpoint = path.join("kept").join(LAST);
    for (name, text) in files {
        assert_eq!(std::fs::read_to_string(checkpoint.join(name)).unwrap(), text, "{name}");
    }
    let config = read_json(&checkpoint.join("config.json"));
    assert_eq!((&config["torch_dtype"], &config["eos_token_id"]), (&json!("bfloat16"), &json!([1, 5])));

    // a job resumes even if its source no longer exists
    let trained_config = |steps: u64| {
        let extra = init_from("kept", &job("").extra);
        let job = TestJob { steps, decay_steps: Some(20), extra, ..job("onward") };
        let written = yaml(&job, &fresh()).replace("{path: tiny/tokenizer.json}", "{path: source/tokenizer.json}");
        run(path, &job, &written).hashes();
        read_json(&path.join(format!("onward/checkpoints/step-{steps:08}/generation_config.json")))
    };
    let begun = trained_config(20);
    std::fs::remove_dir_all(path.join("kept")).unwrap();
    assert_eq!(trained_config(24), begun);

    // the special tokens that the job's spec names replace those of the source in every file
    let named = job("named");
    run(path, &named, &from_source(&named, "{path: source/tokenizer.json, eos: '[PAD]', pad: '[EOT]'}")).hashes();
    let exported = |name: &str| read_json(&path.join("named").join(LAST).join(name));
    let config = exported("config.json");
    assert_eq!(
        (&config["eos_token_id"], &config["pad_token_id"], &config["bos_token_id"]),
        (&json!(2), &json!(1), &json!(0))
    );
    assert_eq!(exported("generation_config.json"), json!({"eos_token_id": 2, "pad_token_id": 1, "temperature": 0.6}));
    assert_eq!(exported("tokenizer_config.json")["eos_token"], "[PAD]");
    let other = from_source(&named, "{path: source/tokenizer.json, eos: '[EOT]', pad: '[EOT]'}");
    let refused = run(path, &named, &other.replace("steps: 20", "steps: 24"));
    assert_eq!(refused.status.code(), Some(78), "{}", refused.stderr);
    says(&refused, "spec.data.tokenizer.file.eos was \"[PAD]\", now \"[EOT]\"");
    let refused = run(path, &job("lacks"), &from_source(&job("lacks"), "{path: source/tokenizer.json, eos: <end>}"));
    assert_eq!(refused.status.code(), Some(78), "{}", refused.stderr);
    says(
        &refused,
        "data.tokenizer.file.eos is <end>, and the tokenizer has no such token: name another token; its special \
         tokens are [BOT], [EOT], [PAD]",
    );
}

#[test]
fn weights_that_their_config_does_not_describe_are_refused_everywhere() {
    let workspace = workspace();
    let path = workspace.path();
    tiny(path, "tied", json!({"tie_word_embeddings": true}));
    tiny(path, "yarn", json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}));
    tiny(path, "adapted", json!({}));
    std::fs::write(path.join("adapted/adapter_config.json"), "{}").unwrap();
    for (folder, words) in [
        ("tied", "has a lm_head.weight that differs from model.embed_tokens.weight"),
        ("yarn", "rope_scaling.rope_type is \"yarn\", and this trainer supports only \"default\" and \"llama3\""),
        ("adapted", "holds an adapter (adapter_config.json)"),
    ] {
        let job = job(folder);
        let job = TestJob { name: format!("on-{folder}"), ..job };
        let outcome = run(path, &job, &yaml(&job, &pretrained(folder)));
        assert_eq!(outcome.status.code(), Some(78), "{}", outcome.stderr);
        says(&outcome, words);
        let [folder, imported] = [folder, "imported"].map(|name| path.join(name));
        let (folder, imported) = (text(&folder), text(&imported));
        for arguments in
            [&["generate", folder, "--prompt", "a"][..], &["checkpoint", "import", "--from", folder, imported]]
        {
            let (code, printed) = stagecoach_tests::refusal(arguments);
            assert!(code != Some(0) && printed.contains(words), "no {words:?} in {printed}");
        }
    }
}

#[test]
fn what_does_not_fit_is_reported_before_anything_is_trained() {
    let workspace = workspace();
    let path = workspace.path();
    run(path, &job("one"), &yaml(&job("one"), &fresh())).hashes();
    let other = job("other");
    let file = "{type: File, file: {path: tiny/tokenizer.json}}";
    let retrained = yaml(&other, &fresh()).replace(file, "{type: Train, train: {vocabSize: 275}}");
    let narrow = fresh().replace("intermediateSize: ", "intermediateSize: 1");
    // the tensors have the same shapes, but the model computes another function
    let heads =
        fresh().replace("numAttentionHeads: 4, numKeyValueHeads: 2", "numAttentionHeads: 8, numKeyValueHeads: 4");
    let [rotation, norms] = ["ropeTheta: ", "rmsNormEps: "].map(|field| fresh().replace(field, &format!("{field}1")));
    // this field only limits the length of a sequence
    let longer = fresh().replace("maxPositionEmbeddings: ", "maxPositionEmbeddings: 1");
    run(path, &job("longer"), &init_from("one", &yaml(&job("longer"), &longer))).hashes();
    for (name, yaml, words) in [
        (
            "other heads",
            init_from("one", &yaml(&other, &heads)),
            "numAttentionHeads is 8 here and 4 there, numKeyValueHeads is 4 here and 2 there, headDim is 2 here and \
             4 there",
        ),
        (
            "another rotation",
            init_from("one/checkpoints/step-00000020", &yaml(&other, &rotation)),
            "ropeTheta is 110000 here and 10000 there",
        ),
        (
            "other norms",
            init_from("tiny", &yaml(&other, &norms)),
            " here and 0.00001 there; set spec.model.llama to the configuration of that model",
        ),
        ("another shape", init_from("one", &yaml(&other, &narrow)), "intermediateSize is 124 here and 24 there"),
        ("another tokenizer", init_from("one", &retrained), "trained with another tokenizer"),
        ("no model", init_from("corpus", &yaml(&other, &fresh())), "holds no model"),
        ("no folder", yaml(&other, &pretrained("nowhere")), "there is no such folder"),
        ("both", init_from("one", &yaml(&other, &pretrained("tiny"))), "already has weights"),
        (
            "long sequences",
            yaml(&other, &pretrained("tiny")).replace("sequenceLength: 24", "sequenceLength: 4096"),
            "at most",
        ),
    ] {
        let outcome = run(path, &other, &yaml);
        assert_eq!(outcome.status.code(), Some(78), "{name}: {}\n{}", outcome.stdout, outcome.stderr);
        says(&outcome, words);
        assert!(!path.join("other/result.json").exists(), "{name}");
    }
    refuses_weights_that_no_start_mends(path, &other);
    // the job detects a flipped bit in the checkpoint from which it starts, and leaves that checkpoint in its folder
    let shard = path.join("one/checkpoints/step-00000020/stage-1.model.safetensors");
    flip(&shard);
    let no_restart = init_from("one", &yaml(&other, &fresh())).replace("restart: {", "restart: {maxRestarts: 0, ");
    let outcome = run(path, &other, &no_restart);
    assert_eq!(outcome.status.code(), Some(74), "{}\n{}", outcome.stdout, outcome.stderr);
    says(&outcome, "stage-1.model.safetensors");
    assert!(shard.exists());
}

/// Asserts that a job reports the name of a missing shard and the name of a tensor with a NaN, and that it exits
/// without a restart.
fn refuses_weights_that_no_start_mends(path: &Path, job: &TestJob) {
    let read = |file: &Path| std::fs::read(file).unwrap();
    let index: serde_json::Value =
        serde_json::from_slice(&read(&path.join("tiny/model.safetensors.index.json"))).unwrap();
    let (name, shard) = index["weight_map"].as_object().unwrap().iter().next().unwrap();
    let shard = path.join("tiny").join(shard.as_str().unwrap());
    let (away, whole) = (path.join("tiny/away"), read(&shard));
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let fields: serde_json::Value = serde_json::from_slice(&whole[8..header]).unwrap();
    let at = header + fields[name]["data_offsets"][0].as_u64().unwrap() as usize;
    let mut broken = whole.clone();
    // this sets all bits of the tensor's first value, which makes the value a NaN in F32, BF16 and F16
    broken[at..at + 4].fill(0xff);
    std::fs::write(&shard, broken).unwrap();
    let refused = |words: &str| {
        let outcome = run(path, job, &yaml(job, &pretrained("tiny")));
        assert_eq!(outcome.status.code(), Some(78), "{}\n{}", outcome.stdout, outcome.stderr);
        says(&outcome, words);
    };
    refused(&format!("has a value in {name} that is not finite"));
    std::fs::rename(&shard, &away).unwrap();
    refused(&shard.file_name().unwrap().to_string_lossy());
    std::fs::rename(&away, &shard).unwrap();
    std::fs::write(&shard, whole).unwrap();
}

/// A job that starts from another job's folder uses the newest checkpoint in that folder. The job keeps this choice
/// even if it is killed before its first save.
#[test]
fn a_job_that_is_killed_before_its_first_checkpoint_begins_with_the_same_model() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    let base = TestJob { steps: 8, decay_steps: Some(20), ..job("base") };
    Launched::start(path, &base, &[]).finish(path).hashes();
    let from = |name: &str, from: &str| {
        let extra = init_from(from, &job(name).extra).replace("everySteps: 4", "everySteps: 1000");
        TestJob { decay_steps: Some(20), extra, ..job(name) }
    };
    let start = |job: &TestJob, arguments: &[&str]| {
        let tokenizer = "{type: File, file: {path: base/checkpoints/step-00000008/tokenizer.json}}";
        let file = path.join(format!("{}.yaml", job.name));
        std::fs::write(&file, job.yaml().replace("{type: Train, train: {vocabSize: 300}}", tokenizer)).unwrap();
        Launched::start_file(path, &file, path.join(&job.name), arguments)
    };
    let killed = from("killed", "base");
    let mut launched = start(&killed.endless(), &[]);
    launched.wait_for_step(2);
    launched.kill();
    assert_eq!(saved(&path.join("killed")), 0);
    Launched::start(path, &TestJob { steps: 12, ..base }, &[]).finish(path).hashes();

    let [eight, twelve] = ["8", "12"].map(|step| {
        let from = from(&format!("from-{step}"), &format!("base/checkpoints/step-{step:0>8}"));
        start(&from, &[]).finish(path).numbers()
    });
    assert_ne!(eight, twelve);
    assert_eq!(start(&killed, &[]).finish(path).numbers(), eight);
    // a replay starts from the same checkpoint, and a run with --fresh starts from the checkpoint that is the newest
    // now
    let (code, printed) = stagecoach_tests::run(&["replay", text(&path.join("killed")), "--step", "2"]);
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(start(&killed, &["--fresh"]).finish(path).numbers(), twelve);
}

/// A checkpoint contains copies of the files in the folder of the job's tokenizer. A chat template that is only in the
/// folder of the model's weights is therefore missing from the checkpoint, and the job reports this.
#[test]
fn a_chat_template_that_checkpoints_will_lack_is_noted() {
    let workspace = workspace();
    let path = workspace.path();
    std::fs::create_dir(path.join("bare")).unwrap();
    std::fs::copy(path.join("tiny/tokenizer.json"), path.join("bare/tokenizer.json")).unwrap();
    std::fs::copy(path.join("tiny/tokenizer_config.json"), path.join("bare/tokenizer_config.json")).unwrap();
    let noted = |name: &str, tokenizer: &str| {
        let job = TestJob { steps: 2, ..job(name) };
        let yaml = yaml(&job, &pretrained("tiny")).replace("tiny/tokenizer.json", tokenizer);
        let outcome = run(path, &job, &yaml);
        assert!(outcome.status.success(), "{}", outcome.stderr);
        outcome.stdout.contains("tiny has a chat template, and the tokenizer")
    };
    assert!(!noted("without", "bare/tokenizer.json"));
    std::fs::write(path.join("tiny/chat_template.jinja"), "{{ messages }}").unwrap();
    assert!(noted("lost", "bare/tokenizer.json"));
    assert!(!noted("own", "tiny/tokenizer.json"));
    std::fs::write(path.join("bare/chat_template.jinja"), "{{ messages }}").unwrap();
    assert!(!noted("both", "bare/tokenizer.json"));
}
