//! Jobs that train a part of a model: adapters beside frozen weights (`training.lora`), or the weights that are not
//! frozen (`training.freeze`). Lost stages and resumes do not change a bit, and a merged model has exactly the
//! documented weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use stagecoach_tests::fixture::flip;
use stagecoach_tests::{
    Launched, Outcome, TestJob, corpus, run as command, run_command, saved, says, signal, stagecoach,
};

use crate::initial::{init_from, pretrained, tiny, yaml};
use crate::silent_corruption::audits;

const LORA: &str = "training.lora={rank: 4, alpha: 6}";
const FREEZE: &str = "training.freeze=[model.embed_tokens.*, '*.layers.0.*', '*.up_proj.*']";

fn job(name: &str) -> TestJob {
    let extra = "  checkpoint: {everySteps: 4}\n  restart: {backoff: {initialSeconds: 0}}\n";
    TestJob {
        name: name.into(),
        stages: 2,
        layers: 2,
        decay_steps: Some(20),
        gradient_blocks: 2,
        extra: extra.into(),
        ..TestJob::default()
    }
}

fn start(workspace: &Path, job: &TestJob, part: &str) -> Launched {
    let file = workspace.join(format!("{}.yaml", job.name));
    std::fs::write(&file, yaml(job, &pretrained("tiny"))).unwrap();
    Launched::start_file(workspace, &file, workspace.join(&job.name), &["--set", part])
}

fn run(workspace: &Path, job: &TestJob, part: &str) -> Outcome {
    start(workspace, job, part).finish(workspace)
}

fn workspace() -> tempfile::TempDir {
    let workspace = corpus::workspace();
    tiny(workspace.path(), "tiny", serde_json::json!({}));
    workspace
}

fn succeeds(arguments: &[&str]) -> String {
    let (code, text) = command(arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {text}");
    text
}

/// Tensors by name, with their shapes and their values in fp32.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Returns the tensors of the safetensors files in `folder` whose file names match.
fn tensors(folder: &Path, is_of: fn(&str) -> bool) -> Tensors {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_wanted = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.ends_with(".safetensors") && is_of(name)
    };
    paths.filter(is_wanted).flat_map(|path| file_tensors(&path)).collect()
}

/// Returns the tensors of a safetensors file.
pub(crate) fn file_tensors(file: &Path) -> Tensors {
    let bytes = std::fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = tensors.iter().map(|(name, view)| {
        let values: Vec<f32> = match view.dtype() {
            Dtype::F32 => view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            Dtype::BF16 => view
                .data()
                .chunks_exact(2)
                .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(b.try_into().unwrap())) << 16))
                .collect(),
            other => panic!("{other:?}"),
        };
        (name.to_owned(), (view.shape().to_vec(), values))
    });
    tensors.collect()
}

#[test]
fn a_part_of_a_model_trains_alike_whatever_happens() {
    for (part, precision) in [(LORA, "Float32"), (LORA, "BFloat16"), (FREEZE, "BFloat16")] {
        let workspace = workspace();
        let path = workspace.path();
        let job = |name: &str| TestJob { precision, ..job(name) };
        // the test kills a stage of a job with checkpoints in memory and a spare, and then interrupts the job
        let memory = "  checkpoint: {everySteps: 4, memory: {everySteps: 1}}\n  spares: 1\n  restart: {backoff: \
                      {initialSeconds: 0}}\n";
        let killed = TestJob { data_parallel: 2, extra: memory.into(), ..job("killed") };
        let mut launched = start(path, &killed.endless(), part);
        launched.wait_for_step(3);
        signal(launched.wait_for_stages(4)[1], libc::SIGKILL);
        launched.wait_for_restart(path);
        let step = launched.steps();
        launched.wait_for_step(step + 3);
        launched.interrupt(path);
        let rest = killed.ending_after(saved(&path.join("killed")));
        // the rest of the job trains on another number of stages, without replicas
        let rest = TestJob { stages: 3, data_parallel: 1, extra: job("").extra, ..rest };
        let expected = run(path, &rest, part).hashes();
        let layouts = [
            TestJob { stages: 1, name: "one".into(), ..rest.clone() },
            TestJob { stages: 2, data_parallel: 2, schedule: "GPipe", name: "two".into(), ..rest.clone() },
            TestJob { stages: 3, schedule: "InterleavedZeroBubble", name: "three".into(), ..rest.clone() },
        ];
        for layout in layouts {
            assert_eq!(run(path, &layout, part).hashes(), expected, "{part}, {precision}, {layout:?}");
        }
    }
}

