//! The commands other than `run` and `checkpoint`, and the sample jobs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use stagecoach_test_hub::{File, Hub};
use stagecoach_tests::fixture::{copy, records};
use stagecoach_tests::{Launched, TestJob, corpus, hugging_face, refusal, run, run_command, spawn, stagecoach, text};

fn succeeds(arguments: &[&str]) -> String {
    // with one thread for each core, the threads of `generate` would spin at every barrier while other tests compute
    let output = Command::new(stagecoach()).args(arguments).env("OMP_NUM_THREADS", "1").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}\n{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    printed
}

/// Returns the lines of JSON that a command prints.
fn json_lines(arguments: &[&str]) -> Vec<Value> {
    succeeds(arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/samples")
}

#[test]
fn every_sample_can_be_planned() {
    let mut seen = 0;
    for sample in std::fs::read_dir(samples()).unwrap() {
        let printed = succeeds(&["plan", text(&sample.unwrap().path())]);
        assert!(printed.contains("balance") && printed.contains("stage 0 |"), "{printed}");
        seen += 1;
    }
    assert_eq!(seen, 6);
}

/// Trains samples with another corpus, fewer steps and more frequent evaluations, but without other changes.
#[test]
fn samples_that_a_small_machine_can_train_are_trained() {
    for (sample, steps) in [("two-stage-gpipe", 4), ("llama-12-layers-small", 3)] {
        let workspace = corpus::workspace();
        let file = samples().join(format!("{sample}.yaml"));
        let steps_field = format!("training.steps={steps}");
        let set = ["data.paths=[corpus/small.jsonl]", &steps_field, "data.evaluation.everySteps=2"];
        let arguments: Vec<&str> = set.into_iter().flat_map(|field| ["--set", field]).collect();
        let folder = workspace.path().join(sample);
        let outcome =
            Launched::start_file(workspace.path(), &file, folder.clone(), &arguments).finish(workspace.path());
        outcome.hashes();
        let result = outcome.result.unwrap();
        assert_eq!(result["steps"], steps, "{sample}");
        assert!(result["evaluationLoss"].as_f64().is_some_and(f64::is_finite), "{sample}: {result}");
        assert!(folder.join("checkpoints").join(format!("step-{steps:08}")).join("config.json").exists(), "{sample}");
    }
}

/// Trains a shrunk version of the sample on FineWeb. A hub on this machine has files in FineWeb's format.
#[test]
fn the_sample_on_the_hub_is_trained() {
    let hub = Hub::start();
    let files = ["sample/10BT/000_00000.parquet", "sample/10BT/001_00000.parquet"];
    hub.put(
        "datasets/HuggingFaceFW/fineweb",
        "main",
        files.into_iter().zip([1, 2].map(|seed| File::large(corpus::parquet(600, 40, seed)))),
    );
    let workspace = tempfile::tempdir().unwrap();
    let shrunk = [
        "model.llama.hiddenSize=48",
        "model.llama.intermediateSize=96",
        "data.sequenceLength=32",
        "data.evaluation.everySteps=2",
        "data.tokenizer.train.vocabSize=400",
        "data.streaming.windowSequences=16",
        "training.steps=4",
        "training.globalBatchSize=8",
        "training.learningRate.warmupSteps=1",
    ];
    let arguments: Vec<&str> = shrunk.into_iter().flat_map(|field| ["--set", field]).collect();
    let (file, folder) = (samples().join("fineweb-12-layer.yaml"), workspace.path().join("fineweb-12-layer"));
    let endpoint = hub.endpoint();
    let variables = [("HF_ENDPOINT", endpoint.as_str()), ("HF_HUB_CACHE", "/nowhere"), ("HF_TOKEN", "")];
    let launched =
        Launched::start_program(&stagecoach(), workspace.path(), &file, folder.clone(), &arguments, &variables);
    let outcome = launched.finish(workspace.path());
    assert_eq!(outcome.result.as_ref().unwrap_or_else(|| panic!("{outcome:?}"))["steps"], 4);
    assert!(folder.join("remote-files.json").exists());
}

#[test]
fn a_plan_of_a_corpus_on_the_hub_needs_no_network() {
    let nobody = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let endpoint = format!("http://{}", nobody.local_addr().unwrap());
    let sample = samples().join("fineweb-12-layer.yaml");
    let mut plan = Command::new(stagecoach());
    plan.arg("plan").arg(&sample).env("HF_ENDPOINT", endpoint).env("HF_HUB_CACHE", "/nowhere");
    let (code, printed) = run_command(&mut plan);
    assert_eq!(code, Some(0), "{printed}");
    nobody.set_nonblocking(true).unwrap();
    assert_eq!(nobody.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "no request");
}

#[test]
fn a_field_is_explained() {
    let printed = succeeds(&["explain", "pipelinejob.spec.data.sources.weight"]);
    assert!(printed.contains("FIELD: weight <integer>") && printed.contains("DEFAULT"), "{printed}");
}

#[test]
fn a_plan_gives_the_head_its_weight_and_can_be_taken_along() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let sample = samples().join("llama-12-layers.yaml");
    let (svg, csv, trace) = (file("p.svg"), file("p.csv"), file("p.json"));
    let printed = succeeds(&["plan", text(&sample), "--svg", text(&svg), "--csv", text(&csv), "--trace", text(&trace)]);
    // the first columns of the table are stage, layers and work
    let rows = printed.lines().filter_map(|l| l.trim_start().strip_suffix('%'));
    let rows = rows.map(|l| l.split_whitespace().collect::<Vec<_>>()).filter(|row| row[0].parse::<usize>().is_ok());
    let layers: Vec<&str> = rows.map(|row| row[1]).collect();
    assert_eq!(layers, ["5", "6", "1"], "{printed}");
    assert!(printed.contains("balance 0.905"));
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg"));
    assert!(serde_json::from_str::<serde_json::Value>(&std::fs::read_to_string(trace).unwrap()).is_ok());
    // a job can use the CSV as its schedule
    let csv = std::fs::read_to_string(csv).unwrap();
    assert!(csv.starts_with("0F0,0F1,0F2,0F3"), "{csv}");
    std::fs::write(folder.path().join("own.csv"), csv.replace("0F0,0F1", "0F1,0F0")).unwrap();
    let own = ["--set", "pipeline.schedule={type: Csv, csv: {path: own.csv}}", "--workspace", text(folder.path())];
    succeeds(&[&["plan", text(&sample)], own.as_slice()].concat());
}

