use stagecoach_test_hub::{File, Hub};

use super::*;
use crate::JobConfig;

const MODEL: &str = "models/org/tiny";

/// Returns the sample job, with its model and its tokenizer at these paths.
fn job(model: &str, tokenizer: &str) -> PipelineJob {
    let sample = include_str!("../../../../manifests/samples/shakespeare.yaml");
    let set = [
        ("model", format!("{{type: Pretrained, pretrained: {{path: \"{model}\"}}}}")),
        ("data.tokenizer", format!("{{type: File, file: {{path: \"{tokenizer}\"}}}}")),
    ];
    let set: Vec<_> = set.into_iter().map(|(path, value)| (path.to_owned(), value)).collect();
    stagecoach_api::parse_with(sample, "shakespeare.yaml", &set).unwrap()
}

fn known(commits: &[(&str, &str)]) -> RemoteModels {
    RemoteModels { commits: commits.iter().map(|(uri, commit)| ((*uri).to_owned(), (*commit).to_owned())).collect() }
}

/// Returns the files of a model on the hub. No trainer could load this model.
fn files(config: &str) -> Vec<(&'static str, File)> {
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    names.into_iter().map(|name| (name, File::large(config))).collect()
}

fn fetch(hub: &Hub, job: &PipelineJob, folder: &Path, extent: FetchExtent) -> Result<RemoteModels, StageError> {
    let environment = [("HF_ENDPOINT", hub.endpoint()), ("HF_HUB_CACHE", "/nowhere".to_owned())];
    let variables = environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let mut client = LazyClient { variables, on_wait: OnWait::default(), client: None };
    let models = RemoteModels::recorded(job, folder)?;
    models.fetch_with(&mut client, job, folder, extent, &mut |models| models.write(folder), &mut |_, _, _| {})
}

#[test]
fn a_path_of_the_job_leads_to_the_copy() {
    let models = known(&[("hf://org/tiny", "aa"), ("hf://org/tiny@v1", "bb")]);
    for (path, local, at_commit) in [
        ("tiny", "tiny", "tiny"),
        ("hf://org/tiny", "cache/hub/org--tiny/aa", "hf://org/tiny@aa"),
        ("hf://models/org/tiny@v1", "cache/hub/org--tiny/bb", "hf://org/tiny@bb"),
        (
            "hf://org/tiny/a/tokenizer.json",
            "cache/hub/org--tiny/aa/a/tokenizer.json",
            "hf://org/tiny@aa/a/tokenizer.json",
        ),
    ] {
        assert_eq!(models.local_path(path), Path::new(local), "{path}");
        assert_eq!(models.at_commit(path), at_commit, "{path}");
    }
}

#[test]
fn a_uri_names_what_its_field_needs() {
    let says = |model: &str, tokenizer: &str| has_remote_models(&job(model, tokenizer)).unwrap_err().message;
    let error = says("hf://org/tiny/sub", "t.json");
    assert!(error.starts_with("spec.model.pretrained.path: \"hf://org/tiny/sub\" names \"sub\" in a repo"), "{error}");
    let error = says("tiny", "hf://org/tiny");
    assert!(error.ends_with("names no file: add it, as in hf://org/tiny/tokenizer.json"), "{error}");
    let error = says("hf://tiny", "t.json");
    assert!(error.contains("\"tiny\" is not the name of a repository, OWNER/NAME"), "{error}");
    assert!(!has_remote_models(&job("tiny", "tiny/tokenizer.json")).unwrap());
    let error = JobConfig::new(job("hf://org/tiny", "t.json"), Path::new("/nowhere")).unwrap_err();
    assert!(error.message.ends_with("hf://org/tiny has not been fetched from the hub"), "{error}");
}

#[test]
fn a_job_keeps_the_commit_with_which_it_began() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let job = job("hf://org/tiny", "hf://org/tiny/tokenizer.json");
    let first = hub.put(MODEL, "main", files("first"));
    assert_eq!(RemoteModels::default().fetched(&job, folder, FetchExtent::All).unwrap(), Err(0));
    let models = fetch(&hub, &job, folder, FetchExtent::Settings).unwrap();
    assert_eq!(models, known(&[("hf://org/tiny", &first)]));
    assert!(
        models.lacks_weights("hf://org/tiny", folder)
            && models.fetched(&job, folder, FetchExtent::All).unwrap().is_err()
    );
    hub.put(MODEL, "main", files("second"));
    assert_eq!(fetch(&hub, &job, folder, FetchExtent::All).unwrap(), models);
    assert_eq!(models.fetched(&job, folder, FetchExtent::All).unwrap(), Ok(()));
    assert!(!models.lacks_weights("hf://org/tiny", folder));
    let weights = folder.join(models.local_path("hf://org/tiny")).join("model.safetensors");
    assert_eq!(std::fs::read_to_string(weights).unwrap(), "first");
    hub.take_requests();
    fetch(&hub, &job, folder, FetchExtent::All).unwrap();
    assert_eq!(hub.take_requests().len(), 0, "a job that has its files needs no hub");
    std::fs::remove_file(folder.join(REMOTE_MODELS)).unwrap();
    assert_ne!(fetch(&hub, &job, folder, FetchExtent::All).unwrap(), models, "another job begins with the branch");
}

#[test]
fn what_cannot_be_fetched_is_one_sentence_about_a_field() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    hub.put(MODEL, "main", files("{}"));
    hub.put("models/org/gated", "main", files("{}"));
    hub.gate("models/org/gated", "hf_accepted");
    for (model, tokenizer, expected) in [
        ("hf://org/other", "t.json", "spec.model.pretrained.path: http"),
        (
            "hf://org/gated",
            "t.json",
            "spec.model.pretrained.path: the model org/gated is gated: accept its conditions at",
        ),
        ("hf://org/tiny@v2", "t.json", "spec.model.pretrained.path: the model org/tiny has no revision \"v2\""),
        ("tiny", "hf://org/tiny/t.json", "spec.data.tokenizer.file.path: the model org/tiny has no t.json at commit"),
    ] {
        let error = fetch(&hub, &job(model, tokenizer), folder, FetchExtent::All).unwrap_err();
        assert!(error.message.starts_with(expected), "{error}");
        assert_eq!(error.kind, FailureKind::InvalidConfig, "{error}");
        assert!(!error.message.contains('\n'));
    }
    std::fs::write(folder.join(REMOTE_MODELS), r#"{"commits": {"hf://org/tiny": "../.."}}"#).unwrap();
    let error = RemoteModels::recorded(&job("hf://org/tiny", "t.json"), folder).unwrap_err().message;
    assert!(
        error.contains("has no valid record of remote models (\"../..\" is not the hash of a commit): remove the file"),
        "{error}"
    );
}

#[test]
fn an_outage_and_a_full_volume_are_worth_another_attempt() {
    let full = HubError::File { action: "write".into(), path: "a".into(), reason: "no space left".into() };
    let remote = Remote::parse("spec.model.pretrained.path", "hf://org/tiny", false).unwrap().unwrap();
    assert_eq!(remote.error(full).kind, FailureKind::Storage);
    let gone = HubError::Unavailable { url: "https://hub".into(), status: 503 };
    assert_eq!(remote.error(gone).kind, FailureKind::Storage);
}