/// In an audit, a stage recomputes another stage's work. The auditing stage receives the frozen weights along with the
/// trained parameters.
#[test]
fn audits_of_a_part_of_a_model_find_no_difference() {
    for (part, tied) in [(LORA, false), (LORA, true), (FREEZE, true)] {
        let workspace = corpus::workspace();
        let path = workspace.path();
        tiny(path, "tiny", serde_json::json!({"tie_word_embeddings": false}));
        if tied {
            // a model from another job, whose embedding and head share one weight
            let base = TestJob { name: "base".into(), tied, steps: 4, decay_steps: None, ..job("base") };
            Launched::start(path, &base, &[]).finish(path).hashes();
        }
        let audited = TestJob { data_parallel: 2, precision: "BFloat16", ..job("audited") };
        let file = path.join("audited.yaml");
        let model = pretrained(if tied { "base/checkpoints/step-00000004" } else { "tiny" });
        let yaml = match tied {
            true => {
                yaml(&audited, &model).replace("tiny/tokenizer.json", "base/checkpoints/step-00000004/tokenizer.json")
            }
            false => yaml(&audited, &model),
        };
        std::fs::write(&file, yaml).unwrap();
        let sets = ["--set", part, "--set", "training.audit={everySteps: 1}"];
        Launched::start_file(path, &file, path.join("audited"), &sets).finish(path).hashes();
        let audits = audits(path);
        assert_eq!(audits.len(), 19, "{part}");
        assert!(audits.iter().all(|audit| audit["difference"].is_null()), "{part}: {audits:?}");
    }
}

/// Computes a merged weight independently, by the rule that `MergedWeights` documents.
fn merged(base: &[f32], a: &[f32], b: &[f32], rank: usize, scale: f64) -> Vec<f32> {
    let columns = a.len() / rank;
    let at = |index: usize| {
        let (row, column) = (index / columns, index % columns);
        let sum = (0..rank).fold(0.0, |sum, k| sum + f64::from(b[row * rank + k]) * f64::from(a[k * columns + column]));
        (f64::from(base[index]) + scale * sum) as f32
    };
    (0..base.len()).map(at).collect()
}

