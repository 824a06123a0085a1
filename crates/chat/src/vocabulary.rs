//! A tokenizer that produces special tokens only at the places where a template has written them.
//!
//! A placeholder, one private-use character, replaces each special token of the template. Each placeholder is an added
//! token with the flags of its special token, except `special`. The tokenizers library therefore splits a text at
//! placeholders as it splits at special tokens, and the text between placeholders has the same ids as between special
//! tokens. A special token that a message spells stays text. Added tokens that are not special, such as `<think>`, are
//! found everywhere.

use std::collections::BTreeMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::{AddedToken, Model, ModelWrapper, Tokenizer};

use crate::error::{ConversationError, SetupError};
use crate::marks;
use crate::shield::Shield;

/// A character that Unicode assigns to nothing, so no vocabulary has it.
const UNKNOWN_CHARACTER: &str = "\u{10FFFF}";

/// A tokenizer with placeholders for its special tokens.
pub struct Vocabulary {
    tokenizer: Tokenizer,
    special: Vec<Special>,
    /// The indices of special tokens by their ids.
    by_id: BTreeMap<u32, usize>,
    /// The ids that the model gives to a character that it does not know. One of them may be a special token, such as
    /// `<unk>`.
    unknown: Vec<u32>,
    /// The added tokens. The library first searches a text for the tokens of the first item. It then searches the
    /// normalised text between these tokens for the tokens of the second item.
    added: [AddedTokenMatcher; 2],
    pub(crate) shield: Shield,
}

struct Special {
    content: String,
    id: u32,
    placeholder: char,
    placeholder_id: u32,
}

/// Added tokens for which the library searches at the same time.
struct AddedTokenMatcher {
    matcher: AhoCorasick,
    /// For each token, its index among the special tokens; `None` for a token that is not special.
    special: Vec<Option<usize>>,
}

/// A special token in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundToken {
    pub(crate) range: Range<usize>,
    index: usize,
}

/// Token ids, and the byte range of each token in the text.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) ids: Vec<u32>,
    pub(crate) ranges: Vec<Range<usize>>,
}

impl Vocabulary {
    /// Creates a vocabulary from a copy of a tokenizer.
    ///
    /// # Errors
    /// Fails if the places of a special token in a text can't be determined.
    pub fn new(tokenizer: &Tokenizer) -> Result<Vocabulary, SetupError> {
        let mut tokenizer = tokenizer.clone();
        let failed = |problem: tokenizers::Error| SetupError::Tokenizer { problem: problem.to_string() };
        tokenizer.set_encode_special_tokens(true);
        tokenizer.with_padding(None).with_truncation(None).map_err(failed)?;
        // the copy has no post-processor, because a post-processor may exclude white space from the range of a token
        tokenizer.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        let tokens: BTreeMap<u32, AddedToken> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        let special: Vec<(u32, &AddedToken)> =
            tokens.iter().filter(|(_, token)| token.special).map(|(&id, token)| (id, token)).collect();
        for (_, token) in &special {
            check(token, tokenizer.get_normalizer().is_some())?;
        }
        let contents = special.iter().map(|(_, token)| token.content.clone()).collect();
        let shield = Shield::new(contents).ok_or_else(too_many)?;
        let added = [false, true].map(|normalized| AddedTokenMatcher::new(&tokens, normalized));
        let special = with_placeholders(&mut tokenizer, &special)?;
        let by_id = special.iter().enumerate().map(|(index, special)| (special.id, index)).collect();
        let [plain, normalized] = added;
        let unknown = unknown_ids(tokenizer.get_model());
        Ok(Vocabulary { tokenizer, special, by_id, unknown, added: [plain?, normalized?], shield })
    }

    /// Returns the special tokens in `shadow`, in the order of their places. `shadow` is a rendered text in which other
    /// bytes replace the special tokens that messages spell, so this function finds only the template's tokens.
    pub(crate) fn find(&self, shadow: &[u8]) -> Vec<FoundToken> {
        let [plain, normalized] = &self.added;
        let mut all = Vec::new();
        let mut from = 0;
        for (range, special) in plain.find(shadow, 0..shadow.len()).chain([(shadow.len()..shadow.len(), None)]) {
            all.extend(normalized.find(shadow, from..range.start));
            from = range.end;
            all.push((range, special));
        }
        all.into_iter().filter_map(|(range, special)| Some(FoundToken { range, index: special? })).collect()
    }

