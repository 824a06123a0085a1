//! The commands of `stagecoach checkpoint` in the real binary, on the checkpoints of a small job.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use stagecoach_checkpoint::{Dtype, ModelFiles};
use stagecoach_tests::fixture::{copy, flip};
use stagecoach_tests::{Launched, TestJob, corpus, hugging_face, says, stagecoach, text};
use tempfile::TempDir;

/// Returns a job that saves at steps 3, 6, 9 and 12.
fn job() -> TestJob {
    let extra = "  checkpoint: {everySteps: 3, keepLast: 10, mode: Sync}\n";
    TestJob { steps: 12, extra: extra.into(), ..TestJob::default() }
}

/// Returns a workspace with the trained job. Every test has a separate copy.
fn trained() -> TempDir {
    static TRAINED: OnceLock<PathBuf> = OnceLock::new();
    let workspace = TRAINED.get_or_init(|| {
        let workspace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checkpoint-commands");
        let _ = fs::remove_dir_all(&workspace);
        corpus::write(&workspace);
        Launched::start(&workspace, &job(), &[]).finish(&workspace).hashes();
        workspace
    });
    let own = tempfile::tempdir().unwrap();
    copy(workspace, own.path());
    own
}

/// Runs the binary. Returns the exit code, stdout and stderr.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(stagecoach()).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Runs `stagecoach checkpoint WORD FOLDER ...` and asserts that it succeeds. Returns its stdout.
fn checkpoint(word: &str, folder: &Path, more: &[&str]) -> String {
    let arguments = [&["checkpoint", word, text(folder)], more].concat();
    let (code, printed, stderr) = run(&arguments);
    assert_eq!(code, 0, "{arguments:?}\n{printed}\n{stderr}");
    printed
}

fn json(word: &str, folder: &Path, more: &[&str]) -> Value {
    serde_json::from_str(&checkpoint(word, folder, &[more, &["--json"]].concat())).unwrap()
}

/// Asserts that the command fails with `code` and one sentence that contains `words`.
fn refused(arguments: &[&str], code: i32, words: &str) {
    let (found, printed, stderr) = run(arguments);
    assert!(found == code && stderr.contains(words), "{arguments:?}: {found}\n{printed}\n{stderr}");
    assert_eq!(stderr.lines().filter(|line| line.starts_with("stagecoach: ")).count(), 1, "{stderr}");
}

fn step(workspace: &TempDir, step: u64) -> PathBuf {
    workspace.path().join(format!("small/checkpoints/step-{step:08}"))
}

fn steps(folder: &Path) -> Vec<u64> {
    json("list", folder, &[]).as_array().unwrap().iter().map(|row| row["step"].as_u64().unwrap()).collect()
}

#[test]
fn what_is_there_is_listed_shown_and_proven() {
    let workspace = trained();
    let folder = workspace.path().join("small");
    assert_eq!(steps(&folder), [12, 9, 6, 3]);
    let row = json("list", &folder, &[])[1].clone();
    assert_eq!((&row["kind"], &row["path"]), (&"checkpoint".into(), &"checkpoints/step-00000009".into()));
    assert_eq!((&row["attempt"], &row["schedule"]), (&1.into(), &"1F1B".into()));
    assert_eq!(row["partition"].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>(), 4);
    assert!(row["committedAt"].as_str().unwrap().ends_with('Z') && row["problem"].is_null());
    let on_disk: u64 = fs::read_dir(step(&workspace, 9)).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(row["bytes"], on_disk);
    let table = checkpoint("list", &folder, &[]);
    assert!(table.starts_with("STEP") && table.lines().count() == 5 && table.contains("sizes match"), "{table}");

    let shown = json("show", &folder, &[]);
    assert_eq!((&shown["step"], &shown["progress"]["step"]), (&12.into(), &12.into()));
    assert_eq!(shown["identity"]["model"]["llama"]["hiddenSize"], 32);
    let parameters = shown["weights"]["parameters"].as_u64().unwrap();
    assert_eq!(shown["optimizer"]["parameters"], 2 * parameters);
    assert!(shown["tensors"].is_null());
    assert_eq!(json("show", &folder, &["--step", "6"])["step"], 6);
    let shown = json("show", &step(&workspace, 9), &["--tensors"]);
    assert_eq!(shown["step"], 9);
    let sizes = shown["tensors"].as_array().unwrap().iter().map(|tensor| tensor["bytes"].as_u64().unwrap());
    assert_eq!(sizes.sum::<u64>(), 4 * 3 * parameters);
    let printed = checkpoint("show", &folder, &["--tensors"]);
    for words in
        ["plan.schedule", "environment.threads", "stage-2.optimizer.safetensors", "model.norm.weight.exp_avg_sq"]
    {
        assert!(printed.contains(words), "{printed}");
    }

    let verdicts = json("verify", &folder, &[]);
    assert!(verdicts.as_array().unwrap().iter().all(|file| file["intact"] == true && file["step"] == 12), "{verdicts}");
    assert_eq!(json("verify", &folder, &["--all"]).as_array().unwrap().len(), 4 * verdicts.as_array().unwrap().len());
    assert!(checkpoint("verify", &folder, &["--step", "3"]).starts_with("intact   checkpoints/step-00000003/"));
}

