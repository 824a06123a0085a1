//! Tests conversations: the tokens that are trained on, rows of whole conversations, and conversations that are left
//! out.

mod documents;
mod left_out;
mod rows;

use std::collections::BTreeMap;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use proptest::prelude::*;
use serde_json::{Value, json};
use stagecoach_chat::{Chat, Conversation};
use stagecoach_data::{
    CorpusSource, DataConfig, Dataset, DocumentFormat, HeldOut, HeldOutFiles, IGNORE_INDEX, Microbatch, OnBadRecord,
    OnLongConversation, Streaming, Tokenizer, part_texts, read_chat,
};

use crate::common::*;

/// A template without generation blocks: `g` begins a user's turn, and `h` begins an assistant's turn.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'oops' %}{{ raise_exception('no oops') }}{% endif %}\
    [BOT] {{ 'h' if m.role == 'assistant' else 'g' }} {{ m.content }} [EOT] {% endfor %}\
    {% if add_generation_prompt %}[BOT] h {% endif %}";

const DATE_TEMPLATE: &str = "{{ strftime_now('%Y') }} {% for m in messages %}{{ m.content }}{% endfor %}";

/// Returns a number in base 5 with the letters b to f as digits. Padding with the letter a does not change the number.
fn letters_of(number: usize) -> String {
    let higher = if number < 5 { String::new() } else { letters_of(number / 5) + " " };
    higher + &char::from(b"bcdef"[number % 5]).to_string()
}

/// Returns a conversation of `turns` questions with answers. Each answer has the letters of `number`, and `length`
/// times the letter a.
pub fn conversation(number: usize, turns: usize, length: usize) -> Value {
    let text = letters_of(number) + &" a".repeat(length);
    let turn = |_| [json!({"role": "user", "content": "a b"}), json!({"role": "assistant", "content": text})];
    json!({"messages": (0..turns).flat_map(turn).collect::<Vec<_>>()})
}

fn lines(records: &[Value]) -> Vec<u8> {
    records.iter().flat_map(|record| format!("{record}\n").into_bytes()).collect()
}

/// Returns a volume with `files`, sequences of 24 tokens, and the template beside the tokenizer.
pub fn volume(format: DocumentFormat, files: &[(&str, &[u8])]) -> TestVolume {
    let mut volume = TestVolume::new(files);
    volume.write("letters/chat_template.jinja", TEMPLATE.as_bytes());
    volume.config.sequence_length = 24;
    volume.config.sources[0].format = format;
    volume
}

fn chat(volume: &TestVolume) -> Chat {
    let tokenizer = Tokenizer::load(&volume.folder.path().join("letters/tokenizer.json")).unwrap();
    read_chat(&tokenizer, None).unwrap().unwrap()
}

/// Returns the inputs and targets of a conversation that is alone in its row.
fn alone(chat: &Chat, record: &Value) -> (Vec<i64>, Vec<i64>) {
    let tokens = chat.tokens(&Conversation::chat(record).unwrap()).unwrap();
    let inputs = tokens.ids.iter().map(|&id| i64::from(id)).collect();
    let next = tokens.ids.iter().zip(&tokens.trained).skip(1);
    let targets = next.map(|(&id, trained)| if *trained { i64::from(id) } else { IGNORE_INDEX });
    (inputs, targets.chain([IGNORE_INDEX]).collect())
}

/// Returns the conversations in the rows of a microbatch: their inputs and targets. The last input of a row is left
/// out, because it has no target.
fn rows(microbatch: &Microbatch) -> Vec<Vec<(Vec<i64>, Vec<i64>)>> {
    let length = microbatch.layout.length;
    let row = |(index, starts): (usize, &Vec<u32>)| {
        let range = index * length..(index + 1) * length;
        let (inputs, targets) = (&microbatch.inputs[range.clone()], &microbatch.targets[range]);
        // padding follows the last target
        let end = targets.iter().rposition(|&target| target != IGNORE_INDEX).unwrap() + 1;
        let starts: Vec<usize> =
            [0].into_iter().chain(starts.iter().map(|&start| start as usize)).filter(|&start| start < end).collect();
        let ends = starts.iter().skip(1).copied().chain([end]);
        starts
            .iter()
            .zip(ends)
            .map(|(&start, end)| (inputs[start..end].to_vec(), targets[start..end].to_vec()))
            .collect()
    };
    microbatch.layout.document_starts.iter().enumerate().map(row).collect()
}

