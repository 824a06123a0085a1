//! The tokens of a conversation that are trained on, each with a proof.

use std::ops::Range;

use crate::conversation::Messages;
use crate::error::Refusal;
use crate::template::{ChatTemplate, Variables};
use crate::vocabulary::{Encoded, Found, Vocabulary};

const HINT: &str = "a template that marks by {% generation %} what the assistant writes needs no \
                    such proof";

/// A rendered conversation.
pub(crate) struct Rendering {
    pub(crate) text: String,
    /// The bytes that generation blocks have written.
    pub(crate) spans: Vec<Range<usize>>,
    /// The special tokens of the template.
    pub(crate) special: Vec<Found>,
}

/// A rendered conversation with its tokens.
pub(crate) struct Whole<'a> {
    pub(crate) vocabulary: &'a Vocabulary,
    pub(crate) rendering: &'a Rendering,
    pub(crate) encoded: &'a Encoded,
}

/// A place in a rendered conversation, in bytes and in tokens.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    bytes: usize,
    pub(crate) tokens: usize,
}

impl Whole<'_> {
    /// The number of tokens of the first `bytes`.
    ///
    /// # Errors
    /// Names the token that has bytes on both sides.
    fn tokens_before(&self, bytes: usize) -> Result<usize, String> {
        let ranges = &self.encoded.ranges;
        let count = ranges.iter().position(|range| range.end > bytes).unwrap_or(ranges.len());
        match ranges.iter().skip(count).find(|range| range.start < bytes) {
            Some(range) => {
                let token = self.rendering.text.get(range.clone()).unwrap_or_default();
                Err(format!("the token {token:?} is partly of the turn and partly not"))
            }
            None => Ok(count),
        }
    }

    /// Refuses a text with which this conversation does not begin.
    fn check_begins_with(&self, text: &str) -> Result<(), String> {
        let whole = &self.rendering.text;
        if whole.starts_with(text) {
            return Ok(());
        }
        let same = text.bytes().zip(whole.bytes()).take_while(|(one, other)| one == other).count();
        Err(format!("the template changes earlier text at later turns, from byte {same} on"))
    }

    /// The end of `text` in this conversation, which begins with it in bytes and in tokens.
    ///
    /// # Errors
    /// Names the difference.
    pub(crate) fn end_of(&self, text: &str) -> Result<Place, String> {
        self.check_begins_with(text)?;
        let tokens = self.tokens_before(text.len())?;
        // the library splits a text at special tokens first: only the text from the last one on could have other tokens
        let special = self.rendering.special.iter().rfind(|found| found.range.end <= text.len());
        let start = special.map_or(0, |found| found.range.start);
        let special: Vec<Found> = special.iter().map(|found| found.before_are_cut(start)).collect();
        let alone = self
            .vocabulary
            .encode(text.get(start..).unwrap_or_default(), &special)
            .map_err(|error| error.to_string())?;
        let from = tokens.saturating_sub(alone.ids.len());
        if self.encoded.ids.get(from..tokens) != Some(&alone.ids) {
            return Err("the text up to here has other tokens without the text after it".into());
        }
        Ok(Place { bytes: text.len(), tokens })
    }
}

/// A template with a conversation whose mask is looked for.
pub(crate) struct Proof<'a> {
    pub(crate) template: &'a ChatTemplate,
    pub(crate) conversation: &'a Messages,
    pub(crate) whole: Whole<'a>,
    /// For each message the place at which it ends, or the reason why it has no such place.
    pub(crate) ends: Vec<Result<Place, String>>,
}

