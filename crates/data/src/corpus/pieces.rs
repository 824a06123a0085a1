//! Cuts long texts where a byte-level tokenizer may be fed piece by piece.

use super::{Content, Cursor, Each, Piece};
use crate::error::DataError;

/// Bytes of a piece, roughly: small enough to spread over processors, large enough not to matter.
pub(super) const PIECE: usize = 64 << 10;

/// The last place in `text` where white space follows something else: no word of the GPT-2 pattern spans it, as a word
/// takes white space in only at its front.
pub(super) fn last_cut(text: &str) -> Option<usize> {
    let mut after = None;
    for (at, character) in text.char_indices().rev() {
        match (character.is_whitespace(), after) {
            (false, Some(space)) => return Some(space),
            (true, _) => after = Some(at),
            (false, None) => {}
        }
    }
    None
}

/// Sends one record's text, a whole document, in pieces if it may be cut. `next` and `done` hold after its end.
pub(super) fn send(text: &str, cut: bool, next: Cursor, done: u64, each: &mut Each) -> Result<(), DataError> {
    let mut rest = text;
    while cut && rest.len() > 2 * PIECE {
        let end = (0..=PIECE).rev().find(|&at| rest.is_char_boundary(at)).unwrap_or(0);
        let Some(at) = last_cut(&rest[..end]) else { break };
        each(Piece { content: Content::Text(&rest[..at]), ends: false, next: None, done })?;
        rest = &rest[at..];
    }
    each(Piece { content: Content::Text(rest), ends: true, next: Some(next), done })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Tokenizer;
    use crate::train;
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::LazyLock;

    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let text = "the cat's  the\n\nthe the 12 12 cat's cat's\r\n\r\n  the  12 é é\u{3000}\u{3000}é ".repeat(4);
        let json = train::learn(train::LEAST_VOCABULARY + 60, [text].into_iter()).unwrap();
        Tokenizer::from_bytes(Path::new("test"), &json).unwrap()
    });

    #[test]
    fn cuts_before_the_last_white_space_that_follows_something() {
        assert_eq!(last_cut("one two  three"), Some(7));
        assert_eq!(last_cut("one two  "), Some(7));
        assert_eq!(last_cut("é\u{3000}x"), Some(2));
        assert_eq!(last_cut("  one"), None);
        assert_eq!(last_cut("one"), None);
        assert_eq!(last_cut(""), None);
    }

    proptest! {
        #[test]
        fn pieces_have_the_ids_of_the_whole(text in "([a-z']|the|cat's|12|é|[ \n\r\t\u{3000}\u{a0}]){0,40}") {
            let ids = |text: &str| TOKENIZER.encode(text).unwrap();
            prop_assert!(TOKENIZER.cuttable());
            for (end, _) in text.char_indices() {
                if let Some(cut) = last_cut(&text[..end]) {
                    prop_assert_eq!([ids(&text[..cut]), ids(&text[cut..])].concat(), ids(&text));
                }
            }
        }
    }
}
