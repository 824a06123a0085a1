//! Finds the tokens that the assistant writes, because training uses only these tokens. Also proves that the result is
//! right. If the template has `{% generation %}` blocks, the proof shows that no token crosses the border of a block.
//! Without such blocks, the proof shows that no token crosses the border of a turn, and that the first messages have
//! the same text and the same tokens whether or not later messages follow. If a proof fails, this module refuses the
//! conversation.

use std::ops::Range;

use crate::conversation::Messages;
use crate::error::ConversationError;
use crate::template::{ChatTemplate, RenderContext};
use crate::vocabulary::{Encoded, FoundToken, Vocabulary};

const HINT: &str = "a template that marks by {% generation %} what the assistant writes needs no such proof";

/// A rendered conversation.
pub(crate) struct Rendering {
    pub(crate) text: String,
    /// The byte ranges that generation blocks have written.
    pub(crate) spans: Vec<Range<usize>>,
    /// The special tokens that the template has written.
    pub(crate) special: Vec<FoundToken>,
}

/// A rendered conversation with its tokens.
pub(crate) struct Whole<'a> {
    vocabulary: &'a Vocabulary,
    rendering: &'a Rendering,
    encoded: &'a Encoded,
    boundaries: TokenBoundaries,
}

/// Finds the byte positions that no token crosses. The byte ranges of tokens may be in any order.
struct TokenBoundaries {
    /// For each token, the largest end of the token and all tokens before it.
    ends: Vec<usize>,
    /// For each token, the smallest start of the token and all tokens after it.
    starts: Vec<usize>,
}

/// A place in a rendered conversation, in bytes and in tokens.
#[derive(Clone, Copy)]
pub(crate) struct TokenPlace {
    bytes: usize,
    pub(crate) tokens: usize,
}

impl TokenBoundaries {
    fn of(ranges: &[Range<usize>]) -> TokenBoundaries {
        let ends = ranges.iter().scan(0, |largest, range| {
            *largest = range.end.max(*largest);
            Some(*largest)
        });
        let ends = ends.collect();
        let starts = ranges.iter().rev().scan(usize::MAX, |smallest, range| {
            *smallest = range.start.min(*smallest);
            Some(*smallest)
        });
        let mut starts: Vec<usize> = starts.collect();
        starts.reverse();
        TokenBoundaries { ends, starts }
    }

    /// Returns the number of tokens before the first token that ends after the position `bytes`. If that token or a
    /// later token begins before the position, this function returns the number as `Err`.
    fn tokens_before(&self, bytes: usize) -> Result<usize, usize> {
        let count = self.ends.partition_point(|&end| end <= bytes);
        if self.starts.get(count).is_none_or(|&start| start >= bytes) { Ok(count) } else { Err(count) }
    }
}

impl<'a> Whole<'a> {
    pub(crate) fn new(vocabulary: &'a Vocabulary, rendering: &'a Rendering, encoded: &'a Encoded) -> Whole<'a> {
        Whole { vocabulary, rendering, encoded, boundaries: TokenBoundaries::of(&encoded.ranges) }
    }

    /// Returns the number of tokens in the first `bytes` bytes of the text.
    ///
    /// # Errors
    /// The error names the token that has bytes on both sides of this position.
    fn tokens_before(&self, bytes: usize) -> Result<usize, String> {
        self.boundaries.tokens_before(bytes).map_err(|count| {
            let range = self.encoded.ranges.iter().skip(count).find(|range| range.start < bytes);
            let token = range.and_then(|range| self.rendering.text.get(range.clone())).unwrap_or_default();
            format!("the token {token:?} crosses the border of the turn")
        })
    }

    /// Checks that this conversation begins with `text`.
    fn check_begins_with(&self, text: &str) -> Result<(), String> {
        let whole = &self.rendering.text;
        if whole.starts_with(text) {
            return Ok(());
        }
        let same = text.bytes().zip(whole.bytes()).take_while(|(one, other)| one == other).count();
        Err(format!(
            "the template renders earlier messages differently when later messages follow, from byte {same} on"
        ))
    }

    /// Returns the end of `text` in this conversation. The conversation must begin with `text`, in bytes and in tokens.
    ///
    /// # Errors
    /// The error names the difference between `text` and the beginning of the conversation.
    pub(crate) fn end_of(&self, text: &str) -> Result<TokenPlace, String> {
        self.check_begins_with(text)?;
        let tokens = self.tokens_before(text.len())?;
        // The tokenizers library splits a text at special tokens, and encodes the parts separately. The tokens before
        // the last special token are therefore the same with and without the text that follows. Only the text from this
        // special token on needs to be encoded again.
        let before = self.rendering.special.partition_point(|found| found.range.end <= text.len());
        let special = before.checked_sub(1).and_then(|last| self.rendering.special.get(last));
        let start = special.map_or(0, |found| found.range.start);
        let special: Vec<FoundToken> = special.iter().map(|found| found.before_are_cut(start)).collect();
        let alone = self
            .vocabulary
            .encode(text.get(start..).unwrap_or_default(), &special)
            .map_err(|error| error.to_string())?;
        let from = tokens.saturating_sub(alone.ids.len());
        if self.encoded.ids.get(from..tokens) != Some(&alone.ids) {
            return Err("the text before the border of the turn has other tokens if it is encoded without the text \
                        after it"
                .into());
        }
        Ok(TokenPlace { bytes: text.len(), tokens })
    }
}

/// The proof of a conversation's mask.
pub(crate) struct Proof<'a> {
    template: &'a ChatTemplate,
    conversation: &'a Messages,
    variables: RenderContext,
    whole: Whole<'a>,
    /// For each message, the place at which it ends, or the reason why there is no such place. `None` until
    /// [`Proof::end`] has determined the place.
    ends: Vec<Option<Result<TokenPlace, String>>>,
}