#[test]
fn damage_is_named_and_is_exit_code_74() {
    let workspace = trained();
    let folder = workspace.path().join("small");
    flip(&step(&workspace, 12).join("stage-1.model.safetensors"));
    fs::write(step(&workspace, 9).join("config.json"), "{").unwrap();
    fs::remove_file(step(&workspace, 6).join("manifest.json")).unwrap();
    fs::create_dir(folder.join("checkpoints/mine")).unwrap();
    fs::create_dir_all(folder.join("damaged/step-00000001")).unwrap();
    fs::write(folder.join("damaged/step-00000001/reason.txt"), "config.json is missing\n").unwrap();

    let verify = ["checkpoint", "verify", text(&folder)];
    refused(&verify, 74, "stage-1.model.safetensors does not hold the bytes that were written");
    let (code, printed, _) = run(&[&verify[..], &["--all", "--json"]].concat());
    let verdicts: Vec<Value> = serde_json::from_str(&printed).unwrap();
    let damaged: Vec<&Value> = verdicts.iter().filter(|verdict| verdict["intact"] == false).collect();
    assert_eq!((code, damaged.len()), (74, 3), "{printed}");
    assert_eq!(damaged[1]["file"], "checkpoints/step-00000009/config.json");
    assert_eq!(damaged[2]["reason"], "is missing");
    checkpoint("verify", &folder, &["--step", "3"]);

    let rows = json("list", &folder, &[]);
    let problem = |at: usize| rows[at]["problem"].as_str().unwrap_or_default();
    assert!(problem(0).is_empty(), "sizes say nothing of a flipped bit");
    assert!(problem(1).contains("config.json has 1 bytes"), "{rows}");
    assert_eq!((&rows[1]["schedule"], &rows[2]["schedule"]), (&"1F1B".into(), &Value::Null));
    assert_eq!((&rows[4]["kind"], &rows[4]["path"]), (&"foreign".into(), &"checkpoints/mine".into()));
    assert_eq!((&rows[5]["kind"], &rows[5]["step"]), (&"damaged".into(), &1.into()));
    assert_eq!(problem(5), "config.json is missing");

    let out = workspace.path().join("out");
    let export = |to| ["checkpoint", "export", text(&folder), "--to", to, "--output", text(&out)];
    for to in ["hf", "single-file"] {
        refused(&export(to), 74, "stage-1.model.safetensors does not hold the bytes of model.");
        assert!(!out.exists());
    }
    refused(&["checkpoint", "show", text(&folder), "--step", "6"], 74, "manifest.json is missing");
    refused(&["generate", text(&step(&workspace, 12))], 74, "stage-1.model.safetensors");
    refused(&["generate", text(&folder)], 74, "stage-1.model.safetensors");

    newer_format(&step(&workspace, 3));
    refused(&["checkpoint", "show", text(&folder), "--step", "3"], 74, "has format version 2");
    let prune = ["checkpoint", "prune", text(&folder), "--keep-last", "1"];
    refused(&prune, 74, "is intact");
    assert_eq!(rows.as_array().unwrap().len(), json("list", &folder, &[]).as_array().unwrap().len());
}

