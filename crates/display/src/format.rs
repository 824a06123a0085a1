//! Formats quantities and tables as text, and breaks text into lines. Bytes and counts use `HumanBytes` and
//! `HumanCount` of `indicatif` instead.

use comfy_table::{CellAlignment, Table, presets};
use jiff::{SignedDuration, Timestamp};
use stagecoach_api::job::FloatString;
use stagecoach_lifecycle::UnixMillis;

/// Formats seconds as `0.4s`, `41s`, `3m 12s` or `2h 5m 3s`.
pub fn duration(seconds: f64) -> String {
    match SignedDuration::try_from_secs_f64(seconds.round()) {
        Ok(whole) if seconds >= 9.95 => format!("{whole:#}"),
        Ok(_) if seconds >= 0.0 => format!("{seconds:.1}s"),
        _ => "-".into(),
    }
}

/// Formats a share from 0 to 1 as a whole percentage. A share that is not finite is `-`.
pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.0}%", share * 100.0) } else { "-".into() }
}

/// Formats a loss in nats. `None` means that the loss was not finite.
pub fn nats(loss: Option<f64>) -> String {
    match loss {
        Some(loss) if loss.is_finite() => format!("{:.4}", FloatString(loss).rounded(4).0),
        _ => "not finite".into(),
    }
}

/// Formats a date and time in UTC, to the second.
pub fn time(at: UnixMillis) -> String {
    let timestamp = i64::try_from(at.0).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok());
    timestamp.map_or_else(|| "an unknown time".into(), |time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

/// Returns a table without borders, whose columns are two spaces apart. The columns listed in `right_aligned` are
/// aligned to the right.
pub fn table(header: Option<&[&str]>, right_aligned: &[usize], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    if let Some(header) = header {
        table.set_header(header.iter().copied());
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right_aligned.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Breaks paragraphs between words into lines of at most `width` columns. Each line begins with `indent` spaces. Each
/// line of `text` is a paragraph. If a paragraph begins with `- `, its further lines begin with two more spaces. A long
/// word stays whole.
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
    fn a_loss_of_nearly_nothing_has_no_sign() {
        let texts = [-0.0, -0.00004, 0.00004, -0.00006, 2.5].map(|loss| nats(Some(loss)));
        assert_eq!(texts, ["0.0000", "0.0000", "0.0000", "-0.0001", "2.5000"]);
    }

    #[test]
    fn durations_change_their_unit() {
        let pairs = [
            (0.42, "0.4s"),
            (41.2, "41s"),
            (59.6, "1m"),
            (192.0, "3m 12s"),
            (7503.0, "2h 5m 3s"),
            (f64::NAN, "-"),
            (-1.0, "-"),
        ];
        for (seconds, text) in pairs {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["7".into(), "a".into()], vec!["1000".into(), "b".into()]];
        assert_eq!(table(Some(&["STEP", "NAME"]), &[0], rows.clone()), "STEP  NAME\n   7  a\n1000  b");
        assert_eq!(table(None, &[], rows[..1].to_vec()), "7  a");
    }

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
