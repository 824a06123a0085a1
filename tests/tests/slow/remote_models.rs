//! A job whose model and tokenizer are on a Hugging Face hub (a test server) has the same results as a job with the
//! same files on the volume.

use std::path::Path;
use std::process::Command;

use stagecoach_test_hub::{File, Hub};
use stagecoach_tests::{
    Launched, TestJob, corpus, fixture, hugging_face, no_file_has, run, run_command, says, signal, stagecoach, text,
    until,
};

use crate::initial::pretrained;

const REPO: &str = "models/org/tiny";

/// Returns the files of the tiny model. As on the real hub, the large files are in Git LFS, and the small files are in
/// git.
fn files() -> Vec<(String, File)> {
    let files = std::fs::read_dir(hugging_face()).unwrap().map(|file| {
        let file = file.unwrap();
        let (name, bytes) = (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap());
        let is_large = name.ends_with(".safetensors") || name == "tokenizer.json";
        (name, if is_large { File::large(bytes) } else { File::small(bytes) })
    });
    files.collect()
}

fn put(hub: &Hub, files: &[(String, File)]) -> String {
    hub.put(REPO, "main", files.iter().map(|(name, file)| (name.as_str(), file.clone())))
}

/// Starts a job with the model and the tokenizer in `model`, which is a folder on the volume or an `hf://` address.
fn start(hub: &Hub, workspace: &Path, name: &str, model: &str, spares: u32) -> Launched {
    let extra =
        format!("  checkpoint: {{everySteps: 4}}\n  restart: {{backoff: {{initialSeconds: 0}}}}\n  spares: {spares}\n");
    let job = TestJob { name: name.into(), layers: 2, extra, ..TestJob::default() };
    let [model, tokenizer] = ["", "/tokenizer.json"].map(|file| format!("\"{model}{file}\""));
    let yaml = job.yaml_with(&pretrained(&model), &tokenizer);
    let file = workspace.join(format!("{name}.yaml"));
    std::fs::write(&file, yaml).unwrap();
    let endpoint = hub.endpoint();
    let variables = [("HF_ENDPOINT", endpoint.as_str()), ("HF_HUB_CACHE", "/nowhere"), ("HF_TOKEN", "hf_planted")];
    Launched::start_program(&stagecoach(), workspace, &file, workspace.join(name), &[], &variables)
}

#[test]
fn a_model_of_the_hub_gives_the_results_of_the_same_files_on_the_volume() {
    let (hub, workspace) = (Hub::start(), corpus::workspace());
    hub.user("hf_planted");
    let path = workspace.path();
    fixture::copy(&hugging_face(), &path.join("tiny"));
    let expected = start(&hub, path, "local", "tiny", 0).finish(path).numbers();
    assert_eq!(hub.take_requests().len(), 0);

    // kill stage 0 during its download, and change the branch before the next attempt
    let commit = put(&hub, &files());
    hub.faults(|faults| faults.bytes_per_second = Some(3_000));
    let launched = start(&hub, path, "remote", "hf://org/tiny", 1);
    let copy = path.join("cache/hub/org--tiny").join(&commit);
    let is_partial = |name: &str| name.contains(".safetensors.") && name.ends_with(".partial");
    until("an unfinished shard", || {
        let entries = std::fs::read_dir(&copy).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).find(|name| name.to_str().is_some_and(is_partial))
    });
    signal(launched.wait_for_stages(3)[0], libc::SIGKILL);
    let mut others = files();
    others.retain(|(name, _)| name != "tokenizer.json");
    put(&hub, &others);
    hub.faults(|faults| faults.bytes_per_second = None);
    let outcome = launched.finish(path);
    assert_eq!(outcome.numbers(), expected);
    says(&outcome, &format!("starting from the weights in cache/hub/org--tiny/{commit}"));
    let record = std::fs::read_to_string(path.join("remote/remote-models.json")).unwrap();
    assert!(record.contains(&format!("\"hf://org/tiny\": \"{commit}\"")), "{record}");
    no_file_has(path, "planted");

    // a replay from a checkpoint needs no initial weights, and downloads none
    std::fs::remove_dir_all(path.join("cache/hub")).unwrap();
    hub.take_requests();
    let folder = path.join("remote").display().to_string();
    let replay = ["replay", &folder, "--step", "18"];
    let mut command = Command::new(stagecoach());
    command.args(replay).envs([("HF_ENDPOINT", hub.endpoint()), ("HF_HUB_CACHE", "/nowhere".to_owned())]);
    let (code, printed) = run_command(command.env("HF_TOKEN", "hf_planted").arg("--workspace").arg(path));
    assert_eq!(code, Some(0), "{printed}");
    let requests = hub.take_requests();
    assert!(requests.iter().any(|request| request.path.ends_with("tokenizer.json")));
    assert!(requests.iter().all(|request| !request.path.contains(".safetensors")), "{requests:?}");

    // the commands read the commit in the job's record, and need no hub
    drop(hub);
    let job = path.join("remote.yaml").display().to_string();
    for arguments in [["plan", &job, "--stages", "2"], replay] {
        let (code, printed) = run(&[&arguments[..], &["--workspace", text(path)]].concat());
        assert_eq!(code, Some(0), "{arguments:?}: {printed}");
    }
}

#[test]
fn a_model_that_cannot_be_fetched_ends_the_job_with_one_sentence() {
    let (hub, workspace) = (Hub::start(), corpus::workspace());
    let path = workspace.path();
    hub.user("hf_planted");
    put(&hub, &files());
    hub.gate(REPO, "hf_accepted");
    let outcome = start(&hub, path, "gated", "hf://org/tiny", 0).finish(path);
    assert_eq!(outcome.status.code(), Some(78), "{}\n{}", outcome.stdout, outcome.stderr);
    says(&outcome, "spec.model.pretrained.path: the model org/tiny is gated: accept its conditions at ");
    no_file_has(path, "planted");
    let mut pickled = files();
    pickled.retain(|(name, _)| !name.contains("safetensors"));
    pickled.push(("pytorch_model.bin".to_owned(), File::large("x")));
    hub.put("models/org/pickled", "main", pickled.iter().map(|(name, file)| (name.as_str(), file.clone())));
    let outcome = start(&hub, path, "pickled", "hf://org/pickled", 0).finish(path);
    assert_eq!(outcome.status.code(), Some(78), "{}\n{}", outcome.stdout, outcome.stderr);
    says(&outcome, "it has pytorch_model.bin, ");
    says(&outcome, "spec.model.pretrained.path: the model org/pickled has no weights in safetensors at commit ");
}
