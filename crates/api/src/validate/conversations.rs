//! Checks the format of the records, and the fields that only conversations use.

use super::Problems;
use crate::job::{DataFormat, DataSpec, OnLongConversation, PipelineJobSpec, TokenizerSpec};

const AT: &str = "spec.data";

const OWN_FIELDS: &str = "remove it, since conversations have fields of their own";

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    let Some(data) = &spec.data else { return };
    let has_conversations = data.has_conversations();
    let conversation_fields = [
        ("chatTemplate", data.chat_template.is_some()),
        ("chatDate", data.chat_date.is_some()),
        ("onLongConversation", data.on_long_conversation != OnLongConversation::Fail),
    ];
    for (field, _) in conversation_fields.into_iter().filter(|(_, given)| *given) {
        problems.require(has_conversations, format!("{AT}.format"), || {
            format!("is Text, and {field} is given, which is for conversations: remove it, or set format to Chat or PromptCompletion")
        });
    }
    if let Some(date) = &data.chat_date {
        problems.require(is_date(date), format!("{AT}.chatDate"), || {
            format!("\"{}\" is no date: write it as YYYY-MM-DD", date.escape_debug())
        });
    }
    let is_trained = matches!(data.tokenizer, TokenizerSpec::Train(_));
    problems.require(!has_conversations || !is_trained, format!("{AT}.tokenizer.type"), || {
        "is Train, but conversations need the special tokens and the chat template of a model: name the model's tokenizer with type File"
            .into()
    });
    check_text_fields(data, problems);
}

fn check_text_fields(data: &DataSpec, problems: &mut Problems) {
    let has_text = data.formats().any(|format| format == DataFormat::Text);
    problems.require(data.text_field == "text" || has_text, format!("{AT}.textField"), || {
        format!("is given, and no source has the format Text: {OWN_FIELDS}")
    });
    let sources = data.sources.iter().flatten().map(|source| (source.format, &source.text_field));
    let sets = data.evaluation.iter().flat_map(|evaluation| &evaluation.sets);
    let sets = sets.map(|set| (set.format, &set.text_field));
    let places = [("sources", sources.collect::<Vec<_>>()), ("evaluation.sets", sets.collect())];
    for (list, parts) in places {
        for (index, (format, field)) in parts.into_iter().enumerate() {
            let format = format.unwrap_or(data.format);
            let fits = field.is_none() || format == DataFormat::Text;
            problems.require(fits, format!("{AT}.{list}[{index}].textField"), || {
                format!("is given beside the format {}: {OWN_FIELDS}", format.as_str())
            });
        }
    }
}

/// Whether `text` is an existing date in the form `YYYY-MM-DD`.
fn is_date(text: &str) -> bool {
    let is_digit = |at| matches!(at, 0..=3 | 5 | 6 | 8 | 9);
    let is_formed = text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| if is_digit(at) { byte.is_ascii_digit() } else { byte == b'-' });
    let number = |range: std::ops::Range<usize>| text.get(range).and_then(|digits| digits.parse::<u32>().ok());
    let (Some(year), Some(month), Some(day)) = (number(0..4), number(5..7), number(8..10)) else { return false };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u32::from(is_leap),
        _ => 0,
    };
    is_formed && (1..=days).contains(&day)
}
