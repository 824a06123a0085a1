//! Compares masks with masks written by hand, for each family with and without generation blocks.

use serde_json::{Value, json};
use stagecoach_chat::{Conversation, ConversationError};

use crate::common::*;

const TURNS: [(&str, &str); 4] =
    [("user", "Hello world"), ("assistant", "Hello you"), ("user", "2+2?"), ("assistant", "4")];

/// Checks the text of a conversation, and the texts that are trained on: `blocks` with generation blocks, and `turns`
/// without generation blocks.
#[track_caller]
fn check(name: &'static str, record: &Value, text: &str, blocks: &[&str], turns: &[&str]) {
    let family = family(name);
    let conversation = Conversation::chat(record).unwrap();
    for (has_generation, trained) in [(true, blocks), (false, turns)] {
        let tokens = family.chat(has_generation).tokens(&conversation).unwrap();
        let (all, runs) = spelled(&family.tokenizer(), &tokens);
        assert_eq!(all, text, "{name}");
        assert_eq!(runs, trained, "{name}, {has_generation}");
    }
}

#[test]
fn chatml() {
    let text = "<|im_start|>user\nHello world<|im_end|>\n<|im_start|>assistant\nHello you<|im_end|>\n\
                <|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n";
    let trained = ["Hello you<|im_end|>\n", "4<|im_end|>\n"];
    check("chatml", &record(&TURNS), text, &trained, &trained);
}

#[test]
fn qwen_with_its_default_system_prompt() {
    let text = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n\
                <|im_start|>user\nHello world<|im_end|>\n<|im_start|>assistant\nHello you<|im_end|>\n\
                <|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n";
    let with_line_ends = ["Hello you<|im_end|>\n", "4<|im_end|>\n"];
    check("qwen2.5", &record(&TURNS), text, &["Hello you<|im_end|>", "4<|im_end|>"], &with_line_ends);
}

#[test]
fn qwen_with_tools() {
    let call = json!({"type": "function", "function": {"name": "sum", "arguments": {"b": [2.0, "é"], "a": null}}});
    let record = json!({
        "messages": [
            {"role": "system", "content": "Calculate."},
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "content": "4"},
            {"role": "tool", "content": "four"},
            {"role": "assistant", "content": "4"},
        ],
        "tools": [{"type": "function", "function": {"name": "sum", "parameters": {"type": "object", "properties": {}}}}],
    });
    let text = "<|im_start|>system\nCalculate.\n\n# Tools\n\nThe functions are:\n<tools>\n{\"type\": \"function\", \"function\": \
                {\"name\": \"sum\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}}\n</tools><|im_end|>\n\
                <|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"sum\", \"arguments\": \
                {\"b\": [2.0, \"é\"], \"a\": null}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n4\n\
                </tool_response>\n<tool_response>\nfour\n</tool_response><|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n";
    let call =
        "<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"b\": [2.0, \"é\"], \"a\": null}}\n</tool_call><|im_end|>";
    check("qwen2.5", &record, text, &[call, "4<|im_end|>"], &[&format!("{call}\n"), "4<|im_end|>\n"]);
}

/// A row of a table has null where a message lacks a field.
#[test]
fn a_field_that_is_null_is_none() {
    let call = json!({"type": "function", "function": {"name": "sum", "arguments": {"x": null}}});
    let lacks = |nulls: bool| {
        let mut messages = json!([
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "4"},
            {"role": "assistant", "content": "4"},
        ]);
        for message in messages.as_array_mut().unwrap().iter_mut().filter(|_| nulls) {
            for name in ["content", "tool_calls", "name", "reasoning_content", "thinking"] {
                message.as_object_mut().unwrap().entry(name).or_insert(Value::Null);
            }
        }
        Conversation::chat(&json!({"messages": messages})).unwrap()
    };
    for (name, has_generation) in ["llama3", "qwen2.5"].into_iter().flat_map(|name| [(name, true), (name, false)]) {
        let chat = family(name).chat(has_generation);
        let expected = chat.tokens(&lacks(false));
        assert!(expected.is_ok(), "{expected:?}");
        assert_eq!(chat.tokens(&lacks(true)), expected, "{name}");
    }
    // this template writes the content without a test of its value
    let family = family("chatml");
    let template = "{% for m in messages %}[{{ m.content }}{{ m.name }}]{% endfor %}";
    let ids = chat(template, family.settings(), &family.tokenizer()).prompt(&lacks(true)).unwrap();
    assert_eq!(family.tokenizer().decode(&ids, false).unwrap(), "[2+2?][][4][4]");
}

