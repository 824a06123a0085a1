//! A tokenizer that takes special tokens from the places where a template has written them, and from nowhere else.
//!
//! A placeholder, one private-use character, stands for each special token. The library splits a text at placeholders
//! as it splits at special tokens, with the same flags, so that the text between them has the ids that it has beside
//! the tokens themselves. Special tokens as characters stay text. Other added tokens, such as `<think>`, keep their
//! meaning everywhere.

use std::collections::BTreeMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::{AddedToken, Tokenizer};

use crate::error::{ConversationError, SetupError};
use crate::marks;
use crate::shield::Shield;

/// A tokenizer with placeholders for its special tokens.
pub struct Vocabulary {
    tokenizer: Tokenizer,
    special: Vec<Special>,
    /// The indices of special tokens by their ids.
    by_id: BTreeMap<u32, usize>,
    /// The library looks for tokens in a text, and then for others in the normalised text between them.
    added: [Added; 2],
    pub(crate) shield: Shield,
}

struct Special {
    content: String,
    id: u32,
    placeholder: char,
    placeholder_id: u32,
}

/// Added tokens that are looked for together.
struct Added {
    matcher: AhoCorasick,
    /// The indices of the tokens that are special.
    special: Vec<Option<usize>>,
}

/// A special token in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) range: Range<usize>,
    index: usize,
}

/// Token ids, with the range of bytes in the text for each.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) ids: Vec<u32>,
    pub(crate) ranges: Vec<Range<usize>>,
}

impl Vocabulary {
    /// Copies a tokenizer.
    ///
    /// # Errors
    /// Fails if the place of a special token in a text can't be followed.
    pub fn new(tokenizer: &Tokenizer) -> Result<Vocabulary, SetupError> {
        let mut tokenizer = tokenizer.clone();
        let failed = |problem: tokenizers::Error| SetupError::Tokenizer { problem: problem.to_string() };
        tokenizer.set_encode_special_tokens(true);
        tokenizer.with_padding(None).with_truncation(None).map_err(failed)?;
        // it adds nothing to a part of a text, and may take white space from a token's range
        tokenizer.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        let tokens: BTreeMap<u32, AddedToken> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        let special: Vec<(u32, &AddedToken)> =
            tokens.iter().filter(|(_, token)| token.special).map(|(&id, token)| (id, token)).collect();
        for (_, token) in &special {
            check(token, tokenizer.get_normalizer().is_some())?;
        }
        let contents = special.iter().map(|(_, token)| token.content.clone()).collect();
        let shield = Shield::new(contents).ok_or_else(too_many)?;
        let added = [false, true].map(|normalized| Added::new(&tokens, normalized));
        let special = with_placeholders(&mut tokenizer, &special)?;
        let by_id = special.iter().enumerate().map(|(index, special)| (special.id, index)).collect();
        let [plain, normalized] = added;
        Ok(Vocabulary { tokenizer, special, by_id, added: [plain?, normalized?], shield })
    }

    /// The special tokens in `shadow`, a text's bytes without those that a conversation has written.
    pub(crate) fn find(&self, shadow: &[u8]) -> Vec<Found> {
        let [plain, normalized] = &self.added;
        let mut all = Vec::new();
        let mut from = 0;
        for (range, special) in plain.find(shadow, 0..shadow.len()).chain([(shadow.len()..shadow.len(), None)]) {
            all.extend(normalized.find(shadow, from..range.start));
            from = range.end;
            all.push((range, special));
        }
        all.into_iter().filter_map(|(range, special)| Some(Found { range, index: special? })).collect()
    }

    /// The ids of a text in which `special` are all special tokens.
    ///
    /// # Errors
    /// Fails if the tokenizer fails, or makes a special token of other text.
    pub(crate) fn encode(&self, text: &str, special: &[Found]) -> Result<Encoded, ConversationError> {
        let (input, ends) = self.with_placeholders(text, special);
        let failed = |problem: tokenizers::Error| ConversationError::Tokenizer { problem: problem.to_string() };
        let encoding = self.tokenizer.encode(input.as_str(), false).map_err(failed)?;
        let mut encoded = Encoded { ids: Vec::new(), ranges: Vec::new() };
        for (&id, &(start, end)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
            encoded.ids.push(self.id(id, input.get(start..end).unwrap_or_default())?);
            encoded.ranges.push(in_text(&ends, start)..in_text(&ends, end));
        }
        Ok(encoded)
    }

    /// The text with placeholders, and for each the positions after it here and in the text.
    fn with_placeholders(&self, text: &str, special: &[Found]) -> (String, Vec<(usize, usize)>) {
        let mut input = String::with_capacity(text.len());
        let mut ends = Vec::new();
        let mut from = 0;
        for Found { range, index } in special {
            input.push_str(text.get(from..range.start).unwrap_or_default());
            input.extend(self.special.get(*index).map(|special| special.placeholder));
            ends.push((input.len(), range.end));
            from = range.end;
        }
        input.push_str(text.get(from..).unwrap_or_default());
        (input, ends)
    }

