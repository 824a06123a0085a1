//! Tests records that are not conversations, and templates and tokenizers that can't be used.

use serde_json::{Value, json};
use stagecoach_chat::{ChatTemplate, Conversation, ConversationError, SetupError, TemplateSettings, Vocabulary};
use tokenizers::{AddedToken, Tokenizer};

use crate::common::*;

#[track_caller]
fn refused(record: Value, expected: &str) {
    assert_eq!(Conversation::chat(&record).unwrap_err().to_string(), expected);
}

#[test]
fn records_that_are_no_conversations() {
    let list = "expected a list of messages with role and content";
    refused(json!({"text": "x", "id": 1}), &format!("the record has no field messages, only text, id: {list}"));
    refused(json!({}), &format!("the record has no field messages: {list}"));
    refused(json!(7), &format!("the record has no field messages (it is a number): {list}"));
    refused(json!({"messages": []}), &format!("messages is an empty list: {list}"));
    refused(json!({"messages": "x"}), &format!("messages is a text: {list}"));
    refused(json!({"messages": [7]}), "message 1 is a number: expected an object with role and content");
    let role = "expected a role such as user or assistant";
    let after = |message: Value| json!({"messages": [{"role": "user", "content": "x"}, message]});
    refused(after(json!({"content": "x"})), &format!("message 2 has no role: {role}"));
    refused(after(json!({"role": 7, "content": "x"})), &format!("message 2 has a role that is a number: {role}"));
    refused(after(json!({"role": "", "content": "x"})), &format!("message 2 has an empty role: {role}"));
    let allowed = "of letters, digits, _, - and spaces";
    refused(
        after(json!({"role": "<|a", "content": "x"})),
        &format!("message 2 has the role \"<|a\": {role}, {allowed}"),
    );
    let content = "expected a text, or a list of parts of type text";
    refused(after(json!({"role": "user"})), &format!("message 2 (user) has no content: {content}"));
    refused(
        after(json!({"role": "user", "content": null})),
        &format!("message 2 (user) has a content that is null: {content}"),
    );
    let part = "expected {\"type\": \"text\", \"text\": ...}";
    let parts = |part: Value| after(json!({"role": "user", "content": [{"type": "text", "text": ""}, part]}));
    refused(
        parts(json!({"type": "image"})),
        &format!("message 2 (user), part 2 is of type \"image\", and only text can be trained on: {part}"),
    );
    refused(parts(json!("x")), &format!("message 2 (user), part 2 has no type: {part}"));
    refused(parts(json!({"type": "text"})), &format!("message 2 (user), part 2 has a text that is null: {part}"));
    let mut tools = record(&[("user", "x")]);
    tools["tools"] = json!(["x"]);
    refused(tools, "tools has a text in its list: expected a list of objects, or none");
    let mark = "contains the character U+100007: characters from U+100000 on mark text while a template is rendered, \
                so remove it";
    refused(after(json!({"role": "user", "content": "x\u{100007}"})), &format!("message 2 (user) {mark}"));
}

#[test]
fn records_that_are_no_prompts() {
    let refused = |record: Value| Conversation::prompt_completion(&record).unwrap_err().to_string();
    assert_eq!(
        refused(json!({"prompt": "x", "completion": []})),
        "prompt is a text and completion is a list: write both as texts, or both as lists of messages"
    );
    assert!(refused(json!({"prompt": "x"})).starts_with("prompt is a text: expected a list of messages"));
    assert!(refused(json!({"completion": "x"})).starts_with("the record has no field prompt"));
    assert!(
        refused(json!({"prompt": "\u{10FFFD}", "completion": ""}))
            .starts_with("prompt contains the character U+10FFFD")
    );
}

#[test]
fn a_template_that_writes_the_date_needs_one() {
    let family = family("llama3");
    let settings = TemplateSettings { date: None, ..family.settings() };
    let chat = chat(&family.template(true), settings, &family.tokenizer());
    let refused = chat.tokens(&conversation(&[("user", "x"), ("assistant", "y")])).unwrap_err();
    assert_eq!(refused, ConversationError::NoDate);
    assert!(refused.to_string().contains("data.chatDate"), "{refused}");
}

#[test]
fn templates_that_are_none() {
    let refused = |template| {
        ChatTemplate::new(template, TemplateSettings::default()).err().map(|error| error.to_string()).unwrap()
    };
    assert!(refused("{% if %}").contains("(line 1)"), "{}", refused("{% if %}"));
    assert!(refused("{% generation %}x").contains("can't be compiled"));
    assert!(refused("{% endgeneration %}").contains("can't be compiled"));
    assert!(refused("\u{100000}").starts_with("the chat template contains the character U+100000"));
}

#[test]
fn tokenizers_whose_special_tokens_have_no_place() {
    let refused = |token: AddedToken, normalizer: Value| {
        let mut definition = family("chatml").definition;
        definition["normalizer"] = normalizer;
        let mut tokenizer = Tokenizer::from_bytes(definition.to_string()).unwrap();
        tokenizer.add_special_tokens([token]).unwrap();
        Vocabulary::new(&tokenizer).err().unwrap()
    };
    let token = |text: &str| AddedToken::from(text, true);
    for (found, field) in [
        (refused(token("<x>").normalized(true), json!({"type": "Lowercase"})), "`normalized`"),
        (refused(token("<x>").single_word(true), Value::Null), "`single_word`"),
        (refused(token(" \n"), Value::Null), "`special`"),
    ] {
        assert!(matches!(found, SetupError::SpecialToken { .. }) && found.to_string().contains(field), "{found}");
    }
    assert!(matches!(refused(token("<\u{100000}>"), Value::Null), SetupError::Mark(_)));
}

#[test]
fn a_chat_is_shared_by_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<stagecoach_chat::Chat>();
}