/// Rewrites the manifest as a later version of the trainer would write it.
fn newer_format(checkpoint: &Path) {
    let path = checkpoint.join("manifest.json");
    let manifest = fs::read_to_string(&path).unwrap().replace("\"format_version\": 1", "\"format_version\": 2");
    let opening = "{\n  \"blake3\": \"";
    let body = &manifest[opening.len() + 64..];
    fs::write(&path, format!("{opening}{}{body}", blake3::hash(body.as_bytes()).to_hex())).unwrap();
}

#[test]
fn pruning_keeps_the_newest_intact_one_and_the_job_resumes() {
    let workspace = trained();
    let folder = workspace.path().join("small");
    let fences = || fs::read_dir(folder.join("fences")).unwrap().count();
    let before = fences();
    let arguments = ["--keep-last", "1", "--keep-every", "6"];
    let planned = json("prune", &folder, &[&arguments[..], &["--dry-run"]].concat());
    assert_eq!((steps(&folder).len(), fences()), (4, before), "a dry run changes nothing");
    let pruned = json("prune", &folder, &arguments);
    assert_eq!((&planned["dryRun"], &pruned["dryRun"]), (&true.into(), &false.into()));
    assert_eq!((&planned["removed"], &planned["kept"]), (&pruned["removed"], &pruned["kept"]));
    let removed: Vec<u64> =
        pruned["removed"].as_array().unwrap().iter().map(|one| one["step"].as_u64().unwrap()).collect();
    assert_eq!((removed, steps(&folder)), (vec![3, 9], vec![12, 6]));
    assert!(pruned["removed"][0]["bytes"].as_u64().unwrap() > 100_000);

    // `--keep-last` does not count a damaged checkpoint, and the command does not remove it
    flip(&step(&workspace, 12).join("stage-0.model.safetensors"));
    let printed = checkpoint("prune", &folder, &["--keep-last", "1"]);
    assert!(printed.contains("removed 0 of 2") && printed.contains("the newest intact one is step 6"), "{printed}");
    let longer = TestJob { steps: 15, ..job() };
    let outcome = Launched::start(workspace.path(), &longer, &[]).finish(workspace.path());
    outcome.hashes();
    says(&outcome, "resuming after step 6");
}

#[test]
fn a_run_is_not_pruned_under() {
    let workspace = corpus::workspace();
    let long = TestJob { steps: 100_000, ..job() };
    let mut launched = Launched::start(workspace.path(), &long, &[]);
    launched.wait_for_step(4);
    let folder = workspace.path().join("small");
    let prune = ["checkpoint", "prune", text(&folder), "--keep-last", "1"];
    refused(&prune, 1, "is held by another run");
    assert!(run(&["checkpoint", "prune", "--help"]).1.contains("loses the fence"));
    // commands that change nothing work while a run has locked the job's folder
    checkpoint("list", &folder, &[]);
    checkpoint("prune", &folder, &["--keep-last", "1", "--dry-run"]);
    launched.interrupt(workspace.path());
}