/// Rounds to the nearest bf16 value. A tie rounds to the even one of the two nearest values.
fn rounded(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

#[test]
fn a_merged_model_is_base_plus_adapters_to_the_last_bit() {
    let workspace = workspace();
    let path = workspace.path();
    run(path, &job("tuned"), LORA).hashes();
    let folder = path.join("tuned");
    let text = |name: &str| path.join(name).display().to_string();
    let checkpoint = folder.join("checkpoints/step-00000020");
    let adapters = tensors(&checkpoint, |name| name.ends_with(".model.safetensors"));
    let base = tensors(&path.join("tiny"), |_| true);
    assert!(adapters.keys().all(|name| name.contains(".lora_")), "{:?}", adapters.keys());
    assert!(adapters.iter().any(|(name, (_, values))| name.contains("lora_B") && values.iter().any(|&v| v != 0.0)));
    for (dtype, round) in [("fp32", (|value| value) as fn(f32) -> f32), ("bf16", rounded)] {
        let output = text(dtype);
        succeeds(&["checkpoint", "merge", &text("tuned"), "--dtype", dtype, "--output", &output]);
        let whole = tensors(Path::new(&output), |_| true);
        assert!(whole.keys().eq(base.keys()), "{:?}", whole.keys());
        let mut changed = 0;
        for (name, (_, values)) in &base {
            let module = name.strip_suffix(".weight").unwrap();
            let matrix = |matrix: &str| adapters.get(&format!("base_model.model.{module}.lora_{matrix}.weight"));
            let expected = match (matrix("A"), matrix("B")) {
                (Some((_, a)), Some((_, b))) => merged(values, a, b, 4, 6.0 / 4.0),
                _ => values.clone(),
            };
            let expected: Vec<f32> = expected.into_iter().map(round).collect();
            assert_eq!(whole[name].1, expected, "{name} in {dtype}");
            changed += usize::from(*values != expected);
        }
        assert!(changed >= 14, "{changed}");
    }
    // the job's folder, its checkpoint and the merged model generate the same text
    let generated = |model: &str| succeeds(&["generate", model, "--prompt", "the", "--max-tokens", "12"]);
    let expected = generated(&text("fp32"));
    assert_eq!(generated(&text("tuned")), expected);
    assert_eq!(generated(&checkpoint.display().to_string()), expected);
    // the exported adapter has the directory layout of PEFT
    succeeds(&["checkpoint", "export", "--to", "hf", "--output", &text("adapter"), &text("tuned")]);
    let config: Value =
        serde_json::from_slice(&std::fs::read(path.join("adapter/adapter_config.json")).unwrap()).unwrap();
    assert_eq!((&config["r"], &config["lora_alpha"]), (&4.into(), &6.0.into()));
    assert_eq!(config["base_model_name_or_path"], "tiny");
    assert_eq!(tensors(&path.join("adapter"), |name| name == "adapter_model.safetensors"), adapters);
    assert!(!path.join("adapter/config.json").exists());
    // an audit replays the job
    succeeds(&["audit", &text("tuned"), "--all"]);
}

#[test]
fn a_job_with_frozen_weights_resumes_with_the_same_ones_only() {
    let workspace = workspace();
    let path = workspace.path();
    for (name, part) in [("tuned", LORA), ("frozen", FREEZE)] {
        run(path, &job(name), part).hashes();
    }
    let text = |name: &str| path.join(name).display().to_string();
    // in the merged model, the frozen weights equal those of the base
    succeeds(&["checkpoint", "merge", &text("frozen"), "--output", &text("whole")]);
    let (whole, base) = (tensors(&path.join("whole"), |_| true), tensors(&path.join("tiny"), |_| true));
    let same: Vec<&str> =
        base.iter().filter(|(name, values)| whole[*name] == **values).map(|(n, _)| n.as_str()).collect();
    assert!(
        same.contains(&"model.layers.0.mlp.down_proj.weight") && same.contains(&"model.layers.1.mlp.up_proj.weight")
    );
    assert!(!same.contains(&"model.layers.1.mlp.down_proj.weight"), "{same:?}");
    let (code, words) = command(&["checkpoint", "export", "--to", "hf", "--output", &text("part"), &text("frozen")]);
    assert!(code != Some(0) && words.contains("`stagecoach checkpoint merge` writes the whole model"), "{words}");
    // `blame` needs the frozen weights to compute the gradients of a step's documents
    for name in ["tuned", "frozen"] {
        succeeds(&["blame", &text(name), "--step", "7", "--workspace", &path.display().to_string()]);
    }
    // a job can't start from a checkpoint without the frozen weights
    let file = path.join("other.yaml");
    let mut other = job("other");
    for from in ["tuned", "frozen"] {
        other.extra = init_from(from, &other.extra);
        std::fs::write(&file, other.yaml()).unwrap();
        let outcome = Launched::start_file(path, &file, path.join("other"), &[]).finish(path);
        says(&outcome, "stagecoach checkpoint merge");
        other = job("other");
    }
    // the job refuses a base with changed weights, and resumes after they are restored
    let weights = std::fs::read_dir(path.join("tiny")).unwrap().map(|entry| entry.unwrap().path());
    let weights = weights.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).min().unwrap();
    let bytes = std::fs::read(&weights).unwrap();
    flip(&weights);
    let longer = TestJob { steps: 24, ..job("tuned") };
    let outcome = run(path, &longer, LORA);
    says(&outcome, "contains weights that differ from the frozen weights");
    // a replay that starts at the first step loads no checkpoint, and must still refuse the changed weights
    let (code, words) = command(&["replay", &text("tuned"), "--step", "2"]);
    assert!(code != Some(0) && words.contains("contains weights that differ from the frozen weights"), "{words}");
    let (code, words) = command(&["checkpoint", "merge", &text("tuned"), "--output", &text("wrong")]);
    assert!(code != Some(0) && words.contains("contains weights that differ from the frozen weights"), "{words}");
    assert!(!path.join("wrong").exists());
    std::fs::write(&weights, bytes).unwrap();
    run(path, &longer, LORA).hashes();
}

