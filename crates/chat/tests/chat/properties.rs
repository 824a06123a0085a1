//! Tests random templates, tokenizers and conversations, whose masks are known by construction. The chat must return
//! the known mask, or refuse the conversation for a reason that is also known by construction.

use proptest::prelude::*;
use serde_json::json;
use stagecoach_chat::{Chat, Conversation, ConversationError, RequestedTokens, Tokens};
use tokenizers::{PostProcessorWrapper, Tokenizer};

use crate::common::*;

/// The part of a turn that a generation block encloses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    None,
    Content,
    ContentAndEnd,
}

/// A template that writes `start` once, and then `header content end` for each message. In `header`, `@` stands for the
/// role.
#[derive(Clone, Debug)]
struct Shape {
    start: String,
    header: String,
    end: String,
    block: Block,
    /// The white-space control signs in the block's tags.
    signs: (&'static str, &'static str),
    /// Whether the template removes white space at the ends of a content.
    strips: bool,
    /// Whether the template removes the text of earlier messages up to the last `the`.
    forgets: bool,
    /// Whether the template writes a header for `add_generation_prompt`.
    prompts: bool,
}

/// A part of a rendered conversation, and whether the assistant writes it.
type Part = (String, bool);
type Turn = (&'static str, String);

impl Shape {
    fn template(&self) -> String {
        let literal = |text: &str| json!(text).to_string();
        let header = format!("{} | replace('@', m.role)", literal(&self.header));
        let content =
            if self.forgets { "(m.content if loop.last else m.content.split('the')[-1])" } else { "m.content" };
        let content = format!("{{{{ {content}{} }}}}", if self.strips { " | trim" } else { "" });
        let end = format!("{{{{ {} }}}}", literal(&self.end));
        let (before, after) = self.signs;
        let in_block = |text: &str| {
            let open = format!("{{%{before} generation {after}%}}");
            let close = format!("{{%{before} endgeneration {after}%}}");
            format!("{{% if m.role == 'assistant' %}}{open}{text}{close}{{% else %}}{text}{{% endif %}}")
        };
        let written = match self.block {
            Block::None => content + &end,
            Block::Content => in_block(&content) + &end,
            Block::ContentAndEnd => in_block(&(content + &end)),
        };
        let prompt = match self.prompts {
            true => format!(
                "{{% if add_generation_prompt %}}{{{{ {} }}}}{{% endif %}}",
                literal(&self.header_of("assistant"))
            ),
            false => String::new(),
        };
        format!(
            "{{{{ {} }}}}{{% for m in messages %}}{{{{ {header} }}}}{written}{{% endfor %}}{prompt}",
            literal(&self.start)
        )
    }

    fn header_of(&self, role: &str) -> String {
        self.header.replace('@', role)
    }

    fn content(&self, text: &str, is_last: bool) -> String {
        let kept = if self.forgets && !is_last { text.rsplit("the").next().unwrap() } else { text };
        if self.strips { kept.trim().to_owned() } else { kept.to_owned() }
    }

    /// Returns the parts of a rendered conversation. `from` is the first turn that is trained on.
    fn parts(&self, turns: &[Turn], from: usize) -> Vec<Part> {
        let mut parts = vec![(self.start.clone(), false)];
        for (index, (role, text)) in turns.iter().enumerate() {
            let is_trained = *role == "assistant" && index >= from;
            parts.push((self.header_of(role), false));
            parts.push((self.content(text, index + 1 == turns.len()), is_trained));
            parts.push((self.end.clone(), is_trained && self.block != Block::Content));
        }
        parts
    }

    fn text(&self, turns: &[Turn]) -> String {
        self.parts(turns, 0).into_iter().map(|part| part.0).collect()
    }
}

/// A tokenizer as transformers uses it. If a text spells a special token, this tokenizer encodes the text as that
/// token.
struct Reference(Tokenizer);

impl Reference {
    fn ids(&self, text: &str) -> Vec<u32> {
        self.0.encode(text, false).unwrap().get_ids().to_vec()
    }

    /// Returns, for each token, whether the token is in a part that the assistant writes; `None` if a token crosses a
    /// border of such a part.
    fn mask(&self, parts: &[Part]) -> Option<Vec<bool>> {
        let mut spans = Vec::new();
        let mut text = String::new();
        for (part, is_trained) in parts {
            let start = text.len();
            text.push_str(part);
            spans.push((start..text.len(), *is_trained && !part.is_empty()));
        }
        let encoding = self.0.encode(text, false).unwrap();
        let joined: Vec<_> = spans.into_iter().filter(|span| span.1).map(|span| span.0).collect();
        // the content and the end of a turn have no border between them
        let mut trained: Vec<std::ops::Range<usize>> = Vec::new();
        for span in joined {
            match trained.last_mut() {
                Some(last) if last.end == span.start => last.end = span.end,
                _ => trained.push(span),
            }
        }
        let inside = |&(start, end): &(usize, usize)| {
            let is_inside = trained.iter().any(|span| span.start <= start && end <= span.end);
            let crosses = trained.iter().any(|span| start < span.end && span.start < end);
            (is_inside == crosses).then_some(is_inside)
        };
        encoding.get_offsets().iter().map(inside).collect()
    }

    /// Whether `text` begins with `prefix`, and `prefix` has the same tokens alone as at the beginning of `text`.
    fn has_border(&self, text: &str, prefix: &str) -> bool {
        let encoding = self.0.encode(text, false).unwrap();
        let (ids, alone) = (encoding.get_ids(), self.ids(prefix));
        let crosses = |&(start, end): &(usize, usize)| start < prefix.len() && prefix.len() < end;
        text.starts_with(prefix)
            && !encoding.get_offsets().iter().any(crosses)
            && ids.starts_with(&alone)
            && encoding.get_offsets().iter().take(alone.len()).all(|offsets| offsets.1 <= prefix.len())
    }
}

/// Whether the chat may refuse the conversation.
fn may_be_refused(shape: &Shape, reference: &Reference, turns: &[Turn], from: usize) -> bool {
    let text = shape.text(turns);
    let prefix = |count: usize| shape.text(&turns[..count]);
    let has_end = |count: usize| count == turns.len() || reference.has_border(&text, &prefix(count));
    if shape.block != Block::None {
        return from > 0 && !text.starts_with(&prefix(from))
            || reference.mask(&shape.parts(turns, from)).is_none()
            || touches(shape, turns, reference, from);
    }
    let unproven = |index: usize| {
        let header = if shape.prompts { shape.header_of("assistant") } else { String::new() };
        let (content, text_of_turn) = (shape.content(&turns[index].1, true), turns[index].1.trim());
        let turn = content + &shape.end;
        let has_no_header = header.is_empty()
            && (!shape.header.is_empty()
                || text_of_turn.is_empty()
                || turn.trim_start().find(text_of_turn) != Some(0)
                || turn.trim_start().rfind(text_of_turn) != Some(0));
        has_no_header || !has_end(index + 1) || !reference.has_border(&text, &(prefix(index) + &header))
    };
    (from..turns.len()).filter(|&index| turns[index].0 == "assistant").any(unproven)
}

/// Whether a token crosses the border between two adjacent blocks.
fn touches(shape: &Shape, turns: &[Turn], reference: &Reference, from: usize) -> bool {
    let parts = shape.parts(turns, from);
    let mut text = String::new();
    let mut borders = Vec::new();
    for (index, (part, is_trained)) in parts.iter().enumerate() {
        // a generation block starts where the content of a message starts
        borders.extend((*is_trained && index % 3 == 2).then_some(text.len()));
        text.push_str(part);
    }
    let encoding = reference.0.encode(text, false).unwrap();
    encoding.get_offsets().iter().any(|&(start, end)| borders.iter().any(|&border| start < border && border < end))
}

fn check(name: &'static str, shape: &Shape, turns: &[Turn], from: usize) {
    let family = family(name);
    let mut parsing = family.tokenizer();
    parsing.with_post_processor(None::<PostProcessorWrapper>);
    let reference = Reference(parsing);
    let chat: Chat = chat(&shape.template(), family.settings(), &family.tokenizer());
    let messages: Vec<_> = turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    let conversation = match from {
        0 => Conversation::chat(&json!({"messages": messages})),
        _ => Conversation::prompt_completion(&json!({"prompt": messages[..from], "completion": messages[from..]})),
    };
    let conversation = conversation.unwrap();
    let tokens = chat.tokens(&conversation);
    let without_ends = |tokens: Tokens| Some(Tokens { turn_ends: Vec::new(), ..tokens });
    assert_eq!(chat.wanted_tokens(&conversation, |_| RequestedTokens::Mask), tokens.clone().map(without_ends));
    match tokens {
        Ok(tokens) => {
            assert_eq!(tokens.ids, reference.ids(&shape.text(turns)));
            assert_eq!(Some(&tokens.trained), reference.mask(&shape.parts(turns, from)).as_ref());
            check_ends(shape, &reference, turns, &tokens);
        }
        Err(ConversationError::NothingTrained) => {
            let mask = reference.mask(&shape.parts(turns, from)).unwrap();
            assert!(!mask.contains(&true) || may_be_refused(shape, &reference, turns, from));
        }
        Err(refused) => assert!(may_be_refused(shape, &reference, turns, from), "{refused}"),
    }
}

/// Checks that a conversation that is cut at the end of a turn has the tokens of its first messages alone, and that
/// `tokens` has the end of each turn at which a cut is possible.
fn check_ends(shape: &Shape, reference: &Reference, turns: &[Turn], tokens: &Tokens) {
    assert_eq!(tokens.turn_ends.len(), turns.len());
    for (count, end) in (1..).zip(&tokens.turn_ends) {
        let text = shape.text(&turns[..count]);
        match end {
            Some(end) => assert_eq!(&tokens.ids[..*end], reference.ids(&text)),
            None => assert!(!reference.has_border(&shape.text(turns), &text)),
        }
    }
}

fn shape(specials: Vec<String>) -> impl Strategy<Value = Shape> {
    let special = || prop::sample::select(specials.clone());
    let start = prop_oneof![Just(String::new()), special(), Just("Hello".to_owned())];
    let plain =
        prop::sample::select(vec!["@:  ", "@: ", "@\n", "", "", " the@ t", "assistant "]).prop_map(str::to_owned);
    let header = prop_oneof![special().prop_map(|token| format!("{token}@\n")), special(), plain];
    let plain = prop::sample::select(vec!["\n", "", " ", "the", "."]).prop_map(str::to_owned);
    let end = prop_oneof![special(), special().prop_map(|token| token + "\n"), plain];
    let block = prop::sample::select(vec![Block::None, Block::None, Block::Content, Block::ContentAndEnd]);
    let signs = prop::sample::select(vec![("", ""), ("-", "-"), ("+", ""), ("-", "")]);
    let forgets = prop::sample::select(vec![false, false, false, true]);
    let prompts = prop::sample::select(vec![true, true, true, false]);
    (start, header, end, block, signs, any::<bool>(), forgets, prompts).prop_map(
        |(start, header, end, block, signs, strips, forgets, prompts)| Shape {
            start,
            header,
            end,
            block,
            signs,
            strips,
            forgets,
            prompts,
        },
    )
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let word = prop::sample::select(vec![
        "a",
        "the",
        " the",
        "Hello",
        " you",
        "\n",
        " ",
        "user",
        "assistant",
        ": ",
        ".",
        "é",
        "4",
    ]);
    let text = prop::collection::vec(word, 0..5).prop_map(|words| words.concat());
    let role = prop::sample::select(vec!["user", "assistant", "assistant", "system", "tool"]);
    prop::collection::vec((role, text), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_mask_is_right_or_the_conversation_is_refused(
        (name, shape) in prop::sample::select(FAMILIES.to_vec()).prop_flat_map(|name| {
            let added = family(name).tokenizer().get_added_tokens_decoder().into_values();
            let mut special: Vec<String> = added.filter(|token| token.special).map(|token| token.content).collect();
            special.sort();
            (Just(name), shape(special))
        }),
        turns in turns(),
        from in any::<prop::sample::Index>(),
        is_chat in any::<bool>(),
    ) {
        let from = if is_chat { 0 } else { from.index(turns.len()) };
        check(name, &shape, &turns, from);
    }
}
