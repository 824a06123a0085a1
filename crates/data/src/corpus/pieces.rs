//! Splits long texts at positions where tokenising the pieces equals tokenising the whole, for byte-level tokenizers.

use super::{Content, Cursor, Piece, PieceHandler};
use crate::error::DataError;

/// Approximate size of a piece: small enough to spread over processors, large enough for a negligible cost per piece.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// The last position in `text` where white space follows something else: no GPT-2 pre-token spans it, because a pre-token
/// has white space only at its start.
pub(super) fn last_split(text: &str) -> Option<usize> {
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

/// Passes on one record's text, a whole document, in pieces if it may be split. `resume_at` and `bytes_read` are those
/// after the record.
pub(super) fn emit_record(
    text: &str,
    may_split: bool,
    resume_at: Cursor,
    bytes_read: u64,
    on_piece: &mut PieceHandler,
) -> Result<(), DataError> {
    let mut rest = text;
    while may_split && rest.len() > 2 * PIECE_BYTES {
        let end = (0..=PIECE_BYTES).rev().find(|&at| rest.is_char_boundary(at)).unwrap_or(0);
        let Some(at) = last_split(&rest[..end]) else { break };
        on_piece(Piece { content: Content::Text(&rest[..at]), is_last: false, resume_at: None, bytes_read })?;
        rest = &rest[at..];
    }
    on_piece(Piece { content: Content::Text(rest), is_last: true, resume_at: Some(resume_at), bytes_read })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Tokenizer;
    use crate::tokenizer_training::{MIN_VOCAB_SIZE, train_bpe};
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::LazyLock;

    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let text = "the cat's  the\n\nthe the 12 12 cat's cat's\r\n\r\n  the  12 é é\u{3000}\u{3000}é ".repeat(4);
        let json = train_bpe(MIN_VOCAB_SIZE + 60, [text].into_iter()).unwrap();
        Tokenizer::from_bytes(Path::new("test"), &json).unwrap()
    });

    #[test]
    fn splits_before_the_last_white_space_that_follows_something() {
        assert_eq!(last_split("one two  three"), Some(7));
        assert_eq!(last_split("one two  "), Some(7));
        assert_eq!(last_split("é\u{3000}x"), Some(2));
        assert_eq!(last_split("  one"), None);
        assert_eq!(last_split("one"), None);
        assert_eq!(last_split(""), None);
    }

    proptest! {
        #[test]
        fn pieces_have_the_ids_of_the_whole(text in "([a-z']|the|cat's|12|é|[ \n\r\t\u{3000}\u{a0}]){0,40}") {
            let ids = |text: &str| TOKENIZER.encode(text).unwrap();
            prop_assert!(TOKENIZER.splits_at_whitespace());
            for (end, _) in text.char_indices() {
                if let Some(at) = last_split(&text[..end]) {
                    prop_assert_eq!([ids(&text[..at]), ids(&text[at..])].concat(), ids(&text));
                }
            }
        }
    }
}