impl<'a> Proof<'a> {
    pub(crate) fn new(
        template: &'a ChatTemplate,
        conversation: &'a Messages,
        variables: RenderContext,
        whole: Whole<'a>,
    ) -> Proof<'a> {
        let ends = vec![None; variables.count()];
        Proof { template, conversation, variables, whole, ends }
    }

    /// Returns the number of tokens up to the end of each message; `None` for a message whose end can't be proven.
    pub(crate) fn ends(&mut self) -> Vec<Option<usize>> {
        (0..self.ends.len()).map(|index| self.end(index).ok().map(|place| place.tokens)).collect()
    }

    /// Returns the place at which a message ends, or the reason why the place can't be proven.
    fn end(&mut self, index: usize) -> Result<TokenPlace, String> {
        if let Some(Some(known)) = self.ends.get(index) {
            return known.clone();
        }
        let end = match index + 1 == self.variables.count() {
            true => Ok(TokenPlace { bytes: self.whole.rendering.text.len(), tokens: self.whole.encoded.ids.len() }),
            false => self.text_of_first(index + 1, false).and_then(|text| self.whole.end_of(&text)),
        };
        if let Some(slot) = self.ends.get_mut(index) {
            *slot = Some(end.clone());
        }
        end
    }

    fn text_of_first(&self, count: usize, add_generation_prompt: bool) -> Result<String, String> {
        let rendered = self.template.render(&self.variables, count, add_generation_prompt);
        let marked = self.whole.vocabulary.shield.read(&rendered.map_err(|error| error.to_string())?);
        marked.map(|marked| marked.text).ok_or_else(|| "a generation block lacks its end".into())
    }

    /// Returns the ranges of tokens to train on.
    ///
    /// # Errors
    /// The error names the turn or the generation block whose mask can't be proven.
    pub(crate) fn trained(&mut self) -> Result<Vec<Range<usize>>, ConversationError> {
        if self.template.has_generation() { self.of_blocks() } else { self.of_turns() }
    }

    /// Returns the tokens of the texts that generation blocks write.
    fn of_blocks(&self) -> Result<Vec<Range<usize>>, ConversationError> {
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

    /// Returns the byte at which the completion begins; 0 without a prompt.
    fn start_of_training(&self) -> Result<usize, ConversationError> {
        let Some(last) = self.conversation.trained_from.checked_sub(1) else { return Ok(0) };
        let prompt = self.text_of_first(last + 1, false).and_then(|prompt| {
            self.whole.check_begins_with(&prompt)?;
            Ok(prompt.len())
        });
        prompt.map_err(|problem| ConversationError::Unproven {
            turn: self.conversation.turn(last),
            problem: format!("it can't be proven where the prompt ends: {problem}"),
        })
    }

    /// Returns the tokens of each turn of the assistant, from the end of the turn's header, such as
    /// `<|im_start|>assistant`, to the end of the turn.
    fn of_turns(&mut self) -> Result<Vec<Range<usize>>, ConversationError> {
        let Messages { trained_from, .. } = *self.conversation;
        let turns = self.conversation.of_assistant().filter(|&index| index >= trained_from);
        turns.map(|index| self.of_turn(index).map_err(|problem| self.unproven(index, &problem))).collect()
    }

    fn of_turn(&mut self, index: usize) -> Result<Range<usize>, String> {
        let end = self.end(index)?;
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

    /// Whether a turn is empty or begins with its content. A turn that contains its content twice does not count: the
    /// first occurrence may be a part of a header.
    fn begins_with_content(&self, index: usize, turn: Range<usize>) -> bool {
        let content = self.conversation.messages.get(index).and_then(|message| message["content"].as_str());
        let content = content.unwrap_or_default().trim();
        let written = self.whole.rendering.text.get(turn).unwrap_or_default().trim_start();
        written.is_empty() || !content.is_empty() && written.starts_with(content) && written.rfind(content) == Some(0)
    }

    fn unproven(&self, index: usize, problem: &str) -> ConversationError {
        let problem = format!("it can't be proven which tokens the assistant writes: {problem}; {HINT}");
        ConversationError::Unproven { turn: self.conversation.turn(index), problem }
    }

    /// Returns the error for a generation block. The error names the turn if each turn of the assistant has one block.
    fn refused_block(&self, index: usize, problem: String) -> ConversationError {
        let turns: Vec<usize> = self.conversation.of_assistant().collect();
        match turns.get(index) {
            Some(&turn) if turns.len() == self.whole.rendering.spans.len() => {
                ConversationError::Unproven { turn: self.conversation.turn(turn), problem }
            }
            _ => ConversationError::Block { number: index + 1, problem },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The test includes ranges that are equal or out of order: the tokens for the bytes of one character have the
        /// same range, and a normaliser may change the order of ranges.
        #[test]
        fn borders_are_those_that_a_search_finds(starts in prop::collection::vec((0usize..9, 0usize..4), 0..9)) {
            let ranges: Vec<Range<usize>> = starts.into_iter().map(|(start, length)| start..start + length).collect();
            let boundaries = TokenBoundaries::of(&ranges);
            for bytes in 0..14 {
                let count = ranges.iter().position(|range| range.end > bytes).unwrap_or(ranges.len());
                let crosses = ranges.iter().skip(count).any(|range| range.start < bytes);
                prop_assert_eq!(boundaries.tokens_before(bytes), if crosses { Err(count) } else { Ok(count) });
            }
        }
    }
}
