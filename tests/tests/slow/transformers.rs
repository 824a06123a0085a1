//! Hugging Face Transformers loads the models that this trainer writes, and the trainer loads the models that
//! Transformers writes. With a model that Transformers wrote, both generate the same text, before and after some steps
//! of training. `make transformers` provides the Python that these tests need.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use stagecoach_model::model_types;
use stagecoach_tests::{Launched, TestJob, corpus, hugging_face, stagecoach};

use crate::initial::pretrained;

/// Several prompts, since the most likely next token after a prompt may be the end-of-text token.
const PROMPTS: [&str; 5] = ["kalo miren", "talvo", "wenxi su", "yor be", "zu"];
const TOKENS: &str = "24";

fn text(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap().trim().to_owned()
}

fn python(arguments: &[&str]) -> String {
    let python = std::env::var("STAGECOACH_TRANSFORMERS")
        .expect("STAGECOACH_TRANSFORMERS is not set, expected a Python with transformers: run `make transformers`");
    text(Command::new(python).arg(hugging_face().with_file_name("transformers_models.py")).args(arguments))
}

/// Checks that Transformers and the trainer continue the prompts with the same texts if both use the model in `folder`.
/// Returns the texts.
fn continue_alike(folder: &Path) -> Vec<String> {
    let model = folder.display().to_string();
    let expected = python(&[&["continue", &model, TOKENS], &PROMPTS[..]].concat());
    let expected: Vec<String> = serde_json::from_str(&expected).unwrap();
    let ours = PROMPTS.map(|prompt| {
        let generate = ["generate", &model, "--prompt", prompt, "--max-tokens", TOKENS, "--temperature", "0"];
        text(Command::new(stagecoach()).args(generate))
    });
    let expected: Vec<&str> = expected.iter().map(|text| text.trim()).collect();
    assert_eq!(ours.to_vec(), expected, "{model}");
    let longest = ours.iter().zip(PROMPTS).map(|(text, prompt)| text.len() - prompt.len()).max();
    assert!(longest > Some(10), "{ours:?}");
    ours.to_vec()
}

/// Trains the model in the folder `model_type`, and returns the job's folder. The callers set a learning rate that is
/// so low that the model does not learn to end every text immediately.
fn train(workspace: &Path, name: &str, model_type: &str, arguments: &[&str]) -> PathBuf {
    let job = TestJob { name: name.to_owned(), stages: 2, layers: 2, ..TestJob::default() };
    let yaml = job.yaml_with(&pretrained(model_type), &format!("{model_type}/tokenizer.json"));
    let file = workspace.join(format!("{name}.yaml"));
    std::fs::write(&file, yaml).unwrap();
    let folder = workspace.join(name);
    Launched::start_file(workspace, &file, folder.clone(), arguments).finish(workspace).hashes();
    folder
}

/// PEFT adds the exported adapter to the model, Transformers reads the merged model, and the trainer reads the job's
/// checkpoint. All three continue the prompts with the same texts.
#[test]
#[ignore = "needs a Python with transformers and PEFT: make transformers"]
fn peft_opens_the_adapters_of_this_trainer() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    for model_type in model_types() {
        let written = path.join(model_type);
        python(&["make", model_type, &hugging_face().display().to_string(), &written.display().to_string()]);
        let before = continue_alike(&written);
        let lora = ["--set", "training.lora={rank: 4, alpha: 32}", "--set", "training.learningRate={peak: 1e-3}"];
        let folder = train(path, &format!("adapted-{model_type}"), model_type, &lora).display().to_string();
        let [adapter, merged] = ["adapter", "merged"].map(|name| format!("{}-{name}", written.display()));
        text(Command::new(stagecoach()).args(["checkpoint", "export", "--to", "hf", "--output", &adapter, &folder]));
        text(Command::new(stagecoach()).args(["checkpoint", "merge", "--output", &merged, &folder]));
        let after = continue_alike(Path::new(&merged));
        assert_ne!(after, before, "{model_type}: training changed nothing");
        let arguments = ["adapter", &written.display().to_string(), &adapter, TOKENS];
        let expected: Vec<String> = serde_json::from_str(&python(&[&arguments, &PROMPTS[..]].concat())).unwrap();
        let expected: Vec<&str> = expected.iter().map(|text| text.trim()).collect();
        assert_eq!(after, expected, "{model_type} with PEFT's adapter");
        let generate = ["generate", &folder, "--prompt", PROMPTS[0], "--max-tokens", TOKENS, "--temperature", "0"];
        assert_eq!(text(Command::new(stagecoach()).args(generate)), after[0], "{model_type} from the job");
    }
}

#[test]
#[ignore = "needs a Python with transformers: make transformers"]
fn transformers_and_this_trainer_open_each_others_models() {
    let workspace = corpus::workspace();
    let path = workspace.path();
    for model_type in model_types() {
        let written = path.join(model_type);
        python(&["make", model_type, &hugging_face().display().to_string(), &written.display().to_string()]);
        let before = continue_alike(&written);

        let folder =
            train(path, &format!("trained-{model_type}"), model_type, &["--set", "training.learningRate={peak: 2e-4}"]);
        let checkpoint = folder.join("checkpoints/step-00000020");
        let after = continue_alike(&checkpoint);
        assert_ne!(after, before, "{model_type}: training changed nothing");
        for to in ["hf", "single-file"] {
            let exported = path.join(format!("{model_type}-{to}"));
            let output = if to == "hf" { exported.clone() } else { exported.join("model.safetensors") };
            if to == "single-file" {
                std::fs::create_dir(&exported).unwrap();
                for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
                    std::fs::copy(checkpoint.join(name), exported.join(name)).unwrap();
                }
            }
            let output = output.display().to_string();
            let export = ["checkpoint", "export", "--to", to, "--output", &output, &folder.display().to_string()];
            text(Command::new(stagecoach()).args(export));
            assert_eq!(continue_alike(&exported), after, "{model_type} as {to}");
        }
    }
}