    /// The id of a token of this tokenizer in the tokenizer that was copied. `covered` is the token's text.
    fn id(&self, id: u32, covered: &str) -> Result<u32, ConversationError> {
        let placeholder = covered.chars().find_map(marks::index_of_placeholder);
        match (placeholder.and_then(|index| self.special.get(index)), self.by_id.get(&id)) {
            (Some(special), _) if special.placeholder_id == id => Ok(special.id),
            (Some(special), _) => Err(ConversationError::Tokenizer {
                problem: format!("the special token {:?} is not found", special.content),
            }),
            (None, Some(&index)) => match self.special.get(index) {
                Some(special) if covered.contains(&special.content) => {
                    Err(ConversationError::Forged { token: special.content.clone() })
                }
                // for example the token of unknown characters
                _ => Ok(id),
            },
            (None, None) => Ok(id),
        }
    }
}

impl Added {
    fn new(tokens: &BTreeMap<u32, AddedToken>, normalized: bool) -> Result<Added, SetupError> {
        let mut special = 0..;
        let indices = tokens.values().map(|token| if token.special { special.next() } else { None });
        let chosen = tokens.values().zip(indices).filter(|(token, _)| token.normalized == normalized);
        let (contents, special): (Vec<&str>, Vec<Option<usize>>) =
            chosen.map(|(token, index)| (token.content.as_str(), index)).unzip();
        let matcher = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents);
        let problem = |error: aho_corasick::BuildError| SetupError::Tokenizer { problem: error.to_string() };
        Ok(Added { matcher: matcher.map_err(problem)?, special })
    }

    /// The tokens in a range of `shadow`.
    fn find(&self, shadow: &[u8], range: Range<usize>) -> impl Iterator<Item = (Range<usize>, Option<usize>)> {
        let start = range.start;
        self.matcher.find_iter(shadow.get(range).unwrap_or_default()).map(move |found| {
            let special = self.special.get(found.pattern().as_usize()).copied().flatten();
            (start + found.start()..start + found.end(), special)
        })
    }
}

impl Found {
    /// The token's place in a text that lacks the first `bytes`.
    pub(crate) fn before_are_cut(&self, bytes: usize) -> Found {
        Found { range: self.range.start - bytes..self.range.end - bytes, index: self.index }
    }
}

/// Adds the placeholders of special tokens, with the tokens' flags. For the library they are not special, since special
/// tokens stay text.
fn with_placeholders(tokenizer: &mut Tokenizer, special: &[(u32, &AddedToken)]) -> Result<Vec<Special>, SetupError> {
    let placeholders = (0..special.len()).map(|index| marks::placeholder(index).ok_or_else(too_many));
    let placeholders = placeholders.collect::<Result<Vec<char>, SetupError>>()?;
    let stand_in = |(&(_, token), &placeholder): (&(u32, &AddedToken), &char)| AddedToken {
        content: placeholder.into(),
        special: false,
        ..token.clone()
    };
    let stand_ins: Vec<AddedToken> = special.iter().zip(&placeholders).map(stand_in).collect();
    tokenizer.add_tokens(stand_ins).map_err(|error| SetupError::Tokenizer { problem: error.to_string() })?;
    let added = |(&(id, token), placeholder): (&(u32, &AddedToken), char)| {
        let placeholder_id = tokenizer.token_to_id(&placeholder.to_string()).ok_or_else(too_many)?;
        Ok(Special { content: token.content.clone(), id, placeholder, placeholder_id })
    };
    special.iter().zip(placeholders).map(added).collect()
}

fn too_many() -> SetupError {
    SetupError::Tokenizer { problem: format!("it has more than {} special tokens", marks::CAPACITY) }
}

fn check(token: &AddedToken, has_normalizer: bool) -> Result<(), SetupError> {
    marks::check(&format!("the special token {:?}", token.content), marks::find(&token.content))?;
    let problem = if token.content.chars().all(char::is_whitespace) {
        "is white space, which no text can spell otherwise: set its `special` to false in tokenizer.json"
    } else if token.normalized && has_normalizer {
        "is looked for in normalised text: set its `normalized` to false in tokenizer.json"
    } else if token.single_word {
        "is looked for between words only: set its `single_word` to false in tokenizer.json"
    } else {
        return Ok(());
    };
    Err(SetupError::SpecialToken { token: token.content.clone(), problem: problem.into() })
}

/// The position in the text of a position in the text with placeholders.
fn in_text(ends: &[(usize, usize)], position: usize) -> usize {
    let count = ends.partition_point(|(end, _)| *end <= position);
    match count.checked_sub(1).and_then(|last| ends.get(last)) {
        Some((end, end_in_text)) => end_in_text + (position - end),
        None => position,
    }
}