#[test]
fn a_hugging_face_model_comes_in_and_goes_out_equal() {
    let workspace = tempfile::tempdir().unwrap();
    let at = |name: &str| workspace.path().join(name);
    let original = ModelFiles::open(&hugging_face()).unwrap();
    let from = ["--from", text(&hugging_face())].map(str::to_owned);
    let imported = json("import", &at("llama"), &[&from[0], &from[1]]);
    assert_eq!((&imported["step"], &imported["tensors"]), (&0.into(), &21.into()));
    assert_eq!(json("show", &at("llama"), &[])["identity"], "imported");
    checkpoint("verify", &at("llama"), &[]);

    let exported = json("export", &at("llama"), &["--to", "hf", "--output", text(&at("out"))]);
    assert_eq!(exported["files"].as_array().unwrap().len(), 4, "{exported}");
    fs::create_dir(at("one")).unwrap();
    let single = at("one/model.safetensors");
    checkpoint("export", &at("llama"), &["--to", "single-file", "--output", text(&single)]);
    let names: Vec<&str> = original.names().collect();
    for folder in [at("out"), at("one"), at("llama/checkpoints/step-00000000")] {
        let files = ModelFiles::open(&folder).unwrap();
        assert_eq!(files.names().collect::<Vec<_>>(), names);
        for name in &names {
            assert_eq!(files.tensor(name).unwrap().shape, original.tensor(name).unwrap().shape);
            assert!(files.read(name).unwrap() == original.read_f32(name).unwrap(), "{name}");
        }
    }
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        assert_eq!(fs::read(at("out").join(name)).unwrap(), fs::read(hugging_face().join(name)).unwrap());
    }
    let generate = |model: &Path| run(&["generate", text(model), "--prompt", "ka lo", "--max-tokens", "20"]);
    let (code, printed, _) = generate(&hugging_face());
    assert!(code == 0 && printed.starts_with("ka lo"), "{printed}");
    for model in [at("out"), at("llama"), at("llama/checkpoints/step-00000000")] {
        assert_eq!(generate(&model).1, printed);
    }
    // an export in bf16 with small shards can generate text too
    let small = ["--to", "hf", "--dtype", "bf16", "--max-shard-size", "10KB", "--output"];
    checkpoint("export", &at("llama"), &[&small[..], &[text(&at("bf16"))]].concat());
    let files = ModelFiles::open(&at("bf16")).unwrap();
    assert!(files.names().all(|name| files.tensor(name).unwrap().dtype == Dtype::BF16));
    assert!(at("bf16/model-00002-of-00003.safetensors").exists());
    assert_eq!(generate(&at("bf16")).0, 0);
    // the exported model can be imported
    checkpoint("import", &at("again"), &["--from", text(&at("out"))]);
    let hash = |folder: &str| json("show", &at(folder), &[])["files"][0]["blake3"].clone();
    assert_eq!(hash("again"), hash("llama"));
}

#[test]
fn what_was_imported_is_no_jobs_own() {
    let workspace = corpus::workspace();
    checkpoint("import", &workspace.path().join("small"), &["--from", text(&hugging_face())]);
    let outcome = Launched::start(workspace.path(), &job(), &[]).finish(workspace.path());
    assert_eq!(outcome.status.code(), Some(78), "{}\n{}", outcome.stdout, outcome.stderr);
    says(&outcome, "\"imported\" in the checkpoint");
}