impl<'a> Proof<'a> {
    pub(crate) fn new(template: &'a ChatTemplate, conversation: &'a Messages, whole: Whole<'a>) -> Proof<'a> {
        let mut proof = Proof { template, conversation, whole, ends: Vec::new() };
        proof.ends = (1..conversation.messages.len()).map(|count| proof.end_of_first(count, false)).collect();
        let (bytes, tokens) = (proof.whole.rendering.text.len(), proof.whole.encoded.ids.len());
        proof.ends.push(Ok(Place { bytes, tokens }));
        proof
    }

    fn text_of_first(&self, count: usize, add_generation_prompt: bool) -> Result<String, String> {
        let Messages { tools, documents, .. } = self.conversation;
        let variables = Variables { messages: self.conversation.first(count), tools, documents, add_generation_prompt };
        let rendered = self.template.render(&variables).map_err(|error| error.to_string())?;
        let marked = self.whole.vocabulary.shield.read(&rendered);
        marked.map(|marked| marked.text).ok_or_else(|| "a generation block lacks its end".into())
    }

    fn end_of_first(&self, count: usize, add_generation_prompt: bool) -> Result<Place, String> {
        self.whole.end_of(&self.text_of_first(count, add_generation_prompt)?)
    }

    /// The tokens to train on.
    ///
    /// # Errors
    /// Names the turn whose tokens can't be proven.
    pub(crate) fn trained(&self) -> Result<Vec<Range<usize>>, Refusal> {
        if self.template.has_generation() { self.of_blocks() } else { self.of_turns() }
    }

    /// The tokens of the texts that generation blocks write.
    fn of_blocks(&self) -> Result<Vec<Range<usize>>, Refusal> {
        let from = self.start_of_training()?;
        let spans =
            self.whole.rendering.spans.iter().enumerate().filter(|(_, span)| span.end > from && !span.is_empty());
        let tokens = |(index, span): (usize, &Range<usize>)| {
            let refused = |problem| self.refused_block(index, problem);
            if span.start < from {
                return Err(refused("it begins in the prompt and ends in the completion".to_owned()));
            }
            let [start, end] = [span.start, span.end].map(|bytes| self.whole.tokens_before(bytes));
            Ok(start.map_err(refused)?..end.map_err(refused)?)
        };
        spans.map(tokens).collect()
    }

    /// The byte at which the completion begins.
    fn start_of_training(&self) -> Result<usize, Refusal> {
        let Some(last) = self.conversation.trained_from.checked_sub(1) else { return Ok(0) };
        let prompt = self.text_of_first(last + 1, false).and_then(|prompt| {
            self.whole.check_begins_with(&prompt)?;
            Ok(prompt.len())
        });
        prompt.map_err(|problem| Refusal::Unproven {
            turn: self.conversation.turn(last),
            problem: format!("it can't be proven where the prompt ends: {problem}"),
        })
    }

    /// The tokens from the header of each assistant's turn to its end.
    fn of_turns(&self) -> Result<Vec<Range<usize>>, Refusal> {
        let turns = self.conversation.of_assistant().filter(|&index| index >= self.conversation.trained_from);
        turns.map(|index| self.of_turn(index).map_err(|problem| self.unproven(index, &problem))).collect()
    }

    fn of_turn(&self, index: usize) -> Result<Range<usize>, String> {
        let end = self.ends.get(index).cloned().unwrap_or_else(|| Err("it has no end".into()))?;
        let before = self.text_of_first(index, true)?;
        let start = self.whole.end_of(&before)?;
        if start.bytes > end.bytes {
            return Err("the header of the turn is longer than the turn".into());
        }
        let has_header = self.text_of_first(index, false).map_or(true, |without| without != before);
        if !has_header && !self.begins_with_content(index, start.bytes..end.bytes) {
            return Err(
                "the template writes no header for add_generation_prompt, and the turn does not begin with its \
                        content, so that its beginning may be a header"
                    .into(),
            );
        }
        Ok(start.tokens..end.tokens)
    }

    /// Whether a turn begins with its content. A content that the turn has twice may be a part of a header.
    fn begins_with_content(&self, index: usize, turn: Range<usize>) -> bool {
        let content = self.conversation.messages.get(index).and_then(|message| message["content"].as_str());
        let content = content.unwrap_or_default().trim();
        let written = self.whole.rendering.text.get(turn).unwrap_or_default().trim_start();
        written.is_empty() || !content.is_empty() && written.starts_with(content) && written.rfind(content) == Some(0)
    }

    fn unproven(&self, index: usize, problem: &str) -> Refusal {
        let problem = format!("it can't be proven which tokens the assistant writes: {problem}; {HINT}");
        Refusal::Unproven { turn: self.conversation.turn(index), problem }
    }

    /// The refusal of a generation block, with its turn if each turn of the assistant has one block.
    fn refused_block(&self, index: usize, problem: String) -> Refusal {
        let turns: Vec<usize> = self.conversation.of_assistant().collect();
        match turns.get(index) {
            Some(&turn) if turns.len() == self.whole.rendering.spans.len() => {
                Refusal::Unproven { turn: self.conversation.turn(turn), problem }
            }
            _ => Refusal::Block { number: index + 1, problem },
        }
    }
}
