//! Makes text of other programs, such as a pod's termination message or a line of its log, safe to show on a terminal
//! or a page.

use std::borrow::Cow;
use std::fmt::Write;

/// Replaces the characters that control a terminal or change the direction of text. ASCII control characters are shown
/// in caret notation, such as `^[`, `^M` or `^?`. C1 control characters, bidi marks and Unicode's line separators are
/// shown as code points, such as `<U+202E>`. Line feeds, tabs and visible text stay unchanged, so a second call changes
/// nothing.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_invisible) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().fold(String::with_capacity(2 * text.len()), with_visible))
}

fn with_visible(mut shown: String, character: char) -> String {
    match character {
        _ if !is_invisible(character) => shown.push(character),
        // Caret notation shows the character whose bit 0x40 differs, such as `M` for a carriage return and `?` for DEL.
        '\0'..='\u{7f}' => shown.extend(['^', char::from(character as u8 ^ 0x40)]),
        _ => drop(write!(shown, "<U+{:04X}>", u32::from(character))), // writing to a string can't fail
    }
    shown
}

fn is_invisible(character: char) -> bool {
    let is_layout = matches!(character, '\n' | '\t');
    let turns_text = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    turns_text || character.is_control() && !is_layout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drives_a_terminal_is_shown() {
        for (text, shown) in [
            ("plain, é 漢 👩‍🔬\n\tof two lines", "plain, é 漢 👩‍🔬\n\tof two lines"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}red\r\n", "^[[2J^[]0;title^Gred^M\n"),
            ("\0\u{7f}", "^@^?"),
            ("\u{9b}31m \u{202e}gpj.exe\u{2066}", "<U+009B>31m <U+202E>gpj.exe<U+2066>"),
        ] {
            assert_eq!(visible(text), shown);
            assert_eq!(visible(shown), shown);
        }
    }

    #[test]
    fn of_all_characters_none_that_controls_is_left() {
        let all: String = ('\0'..=char::MAX).collect();
        let shown = visible(&all);
        assert!(!shown.chars().any(|character| character.is_control() && !matches!(character, '\n' | '\t')));
        assert!(!shown.contains(['\u{200f}', '\u{202a}', '\u{2067}']));
    }
}