#[test]
fn qwen_with_thoughts() {
    let turns = [("user", "2+2?"), ("assistant", "<think>\ntwo, four\n</think>\n\n4")];
    let text = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>\ntwo, four\n</think>\n\n4<|im_end|>\n";
    let trained = "<think>\ntwo, four\n</think>\n\n4<|im_end|>";
    check("qwen3", &record(&turns), text, &[trained], &[&format!("{trained}\n")]);
    let as_field = json!({"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4", "reasoning": "two, four"}]});
    check("qwen3", &as_field, text, &[trained], &[&format!("{trained}\n")]);

    // the template removes earlier thoughts: a generation block still marks the trained text, and without blocks the
    // turn is refused
    let turns = [turns[0], turns[1], ("user", "Hello"), ("assistant", "Hello you")];
    let family = family("qwen3");
    let tokens = family.chat(true).tokens(&conversation(&turns)).unwrap();
    let (text, trained) = spelled(&family.tokenizer(), &tokens);
    let first =
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n";
    assert_eq!(text, [first, "<|im_start|>assistant\n<think>\n\n</think>\n\nHello you<|im_end|>\n"].concat());
    assert_eq!(trained, ["4<|im_end|>", "<think>\n\n</think>\n\nHello you<|im_end|>"]);
    // the second turn has no end, because a conversation that is cut there keeps the thoughts of this turn
    assert_eq!(tokens.turn_ends.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, true]);
    let (turn, problem) = unproven(family.chat(false).tokens(&conversation(&turns)));
    assert_eq!(turn, 2);
    assert!(
        problem.contains("renders earlier messages differently") && problem.contains("{% generation %}"),
        "{problem}"
    );
}

#[test]
fn llama_with_a_date() {
    let text = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n\
                Today Date: 04 Jul 2026\n\nBe kind.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHello world<|eot_id|>\
                <|start_header_id|>assistant<|end_header_id|>\n\nHello you<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n\
                2+2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n4<|eot_id|>";
    let turns = [&[("system", " Be kind.\n")], &TURNS[..]].concat();
    let trained = ["Hello you<|eot_id|>", "4<|eot_id|>"];
    check("llama3", &record(&turns), text, &trained, &trained);
}

#[test]
fn mistral() {
    let turns = [&[("system", "Be kind.")], &TURNS[..]].concat();
    let text = "<s>[INST] Be kind.\n\nHello world [/INST] Hello you</s>[INST] 2+2? [/INST] 4</s>";
    let trained = [" Hello you</s>", " 4</s>"];
    check("mistral", &record(&turns), text, &trained, &trained);
}

#[test]
fn gemma() {
    let text = "<bos><start_of_turn>user\nHello world<end_of_turn>\n<start_of_turn>model\nHello you<end_of_turn>\n\
                <start_of_turn>user\n2+2?<end_of_turn>\n<start_of_turn>model\n4<end_of_turn>\n";
    let trained = ["Hello you<end_of_turn>\n", "4<end_of_turn>\n"];
    check("gemma", &record(&TURNS), text, &trained, &trained);
    let mut parts = record(&TURNS);
    parts["messages"][1]["content"] = json!([{"type": "text", "text": "Hello"}, {"type": "text", "text": " you"}]);
    check("gemma", &parts, text, &trained, &trained);

    let refused = family("gemma").chat(true).tokens(&conversation(&[("system", "Be kind.")])).unwrap_err();
    assert!(
        matches!(&refused, ConversationError::Template { problem } if problem.starts_with("Gemma has no system role")),
        "{refused}"
    );
}

#[test]
fn phi() {
    // a space precedes each text between special tokens, and a special token includes the line ends after it
    let text = "<|user|> Hello world<|end|><|assistant|> Hello you<|end|><|user|> 2+2?<|end|><|assistant|> 4<|end|>";
    let trained = [" Hello you<|end|>", " 4<|end|>"];
    check("phi3", &record(&TURNS), text, &trained, &trained);
    // the special token before the turn also includes white space at the start of the turn
    for has_generation in [true, false] {
        let turns = [("user", "Hello"), ("assistant", "you"), ("user", "2+2?"), ("assistant", "\n4")];
        let (turn, problem) = unproven(family("phi3").chat(has_generation).tokens(&conversation(&turns)));
        assert_eq!(turn, 4);
        assert!(problem.contains("\"<|assistant|>\\n\\n\" crosses the border of the turn"), "{problem}");
    }
}

#[test]
fn both_variants_of_a_template_write_the_same() {
    for name in FAMILIES {
        let family = family(name);
        let ids =
            [true, false].map(|has_generation| family.chat(has_generation).prompt(&conversation(&TURNS)).unwrap());
        assert_eq!(ids[0], ids[1], "{name}");
    }
}

#[test]
fn a_conversation_is_cut_at_the_end_of_a_turn() {
    for name in FAMILIES {
        let family = family(name);
        let chat = family.chat(true);
        let whole = chat.tokens(&conversation(&TURNS)).unwrap();
        assert_eq!(whole.turn_ends[3], Some(whole.ids.len()), "{name}");
        let end = whole.turn_ends[1];
        let cut = chat.tokens(&conversation(&TURNS[..2])).unwrap();
        match end {
            Some(end) => {
                assert_eq!((&whole.ids[..end], &whole.trained[..end]), (&cut.ids[..], &cut.trained[..]), "{name}")
            }
            None => assert_eq!(name, "qwen3"),
        }
    }
}