/// Returns the rows of the first `sequences` sequences, one in each step.
fn all_rows(dataset: &Dataset, seed: u64, sequences: u64) -> Vec<Vec<(Vec<i64>, Vec<i64>)>> {
    let row = |position| {
        dataset.wait_for_step(position, 1, &|_| true).unwrap();
        let plan = dataset.step_plan(seed, position, 1, 1).unwrap();
        let microbatch = dataset.microbatch(&plan, 0);
        let targets = microbatch.targets.iter().filter(|&&target| target != IGNORE_INDEX).count();
        assert_eq!(plan.target_count, targets as u64);
        assert!(microbatch.layout.length <= 24);
        rows(&microbatch).remove(0)
    };
    (0..sequences).map(row).collect()
}

/// Returns how often `rows` contain each conversation of `expected`. Every conversation in `rows` must have the tokens
/// and the mask of `Chat::tokens`. The last conversation of a row may lack tokens after its last target.
fn count(rows: &[Vec<(Vec<i64>, Vec<i64>)>], expected: &[(Vec<i64>, Vec<i64>)]) -> Vec<usize> {
    let mut counts = vec![0; expected.len()];
    for row in rows {
        for (inputs, targets) in row {
            let is_this = |(whole, of_whole): &(Vec<i64>, Vec<i64>)| {
                whole.starts_with(inputs)
                    && of_whole.starts_with(targets)
                    && of_whole[targets.len()..].iter().all(|&target| target == IGNORE_INDEX)
            };
            let found = expected.iter().position(is_this);
            counts[found.unwrap_or_else(|| panic!("{inputs:?} {targets:?} is no whole conversation"))] += 1;
        }
    }
    counts
}

fn stream(config: &mut DataConfig, window_sequences: u64) {
    let folder = config.volume_root.join("windows");
    config.streaming = Some(Streaming { folder, window_sequences, block_bytes: 300, max_bytes: 1 << 30 });
}

fn sizes() -> impl Strategy<Value = Vec<(usize, usize)>> {
    // a question with its answer has 8 tokens, plus one for each digit of the number, and one for each letter of the
    // length
    prop::collection::vec(prop_oneof![(Just(1usize), 0usize..14), (Just(2usize), 0usize..1)], 2..30)
}

fn records(sizes: &[(usize, usize)]) -> Vec<Value> {
    sizes.iter().enumerate().map(|(number, &(turns, length))| conversation(number, turns, length)).collect()
}

/// Returns a Parquet file of lists of structs, with two rows in a row group. If `is_declared` is false, the schema does
/// not declare the texts as UTF-8.
fn nested(conversations: &[Value], is_declared: bool) -> Vec<u8> {
    nested_in_groups(conversations, is_declared, 2)
}

pub fn nested_in_groups(conversations: &[Value], is_declared: bool, rows_of_group: usize) -> Vec<u8> {
    let schema = "message rows { optional group messages (LIST) { repeated group list { optional group element {
        optional binary role (utf8); optional binary content (utf8); optional binary name (utf8); } } } required int32 id; }";
    let schema = if is_declared { schema.to_owned() } else { schema.replace(" (utf8)", "") };
    let schema = parquet::schema::parser::parse_message_type(&schema).unwrap();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema.into(), Default::default()).unwrap();
    for group in conversations.chunks(rows_of_group) {
        let mut rows = writer.next_row_group().unwrap();
        for field in ["role", "content", "name"] {
            let (mut values, mut defined, mut repeated): (Vec<ByteArray>, Vec<i16>, Vec<i16>) = Default::default();
            for conversation in group {
                for (index, message) in conversation["messages"].as_array().unwrap().iter().enumerate() {
                    repeated.push(i16::from(index > 0));
                    match message[field].as_str() {
                        Some(text) => {
                            values.push(text.into());
                            defined.push(4);
                        }
                        None => defined.push(3),
                    }
                }
            }
            let mut column = rows.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&values, Some(&defined), Some(&repeated)).unwrap();
            column.close().unwrap();
        }
        let mut ids = rows.next_column().unwrap().unwrap();
        ids.typed::<parquet::data_type::Int32Type>().write_batch(&vec![7; group.len()], None, None).unwrap();
        ids.close().unwrap();
        rows.close().unwrap();
    }
    writer.into_inner().unwrap()
}