    /// Encodes a text. `special` has the special tokens that the template has written into the text.
    ///
    /// # Errors
    /// Fails if the tokenizer fails, or encodes other text as a special token.
    pub(crate) fn encode(&self, text: &str, special: &[FoundToken]) -> Result<Encoded, ConversationError> {
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

    /// Returns the text with placeholders. For each placeholder, also returns the position after it in that text, and
    /// the position after the special token in `text`.
    fn with_placeholders(&self, text: &str, special: &[FoundToken]) -> (String, Vec<(usize, usize)>) {
        let mut input = String::with_capacity(text.len());
        let mut ends = Vec::new();
        let mut from = 0;
        for FoundToken { range, index } in special {
            input.push_str(text.get(from..range.start).unwrap_or_default());
            input.extend(self.special.get(*index).map(|special| special.placeholder));
            ends.push((input.len(), range.end));
            from = range.end;
        }
        input.push_str(text.get(from..).unwrap_or_default());
        (input, ends)
    }

    /// Converts a token's id in this copy of the tokenizer to the id in the original tokenizer. `covered` is the text
    /// of the token.
    fn id(&self, id: u32, covered: &str) -> Result<u32, ConversationError> {
        let placeholder = covered.chars().find_map(marks::index_of_placeholder);
        match (placeholder.and_then(|index| self.special.get(index)), self.by_id.get(&id)) {
            (Some(special), _) if special.placeholder_id == id => Ok(special.id),
            (Some(special), _) => Err(ConversationError::Tokenizer {
                problem: format!("the special token {:?} is not found", special.content),
            }),
            (None, Some(&index)) => match self.special.get(index) {
                // The model has the special token as a piece. `covered` may differ from the piece, because a normalizer
                // or a pre-tokenizer may have made the piece from other text.
                Some(special) if covered.contains(&special.content) || !self.unknown.contains(&id) => {
                    Err(ConversationError::Forged { text: covered.into(), token: special.content.clone() })
                }
                _ => Ok(id),
            },
            (None, None) => Ok(id),
        }
    }
}

impl AddedTokenMatcher {
    fn new(tokens: &BTreeMap<u32, AddedToken>, normalized: bool) -> Result<AddedTokenMatcher, SetupError> {
        let mut special = 0..;
        let indices = tokens.values().map(|token| if token.special { special.next() } else { None });
        let chosen = tokens.values().zip(indices).filter(|(token, _)| token.normalized == normalized);
        let (contents, special): (Vec<&str>, Vec<Option<usize>>) =
            chosen.map(|(token, index)| (token.content.as_str(), index)).unzip();
        let matcher = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents);
        let problem = |error: aho_corasick::BuildError| SetupError::Tokenizer { problem: error.to_string() };
        Ok(AddedTokenMatcher { matcher: matcher.map_err(problem)?, special })
    }

    /// Returns the tokens in a range of `shadow`.
    fn find(&self, shadow: &[u8], range: Range<usize>) -> impl Iterator<Item = (Range<usize>, Option<usize>)> {
        let start = range.start;
        self.matcher.find_iter(shadow.get(range).unwrap_or_default()).map(move |found| {
            let special = self.special.get(found.pattern().as_usize()).copied().flatten();
            (start + found.start()..start + found.end(), special)
        })
    }
}

impl FoundToken {
    /// Returns this token with its range in the text that remains when the first `bytes` bytes are cut.
    pub(crate) fn before_are_cut(&self, bytes: usize) -> FoundToken {
        FoundToken { range: self.range.start - bytes..self.range.end - bytes, index: self.index }
    }
}

/// Adds a placeholder for each special token, with the token's flags except `special`. The placeholders are not
/// special, because this copy of the tokenizer encodes special tokens as text.
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

/// Returns the ids that a model gives to a character that it does not know.
fn unknown_ids(model: &ModelWrapper) -> Vec<u32> {
    // a model without a token for unknown characters may refuse this text
    let tokens = model.tokenize(UNKNOWN_CHARACTER).unwrap_or_default();
    // a model with tokens for bytes has encoded the character as bytes, but may lack the bytes of other characters
    let named = match model {
        ModelWrapper::BPE(model) => model.unk_token.as_deref(),
        ModelWrapper::WordPiece(model) => Some(model.unk_token.as_str()),
        ModelWrapper::WordLevel(model) => Some(model.unk_token.as_str()),
        ModelWrapper::Unigram(_) => None,
    };
    tokens.into_iter().map(|token| token.id).chain(named.and_then(|token| model.token_to_id(token))).collect()
}

fn too_many() -> SetupError {
    SetupError::Tokenizer { problem: format!("it has more than {} special tokens", marks::CAPACITY) }
}

fn check(token: &AddedToken, has_normalizer: bool) -> Result<(), SetupError> {
    marks::check(&format!("the special token {:?}", token.content), marks::find(&token.content))?;
    let problem = if token.content.chars().all(char::is_whitespace) {
        "is white space, and can't be distinguished from white space in messages: set its `special` to false in \
         tokenizer.json"
    } else if token.normalized && has_normalizer {
        "is looked for in normalised text: set its `normalized` to false in tokenizer.json"
    } else if token.single_word {
        "is looked for between words only: set its `single_word` to false in tokenizer.json"
    } else {
        return Ok(());
    };
    Err(SetupError::SpecialToken { token: token.content.clone(), problem: problem.into() })
}

/// Converts a position in the text with placeholders to the position in the original text.
fn in_text(ends: &[(usize, usize)], position: usize) -> usize {
    let count = ends.partition_point(|(end, _)| *end <= position);
    match count.checked_sub(1).and_then(|last| ends.get(last)) {
        Some((end, end_in_text)) => end_in_text + (position - end),
        None => position,
    }
}
