//! Jobs that train on conversations: the result is the same after any fault and for every number of stages and
//! replicas.

use std::path::Path;

use serde_json::{Value, json};
use stagecoach_tests::{Hashes, Launched, Outcome, TestJob, corpus, hugging_face, run, says, signal, text};

const TEMPLATE: &str = "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools') }}\
    {% endif %}[BOT]{{ message.role }}\n{{ message.content }}[EOT]{% endfor %}\
    {% if add_generation_prompt %}[BOT]assistant\n{% endif %}";

/// Returns conversations of one or two questions with their answers. Some conversations are longer than a sequence, and
/// the template refuses others.
fn conversations() -> String {
    let texts = corpus::jsonl(400, 4, 12);
    let texts: Vec<Value> =
        texts.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["text"].clone()).collect();
    let conversation = |(number, texts): (usize, &[Value])| {
        let roles = if number % 9 == 8 { ["tool", "assistant"] } else { ["user", "assistant"] };
        let messages = texts.iter().enumerate().map(|(at, text)| json!({"role": roles[at % 2], "content": text}));
        let count = if number % 3 == 0 { 4 } else { 2 };
        format!("{}\n", json!({"messages": messages.take(count).collect::<Vec<_>>()}))
    };
    texts.chunks(4).enumerate().map(conversation).collect()
}

pub(crate) fn workspace() -> tempfile::TempDir {
    let workspace = corpus::workspace();
    let model = workspace.path().join("model");
    std::fs::create_dir_all(&model).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(hugging_face().join(name), model.join(name)).unwrap();
    }
    std::fs::write(model.join("chat_template.jinja"), TEMPLATE).unwrap();
    std::fs::write(workspace.path().join("corpus/chat.jsonl"), conversations()).unwrap();
    workspace
}

pub(crate) fn job(mode: &str) -> TestJob {
    TestJob {
        name: "chat".into(),
        corpus: format!(
            "paths: [corpus/chat.jsonl]\n    format: Chat\n    onLongConversation: Truncate\n    onBadRecord: Skip\n    \
             streaming: {{mode: {mode}, windowSequences: 24}}"
        ),
        steps: 60,
        decay_steps: Some(60),
        gradient_blocks: 2,
        extra: "  checkpoint: {everySteps: 5, keepLast: 2}\n  restart: {backoff: {initialSeconds: 0}}\n".into(),
        ..TestJob::default()
    }
}

const TOKENIZER: [&str; 4] =
    ["--set", "data.tokenizer={type: File, file: {path: model/tokenizer.json}}", "--set", "data.sequenceLength=56"];

pub(crate) fn start(workspace: &Path, job: &TestJob) -> Launched {
    Launched::start(workspace, job, &TOKENIZER)
}

pub(crate) fn finished(launched: Launched, workspace: &Path) -> (Hashes, Outcome) {
    let outcome = launched.finish(workspace);
    (outcome.hashes(), outcome)
}

#[test]
fn the_results_depend_neither_on_the_layout_nor_on_what_dies() {
    for mode in ["Never", "Always"] {
        let alone = workspace();
        let (expected, outcome) = finished(start(alone.path(), &TestJob { stages: 1, ..job(mode) }), alone.path());
        says(&outcome, "refused by the chat template; in corpus/chat.jsonl");
        says(&outcome, "cut at the end of a turn");

        let workspace = workspace();
        let workspace = workspace.path();
        let mut launched = start(workspace, &job(mode).endless());
        launched.wait_for_step(7);
        signal(launched.wait_for_stages(3)[0], libc::SIGKILL);
        launched.wait_for_restart(workspace);
        launched.wait_for_step(12);
        signal(launched.wait_for_stages(3)[2], libc::SIGKILL);
        launched.wait_for_restart(workspace);
        launched.wait_for_step(17);
        launched.interrupt(workspace);
        // the job resumes with an empty token cache, and with other numbers of stages and replicas
        std::fs::remove_dir_all(workspace.join("cache")).unwrap();
        let other = TestJob { stages: 2, data_parallel: 2, ..job(mode) };
        let (found, _) = finished(start(workspace, &other), workspace);
        assert_eq!(found, expected, "{mode}");
    }
}

#[test]
fn data_show_marks_what_is_trained_on() {
    let workspace = workspace();
    let workspace = workspace.path();
    let file = workspace.join("job.yaml");
    std::fs::write(&file, job("Never").yaml()).unwrap();
    let show = |arguments: &[&str]| {
        let always = ["data", "show", text(&file), "--workspace", text(workspace)];
        run(&[&always[..], &TOKENIZER, arguments].concat())
    };
    let (code, shown) = show(&["--document", "2"]);
    let second: Value = serde_json::from_str(conversations().lines().nth(1).unwrap()).unwrap();
    let content = |message: usize| second["messages"][message]["content"].as_str().unwrap();
    let expected = format!("[BOT]user\n{}[EOT][BOT]assistant\n⟦{}[EOT]⟧\n\n", content(0), content(1));
    assert!(code == Some(0) && shown.starts_with("document 2: corpus/chat.jsonl:2, "), "{shown}");
    assert!(shown.ends_with(&expected), "{shown}\n{expected}");
    let (code, shown) = show(&[]);
    assert!(code == Some(0) && shown.matches("document ").count() == 5, "{shown}");
    let (code, shown) = show(&["--document", "1000"]);
    assert!(code != Some(0) && shown.contains("there is no document 1000: the corpus has 89 with tokens"), "{shown}");
}
