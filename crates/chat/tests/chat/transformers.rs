//! Compares ids and masks with those of Hugging Face's transformers, for random conversations. `make transformers` runs
//! these tests with the Python that they need.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use stagecoach_chat::{Chat, Conversation, ConversationError};

use crate::common::*;
use crate::templates::{SNIPPETS, sample};

/// The number of conversations with each result. `trained` is the number of tokens that are trained on.
#[derive(Debug, Default)]
struct Counts {
    equal: usize,
    trained: usize,
    refused_by_the_template: usize,
    crossed_by_a_token: usize,
    without_blocks: usize,
    unproven_without_blocks: usize,
}

/// Returns the roles of random conversations, and the features that messages have in addition to texts.
fn features(name: &str) -> (&[&str], &[&str]) {
    match name {
        "gemma" => (&["user", "assistant"], &["parts"]),
        "llama3" | "qwen2.5" => (&["user", "assistant", "system", "tool"], &["calls"]),
        "qwen3" => (&["user", "assistant", "system"], &["thoughts"]),
        _ => (&["user", "assistant", "system"], &[]),
    }
}

/// The chat templates of published models to which TRL, Hugging Face's library for fine-tuning, adds generation blocks.
/// Each pair has the name of a template, and the family whose tokenizer these tests use with it.
const OF_MODELS: [(&str, &str); 8] = [
    ("gemma", "gemma"),
    ("gemma3", "gemma"),
    ("llama3", "llama3"),
    ("phi3", "phi3"),
    ("phi3_5", "phi3"),
    ("qwen2_5", "qwen2.5"),
    ("qwen3", "qwen3"),
    ("qwen3_instruct_2507", "qwen3"),
];

/// Writes a family's tokenizer, template and settings to a folder, for the Python script.
fn write(family: &TokenizerFamily, template: &str, folder: &Path) {
    let (roles, features) = features(family.name);
    let settings = json!({"date": "2026-07-04", "named": family.named, "roles": roles, "features": features});
    fs::create_dir(folder).unwrap();
    fs::write(folder.join("tokenizer.json"), family.definition.to_string()).unwrap();
    fs::write(folder.join("template.jinja"), template).unwrap();
    fs::write(folder.join("settings.json"), settings.to_string()).unwrap();
}

fn numbers(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Runs the Python script on the folders in `made`. Returns a function that reads the conversations of a folder.
fn expected(made: &Path) -> impl Fn(&str) -> Vec<Value> {
    let python =
        std::env::var("STAGECOACH_TRANSFORMERS").expect("the Python with transformers: see `make transformers`");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hugging_face/chat_templates.py");
    assert!(Command::new(python).arg(script).arg(made).status().unwrap().success());
    move |name| serde_json::from_slice(&fs::read(made.join(name).join("expected.json")).unwrap()).unwrap()
}

/// Compares a conversation with the result of transformers.
fn compare(family: &TokenizerFamily, with_blocks: &Chat, without: Option<&Chat>, case: &Value, counts: &mut Counts) {
    let record = &case["record"];
    let conversation = Conversation::chat(record).unwrap();
    let found = with_blocks.tokens(&conversation);
    if let Some(error) = case["error"].as_str() {
        assert!(
            matches!(found, Err(ConversationError::Template { .. })),
            "{}: {record}: {error}: {found:?}",
            family.name
        );
        counts.refused_by_the_template += 1;
        return;
    }
    let (ids, mask) = (numbers(&case["ids"]), numbers(&case["mask"]));
    assert_eq!(with_blocks.prompt(&conversation).unwrap(), numbers(&case["prompt"]), "{}: {record}", family.name);
    match &found {
        Ok(tokens) => {
            let trained: Vec<u32> = tokens.trained.iter().map(|&trained| trained.into()).collect();
            assert_eq!((&tokens.ids, &trained), (&ids, &mask), "{}: {record}", family.name);
            assert_eq!(case["crosses"], false, "{}: {record}", family.name);
            counts.equal += 1;
            counts.trained += trained.iter().filter(|&&trained| trained == 1).count();
        }
        Err(ConversationError::NothingTrained) => assert!(!mask.contains(&1), "{}: {record}", family.name),
        Err(refused) => {
            assert!(case["crosses"] == true, "{}: {record}: {refused}", family.name);
            counts.crossed_by_a_token += 1;
        }
    }
    let Some(without) = without else { return };
    match without.tokens(&conversation) {
        Ok(tokens) => {
            assert_eq!(tokens.ids, ids, "{}: {record}", family.name);
            counts.without_blocks += 1;
        }
        Err(ConversationError::NothingTrained) => assert!(!mask.contains(&1), "{}: {record}", family.name),
        Err(_) => counts.unproven_without_blocks += 1,
    }
}

#[test]
#[ignore = "needs a Python with transformers: make transformers"]
fn ids_and_masks_are_those_of_transformers() {
    let made = tempfile::tempdir().unwrap();
    for name in FAMILIES {
        let family = family(name);
        write(&family, &family.template(true), &made.path().join(name));
    }
    let expected = expected(made.path());
    for name in FAMILIES {
        let (family, cases) = (family(name), expected(name));
        let [with_blocks, without] = [true, false].map(|has_generation| family.chat(has_generation));
        let mut counts = Counts::default();
        for case in &cases {
            compare(&family, &with_blocks, Some(&without), case, &mut counts);
        }
        println!("{name}: {} conversations: {counts:?}", cases.len());
        assert_eq!(counts.equal, 200, "{name}: {counts:?}");
    }
}

#[test]
#[ignore = "needs a Python with transformers, and TRL's templates: make transformers"]
fn templates_of_models_give_what_transformers_gives() {
    let folder = std::env::var("STAGECOACH_CHAT_TEMPLATES").expect("TRL's templates: see `make transformers`");
    let template = |name: &str| fs::read_to_string(Path::new(&folder).join(format!("{name}_training.jinja"))).unwrap();
    let made = tempfile::tempdir().unwrap();
    for (name, of) in OF_MODELS {
        write(&family(of), &template(name), &made.path().join(name));
    }
    let expected = expected(made.path());
    for (name, of) in OF_MODELS {
        let (family, cases) = (family(of), expected(name));
        let chat = chat(&template(name), family.settings(), &family.tokenizer());
        let mut counts = Counts::default();
        for case in &cases {
            compare(&family, &chat, None, case, &mut counts);
        }
        println!("{name}: {} conversations: {counts:?}", cases.len());
        assert_eq!(counts.equal, 200, "{name}: {counts:?}");
    }
}

const RENDER: &str = "
import datetime, json, sys
from transformers.utils import chat_template_utils

class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 7, 4)

chat_template_utils.datetime = Fixed
sample, templates = json.load(sys.stdin)
render = chat_template_utils.render_jinja_template
print(json.dumps([render([sample['messages']], sample['tools'], chat_template=template)[0][0] for template in templates]))
";

#[test]
#[ignore = "needs a Python with transformers: make transformers"]
fn transformers_renders_the_same() {
    let python =
        std::env::var("STAGECOACH_TRANSFORMERS").expect("the Python with transformers: see `make transformers`");
    let (templates, expected): (Vec<&str>, Vec<&str>) = SNIPPETS.iter().copied().unzip();
    let input = json!([sample(), templates]).to_string();
    let mut child =
        Command::new(python).args(["-c", RENDER]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let rendered: Vec<String> = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    for (template, (by_transformers, expected)) in templates.iter().zip(rendered.iter().zip(expected)) {
        assert_eq!(by_transformers, expected, "{template}");
    }
}