#[test]
fn unusual_orders_of_turns() {
    let chat = |turns: &[(&str, &str)]| {
        let family = family("chatml");
        let tokens = [true, false].map(|has_generation| family.chat(has_generation).tokens(&conversation(turns)));
        let spelled = tokens.map(|tokens| tokens.map(|tokens| spelled(&family.tokenizer(), &tokens).1));
        assert_eq!(spelled[0], spelled[1]);
        spelled[0].clone()
    };
    let [user, assistant] = ["user", "assistant"];
    assert_eq!(chat(&[(assistant, "a")]).unwrap(), ["a<|im_end|>\n"]);
    assert_eq!(chat(&[(assistant, "a"), (assistant, "b")]).unwrap(), ["a<|im_end|>\n", "b<|im_end|>\n"]);
    assert_eq!(chat(&[(user, "a"), (assistant, ""), (user, "b")]).unwrap(), ["<|im_end|>\n"]);
    assert_eq!(chat(&[("tool", "a"), (assistant, "b"), ("tool", "c")]).unwrap(), ["b<|im_end|>\n"]);
    assert_eq!(chat(&[(user, "a")]), Err(ConversationError::NothingTrained));
}

#[test]
fn a_header_is_never_trained_on() {
    let family = family("chatml");
    let tokens = |template: &str, turns: &[(&str, &str)]| {
        chat(template, family.settings(), &family.tokenizer()).tokens(&conversation(turns))
    };
    // this template ignores add_generation_prompt
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    assert!(unproven(tokens(template, &TURNS)).1.contains("no header for add_generation_prompt"));
    // this template has no header: the turn begins with its content, unless the content is empty
    let template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}";
    assert_eq!(
        spelled(&family.tokenizer(), &tokens(template, &TURNS).unwrap()).1,
        ["Hello you<|im_end|>", "4<|im_end|>"]
    );
    assert_eq!(unproven(tokens(template, &[("user", "a"), ("assistant", "")])).0, 2);
    // with this template, the header alone has other tokens than the header before the content
    let template = "{% for m in messages %}{{ m.role }}:  {{ m.content }}{% endfor %}{% if add_generation_prompt \
                    %}assistant:  {% endif %}";
    assert!(
        unproven(tokens(template, &[("user", "a"), ("assistant", "é")]))
            .1
            .contains("has other tokens if it is encoded without")
    );
    // with this template, a token crosses the start of the content
    let template = "{% for m in messages %}{{ m.role }} the{{ m.content }}{% endfor %}{% if add_generation_prompt \
                    %}assistant t{% endif %}";
    assert!(unproven(tokens(template, &TURNS[..2])).1.contains("\" the\" crosses the border of the turn"));
    let template =
        "{% for m in messages %}{{ m.role }} t{% generation %}he{{ m.content }}{% endgeneration %}{% endfor %}";
    let refused = tokens(template, &TURNS[..2]).unwrap_err();
    assert!(
        matches!(&refused, ConversationError::Block { number: 1, problem } if problem.contains("\" the\"")),
        "{refused}"
    );
}

#[test]
fn the_white_space_of_a_token_counts() {
    // this tokenizer's post-processor would exclude the space from the range of " the"
    let family = family("llama3");
    let template =
        "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    let chat = chat(template, family.settings(), &family.tokenizer());
    let refused = chat.tokens(&conversation(&[("assistant", "the")]));
    assert!(unproven(refused).1.contains("\" the\" crosses the border of the turn"));
}

#[test]
fn prompts_with_completions() {
    let family = family("chatml");
    let check = |record: Value, text: &str, trained: &[&str]| {
        let conversation = Conversation::prompt_completion(&record).unwrap();
        for has_generation in [true, false] {
            let tokens = family.chat(has_generation).tokens(&conversation).unwrap();
            let (all, runs) = spelled(&family.tokenizer(), &tokens);
            assert_eq!((&*all, &runs.iter().map(String::as_str).collect::<Vec<_>>()[..]), (text, trained));
        }
    };
    check(json!({"prompt": "2+2=", "completion": " 4<|im_end|>"}), "2+2= 4<|im_end|>", &[" 4<|im_end|>"]);
    let message = |role, content| json!({"role": role, "content": content});
    let prompt = json!([message("user", "a"), message("assistant", "b"), message("user", "c")]);
    let completion = json!([message("assistant", "d"), message("tool", "e"), message("assistant", "f")]);
    let text = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n\
                <|im_start|>assistant\nd<|im_end|>\n<|im_start|>tool\ne<|im_end|>\n<|im_start|>assistant\nf<|im_end|>\n";
    check(json!({"prompt": prompt, "completion": completion}), text, &["d<|im_end|>\n", "f<|im_end|>\n"]);

    let refused = |prompt: &str, completion: &str| {
        let record = json!({"prompt": prompt, "completion": completion});
        family.chat(true).tokens(&Conversation::prompt_completion(&record).unwrap())
    };
    assert!(unproven(refused("Hel", "lo")).1.contains("\"Hello\" crosses the border of the turn"));
    assert_eq!(refused("Hello", ""), Err(ConversationError::NothingTrained));
}
