//! Finds the part of a growing text that can already be shown, and ends the text at a stop string.

use anyhow::Result;

/// The callback that receives each new part of a text. An error ends the generation.
pub type OnText<'f> = dyn FnMut(&str) -> Result<()> + 'f;

/// The output of a growing text. The output holds back an incomplete stop string or character at the end of the text,
/// because later tokens may complete it.
#[derive(Debug)]
pub(super) struct TextOutput<'a> {
    stop: &'a [String],
    /// The number of bytes of the text that `on_text` has received.
    passed: usize,
}

impl<'a> TextOutput<'a> {
    pub(super) fn new(stop: &'a [String]) -> TextOutput<'a> {
        TextOutput { stop, passed: 0 }
    }

    /// Passes the new part of `text` to `on_text`. Returns the length of the text before the first stop string, if
    /// `text` contains one.
    pub(super) fn grow(&mut self, text: &str, on_text: &mut OnText) -> Result<Option<usize>> {
        let found = self.stop.iter().filter_map(|stop| text.find(stop.as_str())).min();
        let end = found.unwrap_or_else(|| self.settled(text));
        self.pass(text, end, on_text)?;
        Ok(found)
    }

    /// Passes the remaining part of `text`, which is complete, to `on_text`.
    pub(super) fn finish(&mut self, text: &str, on_text: &mut OnText) -> Result<()> {
        self.pass(text, text.len(), on_text)
    }

    /// Returns the number of bytes of `text` that later tokens don't change.
    fn settled(&self, text: &str) -> usize {
        // the decoder returns U+FFFD for an incomplete character
        let whole = text.trim_end_matches('\u{FFFD}');
        let begun = self.stop.iter().filter_map(|stop| {
            let starts = stop.char_indices().map(|(at, _)| at).skip(1).collect::<Vec<_>>();
            starts.into_iter().rev().find(|&length| whole.ends_with(&stop[..length]))
        });
        whole.len() - begun.max().unwrap_or(0)
    }

    fn pass(&mut self, text: &str, end: usize, on_text: &mut OnText) -> Result<()> {
        // when more tokens follow, a decoder may change the end of the text that it returned before
        self.passed = text.ceil_char_boundary(self.passed);
        if let Some(new) = text.get(self.passed..end).filter(|new| !new.is_empty()) {
            on_text(new)?;
            self.passed = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn add(pieces: &mut Vec<String>, piece: &str) -> Result<()> {
        pieces.push(piece.to_owned());
        Ok(())
    }

    fn grow(output: &mut TextOutput, text: &str, pieces: &mut Vec<String>) -> Option<usize> {
        output.grow(text, &mut |piece| add(pieces, piece)).unwrap()
    }

    /// Returns the pieces that `on_text` receives while `text` grows by single characters. If a stop string ends the
    /// text, also returns the length of the text before this string.
    fn grown(text: &str, stop: &[String]) -> (Vec<String>, Option<usize>) {
        let mut output = TextOutput::new(stop);
        let mut pieces = Vec::new();
        let ends = text.char_indices().map(|(at, character)| at + character.len_utf8());
        for end in ends {
            let mut shown = Vec::new();
            let stopped = grow(&mut output, &text[..end], &mut shown);
            pieces.append(&mut shown);
            if stopped.is_some() {
                return (pieces, stopped);
            }
        }
        output.finish(text, &mut |piece| add(&mut pieces, piece)).unwrap();
        (pieces, None)
    }

    #[test]
    fn nothing_of_a_stop_string_or_of_half_a_character_is_shown() {
        let stop = ["\nUser:".to_owned(), "###".to_owned()];
        assert_eq!(grown("ab\nUs", &stop).0.concat(), "ab\nUs");
        assert_eq!(grown("ab\nUser: c", &stop), (["a", "b"].map(str::to_owned).to_vec(), Some(2)));
        assert_eq!(grown("a##b###c", &stop), (["a", "##b"].map(str::to_owned).to_vec(), Some(4)));
        let mut output = TextOutput::new(&[]);
        let mut shown = Vec::new();
        for text in ["a\u{FFFD}", "a\u{FFFD}\u{FFFD}", "aé", "aé\u{FFFD}"] {
            grow(&mut output, text, &mut shown);
        }
        output.finish("aé\u{FFFD}", &mut |piece| add(&mut shown, piece)).unwrap();
        assert_eq!(shown, ["a", "é", "\u{FFFD}"]);
        // the first text ends with a line feed, which the decoder replaces when more tokens follow
        let mut output = TextOutput::new(&[]);
        let mut shown = Vec::new();
        for text in ["abc\n", "abc\u{FFFD}\u{FFFD}x", "abc\u{FFFD}\u{FFFD}x y"] {
            grow(&mut output, text, &mut shown);
        }
        assert_eq!(shown.concat(), "abc\n\u{FFFD}x y");
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_text_up_to_the_first_stop_string(
            text in "[abé]{0,30}", stop in prop::collection::vec("[abé]{1,3}", 0..3),
        ) {
            let (pieces, stopped) = grown(&text, &stop);
            let first = stop.iter().filter_map(|stop| text.find(stop.as_str()).map(|at| at + stop.len())).min();
            prop_assert_eq!(stopped.is_some(), first.is_some());
            prop_assert_eq!(pieces.concat(), &text[..stopped.unwrap_or(text.len())]);
            // the text ends before the first complete stop string
            if let (Some(end), Some(first)) = (stopped, first) {
                prop_assert!(stop.iter().any(|stop| text[end..].starts_with(stop.as_str()) && end + stop.len() == first));
            }
        }
    }
}