#[test]
fn a_corpus_is_tokenised_ahead_and_a_model_writes() {
    let workspace = tempfile::tempdir().unwrap();
    let workspace = workspace.path();
    corpus::write(workspace);
    let job = TestJob { steps: 3, ..TestJob::default() };
    let file = workspace.join("job.yaml");
    std::fs::write(&file, job.yaml()).unwrap();
    let printed = succeeds(&["tokenize", text(&file), "--workspace", text(workspace)]);
    assert!(printed.contains("400 documents"), "{printed}");
    Launched::start(workspace, &job, &[]).finish(workspace).hashes();
    let model = workspace.join("small/checkpoints/step-00000003");
    let generate = |seed| succeeds(&["generate", text(&model), "--prompt", "ka", "--max-tokens", "20", "--seed", seed]);
    assert!(generate("1").starts_with("ka"));
    assert_eq!(generate("1"), generate("1"));
    assert_ne!(generate("1"), generate("2"));
    // with a very small top-p, only the most likely token can be chosen; the text ends before a stop string
    let from = |options: &[&str]| {
        succeeds(&[&["generate", text(&model), "--prompt", "ka", "--max-tokens", "20"], options].concat())
    };
    let likeliest = from(&["--temperature", "0"]);
    assert_eq!(from(&["--top-p", "0.000001"]), likeliest);
    let stop = &likeliest.trim_end()[6..9];
    let (before, _) = likeliest["ka".len()..].split_once(stop).unwrap();
    assert_eq!(from(&["--temperature", "0", "--stop", "nowhere", "--stop", stop]), format!("ka{before}\n"));

    let prompts = workspace.join("prompts.jsonl");
    std::fs::write(&prompts, "{\"prompt\": \"lo\"}\n\n{\"prompt\": \"ka\"}\n").unwrap();
    let lines =
        json_lines(&["generate", text(&model), "--prompts", text(&prompts), "--max-tokens", "20", "--seed", "1"]);
    assert_eq!(lines.iter().map(|line| &line["prompt"]).collect::<Vec<_>>(), ["lo", "ka"]);
    assert_eq!(format!("ka{}\n", lines[1]["completion"].as_str().unwrap()), generate("1"));
    assert_eq!(lines[1]["finishReason"], "length");
    std::fs::write(&prompts, "{\"prompt\": \"lo\"}\n{\"text\": \"ka\"}\n").unwrap();
    let (_, printed) = refusal(&["generate", text(&model), "--prompts", text(&prompts)]);
    let expected =
        "prompts.jsonl, line 2 is no prompt: it has neither prompt nor messages: expected {\"prompt\": \"...\"}";
    assert!(printed.contains(expected), "{printed}");
    for (option, value) in [
        ("--temperature", "NaN"),
        ("--temperature", "-1"),
        ("--top-k", "0"),
        ("--top-p", "0"),
        ("--top-p", "1.1"),
        ("--stop", ""),
    ] {
        let option = format!("{option}={value}");
        assert_eq!(run(&["generate", text(&model), &option]).0, Some(2), "{option}");
    }
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"] {
        assert!(model.join(name).exists(), "{name}");
    }
}