#[test]
fn a_request_that_cannot_be_met_is_one_sentence() {
    let workspace = trained();
    let at = |name: &str| workspace.path().join(name);
    let (job, missing, empty) = (at("small"), at("missing"), at("corpus"));
    for word in ["list", "show", "verify"] {
        refused(&["checkpoint", word, text(&missing)], 1, "missing: there is no such folder");
        refused(&["checkpoint", word, text(&at("small.yaml"))], 1, "is not a folder");
    }
    assert!(checkpoint("list", &empty, &[]).contains("has no checkpoints"));
    assert_eq!(json("list", &empty, &[]), serde_json::json!([]));
    refused(&["checkpoint", "show", text(&empty)], 1, "has no checkpoints: expected a job's folder");
    refused(&["checkpoint", "verify", text(&empty)], 74, "has no checkpoints: expected a job's folder");
    refused(&["checkpoint", "prune", text(&empty), "--keep-last", "1"], 1, "nothing to prune");
    assert!(!empty.join("fences").exists() && !empty.join("lock").exists());
    refused(&["checkpoint", "show", text(&job), "--step", "7"], 1, "no checkpoint of step 7; it has 3, 6, 9, 12");
    refused(&["checkpoint", "list", text(&step(&workspace, 9))], 1, "takes the job's folder");
    refused(&["checkpoint", "show", text(&step(&workspace, 9)), "--step", "6"], 1, "give one of them");

    let export = |output| ["checkpoint", "export", text(&job), "--to", "hf", "--output", output];
    refused(&export(text(&empty)), 1, "corpus: already exists");
    refused(&export(text(&missing.join("x"))), 1, "there is no folder");

    let import = |from: &Path, folder: &Path, words: &str| {
        refused(&["checkpoint", "import", "--from", text(from), text(folder)], 1, words);
    };
    let model = hugging_face();
    import(&missing, &at("new"), "config.json: could not be read");
    import(&model, &job, "has checkpoints already, up to step 12");
    assert_eq!(steps(&job), [12, 9, 6, 3]);
    copy(&model, &at("model"));
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    let broken = |from: &str, to: &str| fs::write(at("model/config.json"), config.replace(from, to)).unwrap();
    let import = |words| import(&at("model"), &at("new"), words);
    broken("\"silu\"", "\"gelu\"");
    import("hidden_act is \"gelu\"");
    broken("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    import("has no tensor model.layers.2.input_layernorm.weight");
    broken("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
    import("has a tensor model.layers.1.input_layernorm.weight, which this architecture does not use");
    broken("\"intermediate_size\": 24", "\"intermediate_size\": 32");
    import(
        "has model.layers.0.mlp.down_proj.weight as BF16[16, 24], but this model needs a floating-point tensor of \
         shape [16, 32]",
    );
    broken("", "");
    refused(&["generate", text(&empty)], 1, "holds no model");
    refused(&["generate", text(&missing)], 1, "there is no such folder");
    fs::remove_file(at("model/model-00002-of-00002.safetensors")).unwrap();
    refused(&["generate", text(&at("model"))], 74, "00002.safetensors: No such file or directory (os error 2)\n");
    assert!(!at("new").exists());
}

#[test]
fn a_checkpoint_copied_under_another_name_is_verified_exported_and_replayed() {
    let workspace = trained();
    let (copied, out) = (workspace.path().join("model"), workspace.path().join("out.safetensors"));
    copy(&workspace.path().join("small/checkpoints/step-00000009"), &copied);
    assert!(checkpoint("verify", &copied, &[]).starts_with("intact   "));
    checkpoint("export", &copied, &["--to", "single-file", "--output", text(&out)]);
    assert!(out.is_file());
    let (code, printed, stderr) =
        run(&["replay", text(&copied), "--workspace", text(workspace.path()), "--step", "10", "--stages", "1"]);
    assert_eq!(code, 0, "{printed}\n{stderr}");
    refused(&["checkpoint", "list", text(&copied)], 1, "is a copy of the checkpoint of step 9");
}

/// The user moves the checkpoints to another file system, for example because the disk is full, and replaces them by a
/// link.
#[test]
fn checkpoints_on_another_file_system_are_refused_before_a_step_is_trained() {
    use std::os::unix::fs::MetadataExt;
    let workspace = trained();
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    if device(other.path()) == device(workspace.path()) {
        return;
    }
    let checkpoints = workspace.path().join("small/checkpoints");
    copy(&checkpoints, &other.path().join("checkpoints"));
    fs::remove_dir_all(&checkpoints).unwrap();
    std::os::unix::fs::symlink(other.path().join("checkpoints"), &checkpoints).unwrap();
    // three steps of the job remain
    fs::remove_dir_all(checkpoints.join("step-00000012")).unwrap();
    fs::remove_file(workspace.path().join("small/result.json")).unwrap();
    let outcome = Launched::start(workspace.path(), &job(), &[]).finish(workspace.path());
    assert_eq!(outcome.status.code(), Some(78), "{}\n{}", outcome.stdout, outcome.stderr);
    says(&outcome, "small/checkpoints is on another file system than");
    assert!(!outcome.stdout.contains("\nstep "), "{}", outcome.stdout);
}

#[test]
fn a_longer_job_without_its_checkpoints_starts_again_and_says_so() {
    let workspace = trained();
    let longer = TestJob { steps: 15, ..job() };
    fs::remove_dir_all(workspace.path().join("small/checkpoints")).unwrap();
    let outcome = Launched::start(workspace.path(), &longer, &[]).finish(workspace.path());
    says(&outcome, "its checkpoints are gone, so training starts again at step 1");
    assert!(outcome.stdout.contains("start  steps 1 to 15"), "{}", outcome.stdout);
}
