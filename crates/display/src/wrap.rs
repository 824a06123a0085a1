//! Text in lines of a width.

/// Breaks paragraphs between words, so that lines of `width` columns have `indent` spaces and text. Each line of `text`
/// is a paragraph. In a paragraph that begins with `- ` the next lines are indented further. A long word stays whole.
pub(crate) fn wrap(text: &str, indent: usize, width: usize) -> String {
    text.lines().map(|paragraph| wrap_paragraph(paragraph, indent, width)).collect::<Vec<_>>().join("\n")
}

fn wrap_paragraph(paragraph: &str, indent: usize, width: usize) -> String {
    let hanging = indent + if paragraph.starts_with("- ") { 2 } else { 0 };
    let mut wrapped = " ".repeat(indent);
    let mut column = indent;
    for (index, word) in paragraph.split_whitespace().enumerate() {
        let letters = word.chars().count();
        if index > 0 && column + 1 + letters > width {
            wrapped.push('\n');
            wrapped.push_str(&" ".repeat(hanging));
            column = hanging;
        } else if index > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += letters;
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_broken_between_words() {
        assert_eq!(wrap("one two three", 2, 9), "  one two\n  three");
        assert_eq!(wrap("one two three\nfour", 0, 80), "one two three\nfour");
        assert_eq!(wrap("- one two three", 1, 8), " - one\n   two\n   three");
        assert_eq!(wrap("a word-of-many-letters b", 2, 10), "  a\n  word-of-many-letters\n  b");
        assert_eq!(wrap("a b", 4, 0), "    a\n    b");
        assert_eq!(wrap("", 4, 80), "");
    }
}