#[test]
fn a_model_with_a_chat_template_answers() {
    let workspace = tempfile::tempdir().unwrap();
    let model = workspace.path().join("model");
    copy(&hugging_face(), &model);
    let run = |options: &[&str], input: &str| {
        let common = ["generate", text(&model), "--max-tokens", "6", "--temperature", "0"];
        let mut command = Command::new(stagecoach());
        let command = command.args(common).args(options).stdin(Stdio::piped());
        let mut child = spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped())).unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
    };
    let [_, refused] = run(&["--chat", "--prompt", "ka lo"], "");
    assert!(refused.contains("has no chat template: expected chat_template.jinja"), "{refused}");

    let template = "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                    {% if add_generation_prompt %}assistant:{% endif %}";
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    let written = |prompt: &str| {
        let [printed, _] = run(&["--prompt", prompt], "");
        printed
            .strip_prefix(prompt)
            .unwrap_or_else(|| panic!("{prompt:?} begins {printed:?}"))
            .trim_end_matches('\n')
            .to_owned()
    };
    let first = written("system: mi\nuser: ka lo\nassistant:");
    assert_eq!(run(&["--chat", "--system", "mi", "--prompt", "ka lo"], "")[0], format!("{first}\n"));
    let history = format!("user: ka lo\nassistant: {}\nuser: su\nassistant:", written("user: ka lo\nassistant:"));
    let second = written(&history);
    let [talk, _] = run(&["--chat"], "ka lo\nsu\n");
    assert_eq!(talk, format!("{}\n{second}\n", written("user: ka lo\nassistant:")));

    // a template that asks for the date gets the date of `--date`
    let dated = template.replace("{{ bos_token }}", "{{ bos_token }}{{ strftime_now('%d') }} ");
    std::fs::write(model.join("chat_template.jinja"), dated).unwrap();
    let on_a_day = written("31 user: ka lo\nassistant:");
    assert_eq!(run(&["--chat", "--date", "2026-01-31", "--prompt", "ka lo"], "")[0], format!("{on_a_day}\n"));
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();

    let messages = json!({"messages": [{"role": "user", "content": "ka lo"}]}).to_string();
    let [line, _] = run(&["--chat", "--prompts", "-"], &messages);
    let record: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(record["completion"], written("user: ka lo\nassistant:"));
    let [_, refused] = run(&["--prompts", "-"], &messages);
    assert!(refused.contains("-, line 1 is no prompt: messages need --chat: expected {\"prompt\""), "{refused}");
    for (line, problem) in [
        ("{", "this is not JSON (EOF while parsing an object at line 1 column 1)"),
        ("[]", "this is not an object"),
        (r#"{"promt": "a"}"#, "it has neither prompt nor messages"),
        (r#"{"prompt": "a", "id": 1}"#, "it has the unexpected field id: remove it"),
    ] {
        let [_, refused] = run(&["--prompts", "-"], line);
        assert!(refused.contains(&format!("-, line 1 is no prompt: {problem}: expected")), "{refused}");
    }
    let [_, refused] = run(&["--chat", "--prompts", "-"], r#"{"messages": [{"content": "ka"}]}"#);
    assert!(refused.contains("message 1"), "{refused}");
}

#[test]
fn what_every_stage_did_is_recorded_and_drawn() {
    let workspace = tempfile::tempdir().unwrap();
    let workspace = workspace.path();
    corpus::write(workspace);
    let job = TestJob { steps: 11, stages: 2, schedule: "Interleaved1F1B", virtual_stages: 2, ..TestJob::default() };
    Launched::start(workspace, &job, &[]).finish(workspace).hashes();
    let folder = workspace.join("small");
    let records = records(&folder);
    let recorded: Vec<_> = records.iter().filter(|record| record.get("timeline").is_some()).collect();
    assert_eq!(recorded.iter().map(|record| &record["step"]).collect::<Vec<_>>(), [10, 11]);
    for record in &records {
        for stages in ["bubble", "exposedCommunication", "imbalance"] {
            assert_eq!(record[stages].as_array().map(Vec::len), Some(2), "{stages} of {record}");
        }
    }
    for stage in recorded[0]["timeline"]["stages"].as_array().unwrap() {
        let times: Vec<(f64, f64)> = serde_json::from_value(stage["seconds"].clone()).unwrap();
        assert!(times.iter().all(|(begin, end)| begin <= end), "{times:?}");
        assert!(
            times.windows(2).all(|pair| pair[0].1 <= pair[1].0),
            "an action begins before the last has ended: {times:?}"
        );
        assert_eq!(stage["actions"].as_array().map(Vec::len), Some(times.len()));
    }
    let (svg, trace) = (workspace.join("t.svg"), workspace.join("t.json"));
    let printed = succeeds(&["timeline", text(&folder), "--step", "10", "--svg", text(&svg), "--trace", text(&trace)]);
    for part in ["small, step 10", "measured, ", "simulated with the measured costs, ", "the mean stage"] {
        assert!(printed.contains(part), "{part} in {printed}");
    }
    let svg = std::fs::read_to_string(svg).unwrap();
    let (heads, last) = (svg.matches(">stage 1</text>").count(), svg.matches("<title>3B").count());
    assert_eq!((heads, last), (2, 2 * 4), "a lane and four backwards of the last chunk, measured and simulated");
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let named = |name: &str| trace["traceEvents"].as_array().unwrap().iter().any(|event| event["args"]["name"] == name);
    assert!(named("measured stage 1") && named("simulated with the measured costs stage 0"));
}

#[test]
fn a_plan_uses_what_was_measured_on_this_machine() {
    let workspace = tempfile::tempdir().unwrap();
    let workspace = workspace.path();
    let file = workspace.join("job.yaml");
    std::fs::write(&file, TestJob::default().yaml()).unwrap();
    let plan = |more: &[&str]| succeeds(&[&["plan", text(&file), "--workspace", text(workspace)], more].concat());
    const NOTE: &str = "note: the plan uses the times that";
    assert!(!plan(&[]).contains(NOTE));
    let printed = plan(&["--profile"]);
    for row in ["embedding", "layer, recompute None", "layer, recompute Full", "head and loss", "message", NOTE] {
        assert!(printed.contains(row), "{row} in {printed}");
    }
    assert!(plan(&[]).contains(NOTE), "kept for later plans");
    assert!(!plan(&["--set", "training.threads=2"]).contains(NOTE), "expected no measured times for two threads");
    let profiles: Vec<_> = std::fs::read_dir(workspace.join("cache/profiles")).unwrap().flatten().collect();
    std::fs::write(profiles[0].path(), "{").unwrap();
    assert!(!plan(&[]).contains(NOTE), "expected the plan to ignore a damaged profile");
}

#[test]
fn a_plan_shows_every_way_to_share_some_gpus() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.yaml");
    std::fs::write(&file, TestJob { microbatches: 2, global_batch_size: 4, ..TestJob::default() }.yaml()).unwrap();
    let printed = succeeds(&["plan", text(&file), "--gpus", "4"]);
    let rows: Vec<Vec<&str>> = printed.lines().map(|line| line.split_whitespace().take(2).collect()).collect();
    for mesh in [["1", "4"], ["2", "2"], ["4", "1"]] {
        assert!(rows.iter().any(|row| *row == mesh), "{mesh:?} in {printed}");
    }
    assert!(
        printed.contains("impossible: spec.training.microbatches 2 can't be divided into 4 gradient blocks"),
        "{printed}"
    );
    assert!(printed.contains("the shortest step of 4 GPUs, by simulation: --set stages="), "{printed}");
}

#[test]
fn a_plan_knows_the_vocabulary_of_the_tokenizers_file() {
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let (trained, file) = (workspace.join("trained.yaml"), workspace.join("file.yaml"));
    std::fs::write(&trained, TestJob::default().yaml()).unwrap();
    succeeds(&["tokenize", text(&trained), "--workspace", text(workspace)]);
    let cache =
        std::fs::read_dir(workspace.join("cache")).unwrap().map(|entry| entry.unwrap().path().join("tokenizer.json"));
    let tokenizer = cache.into_iter().find(|path| path.exists()).unwrap();
    std::fs::copy(tokenizer, workspace.join("tokenizer.json")).unwrap();
    let other = "tokenizer: {type: File, file: {path: tokenizer.json}}";
    let yaml = TestJob::default().yaml().replace("tokenizer: {type: Train, train: {vocabSize: 300}}", other);
    std::fs::write(&file, yaml).unwrap();
    let plan =
        |file: &Path, more: &[&str]| succeeds(&[&["plan", text(file), "--workspace", text(workspace)], more].concat());
    assert_eq!(plan(&file, &[]), plan(&trained, &[]));
    assert_ne!(plan(&file, &[]), plan(&file, &["--set", "model.llama.vocabSize=40000"]));
    std::fs::remove_file(workspace.join("tokenizer.json")).unwrap();
    let (code, printed) = refusal(&["plan", text(&file), "--workspace", text(workspace)]);
    assert!(code == Some(78) && printed.contains("there is no such file"), "{printed}");
}

#[test]
fn a_plan_over_unequal_stages_gives_the_slow_one_less() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.yaml");
    std::fs::write(&file, TestJob { layers: 12, ..TestJob::default() }.yaml()).unwrap();
    let printed = succeeds(&["plan", text(&file), "--speeds", "2,2,0.5"]);
    assert!(
        printed.contains("note: the stages are 1.00/1.00/0.25 times as fast as the fastest: their layers are"),
        "{printed}"
    );
    assert!(!succeeds(&["plan", text(&file), "--speeds", "3,3,3"]).contains("note"));
    for (speeds, expected) in [
        ("1,1", "--speeds has 2 numbers and the job 3 stages: give one number a stage, as in 1,1,1"),
        ("1,0,1", "--speeds: the speed of stage 1 is 0: it has to be a finite number above zero"),
    ] {
        let (code, printed) = refusal(&["plan", text(&file), "--speeds", speeds]);
        assert!(code == Some(78) && printed.contains(expected), "{printed}");
    }
}

#[test]
fn the_best_schedule_of_a_job_is_found_and_can_be_taken_along() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.yaml");
    std::fs::write(&file, TestJob::default().yaml()).unwrap();
    let csv = folder.path().join("optimal.csv");
    let printed = succeeds(&["plan", text(&file), "--optimal", "--csv", text(&csv)]);
    assert!(printed.contains("longer than the schedule below; no schedule of this partition is shorter"), "{printed}");
    let own = ["--set", "pipeline.schedule={type: Csv, csv: {path: optimal.csv}}", "--workspace", text(folder.path())];
    let again = succeeds(&[&["plan", text(&file)], own.as_slice()].concat());
    let stages = |printed: &str| {
        printed.lines().filter(|line| line.starts_with("stage ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(stages(&printed), stages(&again));
    let set = ["pipeline.schedule={type: ZBVZeroBubble}", "pipeline.virtualStages=2", "model.llama.numHiddenLayers=6"];
    let set: Vec<&str> = set.into_iter().flat_map(|field| ["--set", field]).collect();
    let (_, printed) = refusal(&[&["plan", text(&file), "--optimal"], set.as_slice()].concat());
    assert!(printed.contains("--optimal searches among schedules with one chunk a stage"), "{printed}");
}
