//! The ways in which a text may lose information when it is tokenised.

use aho_corasick::AhoCorasick;

use crate::findings::Findings;

/// The losses of a tokenizer.
#[derive(Clone)]
pub(crate) struct Losses {
    /// Names of special tokens that stay text.
    pub(crate) special: Option<AhoCorasick>,
    pub(crate) unknown: Option<u32>,
    /// Whether characters without a token vanish.
    pub(crate) drops_characters: bool,
}

impl Losses {
    /// Counts the tokens that stand for characters outside of the vocabulary.
    pub(crate) fn count_unknown(&self, ids: &[u32], findings: &mut Findings) {
        if let Some(unknown) = self.unknown {
            findings.unknown += ids.iter().filter(|&&id| id == unknown).count() as u64;
        }
    }
}
