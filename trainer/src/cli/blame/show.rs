//! The text output for steps and their documents.

use stagecoach_display::table;
use stagecoach_replay::blame::{DocumentBlame, PartBlame, Spike, SpikeRule, StepBlame};
use stagecoach_telemetry::StepRecord;

/// The maximum number of characters that the table shows of a document's text.
const TEXT: usize = 40;

/// Returns a table of the spikes, by step.
pub(super) fn spikes(spikes: &[Spike], steps: &[StepRecord], rule: SpikeRule) -> String {
    let SpikeRule { window, deviations } = rule;
    if spikes.is_empty() {
        let highest = format!("{deviations} deviations above the median of the {window} steps before it");
        return format!("no spike: no step's loss or gradient norm is more than {highest}");
    }
    let row = |spike: &Spike| {
        let line = steps.iter().find(|line| line.step == spike.step);
        let cells = |value: Option<f64>, deviations: f64| match value {
            Some(value) => [format!("{value:.4}"), format!("{deviations:+.1}")],
            None => ["not finite".into(), "-".into()],
        };
        let loss = cells(line.and_then(|line| line.loss).map(f64::from), spike.loss_deviations);
        let norm = cells(line.and_then(|line| line.gradient_norm), spike.norm_deviations);
        [vec![spike.step.to_string()], loss.to_vec(), norm.to_vec()].concat()
    };
    let header = ["spike", "loss", "deviations", "gradient norm", "deviations"];
    table(Some(&header), &[0, 1, 2, 3, 4], spikes.iter().map(row).collect())
}

/// Describes a step and its documents.
pub(super) fn step(blame: &StepBlame) -> String {
    let StepBlame { step, targets, document_count, documents, .. } = blame;
    let number = |value: Option<String>| value.unwrap_or_else(|| "not finite".into());
    let loss = number(blame.loss.map(|loss| loss.to_string()));
    let norm = number(blame.gradient_norm.map(|norm| norm.to_string()));
    let rows = documents.iter().map(row).collect();
    let header =
        ["document", "offset", "targets", "loss", "raises it by", "of the loss", "of the norm", "own norm", "text"];
    format!(
        "step {step}: loss {loss}, gradient norm {norm}, {targets} targets of {document_count} documents\n{}\n\
         sum of the documents' losses {:.7}, sum of their shares of the norm {:.6}; {} of {document_count} documents shown",
        table(Some(&header), &[1, 3, 4, 5, 6, 7], rows),
        blame.sum_of_losses,
        blame.sum_of_norm_shares,
        documents.len()
    )
}

fn row(document: &DocumentBlame) -> Vec<String> {
    let first = document.parts.first();
    // the token that begins a document is not a target: target N is the token after the first N tokens
    let all = document.tokens - 1;
    let targets = |part: &PartBlame| match (part.first_token + 1, (part.first_token + part.tokens).min(all)) {
        (1, last) if last == all => format!("all {all}"),
        (first, last) => format!("{first}-{last} of {all}"),
    };
    let more = match document.parts.len() {
        0 | 1 => String::new(),
        parts => format!(" +{} part{}", parts - 1, if parts == 2 { "" } else { "s" }),
    };
    vec![
        excerpt(&document.document, 2 * TEXT),
        first.map_or_else(String::new, |part| part.offset.to_string()),
        first.map_or_else(String::new, targets) + &more,
        format!("{:.4}", document.loss),
        if document.excess.is_finite() { format!("{:+.4}", document.excess) } else { "-".into() },
        percent(document.loss_share),
        percent(document.norm_share),
        format!("{:.4}", document.gradient_norm),
        first.map_or_else(String::new, |part| excerpt(&part.text, TEXT)),
    ]
}

fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.2} %", 100.0 * share) } else { "not finite".into() }
}

/// Returns the beginning of a text as one line of at most `length` characters. Escapes characters that would control a
/// terminal.
fn excerpt(text: &str, length: usize) -> String {
    let mut shown = String::new();
    let mut count = 0;
    for character in text.trim_start().chars() {
        let escaped: String = match character {
            '\\' => "\\\\".into(),
            _ if character.is_control() || is_invisible(character) => character.escape_default().collect(),
            _ => character.into(),
        };
        count += escaped.chars().count();
        if count > length {
            shown.push('…');
            break;
        }
        shown += &escaped;
    }
    shown
}

/// Whether a character has no glyph but changes the display of its neighbours: zero-width characters, and characters
/// that change the direction of text.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_text_is_shortened_and_can_not_drive_the_terminal() {
        assert_eq!(excerpt("  To be,\nor not", 48), "To be,\\nor not");
        assert_eq!(excerpt("abcdef", 3), "abc…");
        assert_eq!(excerpt("\u{1b}[2J\u{202e}\\", 48), "\\u{1b}[2J\\u{202e}\\\\");
        assert_eq!(excerpt("aaa\u{1b}", 5), "aaa…");
    }

    proptest! {
        #[test]
        fn any_text_is_one_short_line(text: String, length in 0usize..60) {
            let shown = excerpt(&text, length);
            prop_assert!(shown.chars().count() <= length + 1);
            prop_assert!(!shown.chars().any(|c| c.is_control() || is_invisible(c)));
        }
    }
}