/// A job can start from the newest checkpoint in another job's folder. The job keeps this checkpoint as its base even
/// if the other job saves newer checkpoints.
#[test]
fn the_base_of_a_job_stays_the_checkpoint_with_which_it_began() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    let base = TestJob { steps: 8, ..job("base") };
    Launched::start(path, &base, &[]).finish(path).hashes();
    let from_base = |steps| {
        let job = TestJob { steps, ..job("tuned") };
        TestJob { extra: init_from("base", &job.extra), ..job }
    };
    let start = |job: &TestJob| {
        let tokenizer = "{type: File, file: {path: base/checkpoints/step-00000008/tokenizer.json}}";
        let file = path.join("tuned.yaml");
        std::fs::write(&file, job.yaml().replace("{type: Train, train: {vocabSize: 300}}", tokenizer)).unwrap();
        Launched::start_file(path, &file, path.join("tuned"), &["--set", LORA]).finish(path)
    };
    start(&from_base(8)).hashes();
    Launched::start(path, &TestJob { steps: 12, ..base }, &[]).finish(path).hashes();
    start(&from_base(12)).hashes();
    let manifest = std::fs::read_to_string(path.join("tuned/checkpoints/step-00000012/manifest.json")).unwrap();
    assert!(manifest.contains("base/checkpoints/step-00000008"));
    std::fs::remove_dir_all(path.join("base/checkpoints/step-00000008")).unwrap();
    let outcome = start(&from_base(16));
    says(&outcome, "base/checkpoints/step-00000008");
}

/// Returns the commands in a section of docs/FINE-TUNING.md that begin with `stagecoach`, one string each.
fn commands_of(section: &str) -> Vec<String> {
    let page = include_str!("../../../docs/FINE-TUNING.md");
    let (_, rest) = page.split_once(&format!("# {section}\n")).unwrap_or_else(|| panic!("no section {section}"));
    let text = rest.split("\n#").next().unwrap();
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0.replace("\\\n", " ")));
    let commands = blocks.flat_map(|block| block.lines().map(str::to_owned).collect::<Vec<_>>());
    commands.filter(|line| line.starts_with("stagecoach ")).collect()
}

/// Runs commands of docs/FINE-TUNING.md in a shell.
fn follow(folder: &Path, commands: &[String]) {
    let programs = stagecoach().parent().unwrap().display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    for command in commands {
        let mut shell = Command::new("sh");
        let (code, text) = run_command(shell.args(["-c", command]).current_dir(folder).env("PATH", &path));
        assert_eq!(code, Some(0), "{command}\n{text}");
    }
}

/// Checks that every command of docs/FINE-TUNING.md works as written, from a model directory to a merged model, with
/// texts and with conversations.
#[test]
fn the_page_on_fine_tuning_works_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let workspace = path.join("workspace");
    std::fs::create_dir_all(workspace.join("corpus")).unwrap();
    tiny(&workspace, "SmolLM2-135M", serde_json::json!({"max_position_embeddings": 256}));
    let template = "{% for message in messages %}{{ message.role }}: {% if message.role == 'assistant' %}{% generation %}\
                    {{ message.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}\n\
                    {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
    std::fs::write(workspace.join("SmolLM2-135M/chat_template.jinja"), template).unwrap();
    std::fs::write(workspace.join("corpus/texts.jsonl"), corpus::jsonl(120, 40, 3)).unwrap();
    let train = commands_of("Train");
    assert_eq!(train.len(), 3, "{train:?}");
    follow(path, &train);
    follow(path, &commands_of("Generate"));
    follow(path, &commands_of("Export"));

    // follow the page again with conversations and adapters
    std::fs::remove_dir_all(workspace.join("job")).unwrap();
    let turns = |at: usize| {
        let turn =
            |role: &str, of: usize| format!("{{\"role\": \"{role}\", \"content\": \"kalo {} su {of}\"}}", at % 7);
        format!("{{\"messages\": [{}, {}]}}\n", turn("user", at), turn("assistant", at * 3))
    };
    std::fs::write(workspace.join("corpus/texts.jsonl"), (0..400).map(turns).collect::<String>()).unwrap();
    follow(path, &[format!("{} --force", train[0])]);
    let job = std::fs::read_to_string(path.join("job.yaml")).unwrap();
    assert!(job.contains("format: Chat") && !job.contains("lora"), "{job}");
    let adapters = job.replace("    learningRate:\n", "    lora: {rank: 16, alpha: 32}\n    learningRate:\n");
    std::fs::write(path.join("job.yaml"), adapters).unwrap();
    follow(path, &train[1..]);
    follow(path, &commands_of("Conversations"));
    follow(path, &commands_of("Adapters"));
    follow(path, &commands_of("Generate"));
    for name in ["tuned", "merged"] {
        assert!(path.join(name).join("model.safetensors").exists(), "{name}");
    }
    assert!(path.join("adapter/adapter_model.safetensors").exists());
}
