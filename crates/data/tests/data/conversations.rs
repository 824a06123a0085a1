//! Conversations: the tokens that are trained on, rows of whole conversations, and conversations that are left out.

use std::collections::BTreeMap;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use proptest::prelude::*;
use serde_json::{Value, json};
use stagecoach_chat::{Chat, Conversation};
use stagecoach_data::{
    CorpusSource, DataConfig, Dataset, DocumentFormat, HeldOut, HeldOutFiles, IGNORE_INDEX, Microbatch, OnBadRecord,
    OnLongConversation, StreamPosition, Streaming, Tokenizer, part_texts, read_chat,
};

use crate::common::*;

/// A template without generation blocks: `g` begins a user's turn, and `h` an assistant's.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'oops' %}{{ raise_exception('no oops') }}{% endif %}\
    [BOT] {{ 'h' if m.role == 'assistant' else 'g' }} {{ m.content }} [EOT] {% endfor %}\
    {% if add_generation_prompt %}[BOT] h {% endif %}";

const DATE_TEMPLATE: &str = "{{ strftime_now('%Y') }} {% for m in messages %}{{ m.content }}{% endfor %}";

/// The letters b to f of a number in base 5, which no padding with the letter a changes.
fn letters_of(number: usize) -> String {
    let higher = if number < 5 { String::new() } else { letters_of(number / 5) + " " };
    higher + &char::from(b"bcdef"[number % 5]).to_string()
}

/// A conversation of `turns` questions with answers, which have `length` letters and a number.
pub fn conversation(number: usize, turns: usize, length: usize) -> Value {
    let text = letters_of(number) + &" a".repeat(length);
    let turn = |_| [json!({"role": "user", "content": "a b"}), json!({"role": "assistant", "content": text})];
    json!({"messages": (0..turns).flat_map(turn).collect::<Vec<_>>()})
}

fn lines(records: &[Value]) -> Vec<u8> {
    records.iter().flat_map(|record| format!("{record}\n").into_bytes()).collect()
}

/// A volume with these files, sequences of 24 tokens, and the template beside the tokenizer.
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

/// The inputs and targets of a conversation that is alone in its row.
fn alone(chat: &Chat, record: &Value) -> (Vec<i64>, Vec<i64>) {
    let tokens = chat.tokens(&Conversation::chat(record).unwrap()).unwrap();
    let inputs = tokens.ids.iter().map(|&id| i64::from(id)).collect();
    let next = tokens.ids.iter().zip(&tokens.trained).skip(1);
    let targets = next.map(|(&id, trained)| if *trained { i64::from(id) } else { IGNORE_INDEX });
    (inputs, targets.chain([IGNORE_INDEX]).collect())
}

/// The conversations in the rows of a microbatch: their inputs and targets. The last input of a row is not among the
/// inputs, because it has no target.
fn rows(microbatch: &Microbatch) -> Vec<Vec<(Vec<i64>, Vec<i64>)>> {
    let length = microbatch.layout.length;
    let row = |(index, starts): (usize, &Vec<u32>)| {
        let range = index * length..(index + 1) * length;
        let (inputs, targets) = (&microbatch.inputs[range.clone()], &microbatch.targets[range]);
        // after the last target there is padding
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

/// The rows of the first `sequences` sequences, one in each step.
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

/// Counts each conversation of `rows`. Every one must have the tokens and the mask of `Chat::tokens`; the last one of a
/// row may lack tokens after its last target.
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

fn open(config: &DataConfig, positions: &[StreamPosition]) -> Dataset {
    let prepared = stagecoach_data::prepare(config, &mut |_| {}).unwrap();
    let mut dataset = Dataset::open(config, &prepared).unwrap();
    dataset.make_windows(config, &prepared, positions).unwrap();
    dataset
}

fn sizes() -> impl Strategy<Value = Vec<(usize, usize)>> {
    // a question with its answer has 8 tokens, those of its number, and its length
    prop::collection::vec(prop_oneof![(Just(1usize), 0usize..14), (Just(2usize), 0usize..1)], 2..30)
}

fn records(sizes: &[(usize, usize)]) -> Vec<Value> {
    sizes.iter().enumerate().map(|(number, &(turns, length))| conversation(number, turns, length)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn an_epoch_has_each_conversation_once_with_the_mask_of_the_chat(sizes in sizes(), packing: bool, seed in 0u64..99) {
        let records = records(&sizes);
        let (first, second) = records.split_at(records.len() / 2);
        let mut volume =
            volume(DocumentFormat::Chat, &[("a.jsonl", &lines(first)), ("b.json", json!(second).to_string().as_bytes())]);
        volume.config.packing = packing;
        let chat = chat(&volume);
        let expected: Vec<_> = records.iter().map(|record| alone(&chat, record)).collect();
        let dataset = volume.open();
        let rows = all_rows(&dataset, seed, dataset.training_sequences().unwrap());
        prop_assert_eq!(count(&rows, &expected), vec![1; records.len()]);
        prop_assert!(packing || rows.len() == records.len());
    }

    #[test]
    fn a_stream_has_whole_conversations_and_resumes_between_them(
        sizes in sizes(), window in 1u64..6, cut in 1u64..20, seed in 0u64..99, held_out: bool,
    ) {
        let records = records(&sizes);
        let mut volume = volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&records))]);
        volume.config.seed = seed;
        if held_out {
            volume.config.held_out = HeldOut::Documents(0.3);
        }
        stream(&mut volume.config, window);
        let prepared = stagecoach_data::prepare(&volume.config, &mut |_| {});
        prop_assume!(prepared.is_ok());
        let chat = chat(&volume);
        let expected: Vec<_> = records.iter().map(|record| alone(&chat, record)).collect();
        let undisturbed = open(&volume.config, &[]);
        let rows = all_rows(&undisturbed, seed, 20 * window);
        let counts = count(&rows, &expected);
        // one after another, epoch after epoch
        let read: Vec<usize> = counts.iter().copied().filter(|&count| count > 0).collect();
        prop_assert!(read.iter().max().unwrap() - read.iter().min().unwrap() <= 1, "{counts:?}");
        prop_assert!(held_out || read.len() == counts.len() || read.iter().all(|&count| count == 1), "{counts:?}");
        let steps = |dataset: &Dataset, steps: std::ops::Range<u64>| -> Vec<_> {
            steps.map(|position| {
                dataset.wait_for_step(position, 1, &|_| true).unwrap();
                let plan = dataset.step_plan(seed, position, 1, 1).unwrap();
                (dataset.microbatch(&plan, 0), dataset.stream_positions(position + 1), dataset.stream_notes(position + 1))
            }).collect()
        };
        let undisturbed = steps(&open(&volume.config, &[]), 0..24);
        let mut elsewhere = volume.config.clone();
        elsewhere.streaming.as_mut().unwrap().folder = volume.folder.path().join("elsewhere");
        let before = steps(&open(&elsewhere, &[]), 0..cut);
        let after = steps(&open(&elsewhere, &before.last().unwrap().1), cut..24);
        prop_assert_eq!([before, after].concat(), undisturbed);
    }
}

/// Another corpus, of prompts with completions as texts: the completion and the end-of-text token are trained on.
#[test]
fn the_completion_of_a_prompt_is_trained_on_up_to_its_end() {
    let record = json!({"prompt": "a b", "completion": " c d"});
    let messages = json!({
        "prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}],
    });
    let volume = volume(DocumentFormat::PromptCompletion, &[("a.jsonl", &lines(&[record, messages]))]);
    assert_eq!(volume.ids()[..6], [BOS, A, B, C, D, EOS]);
    let dataset = volume.open();
    let plan = dataset.step_plan(0, 0, 1, 1).unwrap();
    let microbatch = dataset.microbatch(&plan, 0);
    let trained: Vec<i64> = microbatch.targets.into_iter().filter(|&target| target != IGNORE_INDEX).collect();
    assert_eq!(trained, [C, D, EOS, B, EOS].map(i64::from));
    assert_eq!(microbatch.layout.document_starts, [vec![6]]);
}

/// Conversations of 10, 20 and 40 tokens, of which the last does not fit into 24.
fn long(on_long: OnLongConversation) -> TestVolume {
    let records = [conversation(0, 1, 1), conversation(1, 2, 1), conversation(2, 4, 1)];
    let mut volume = volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&records))]);
    volume.config.conversations.on_long = on_long;
    volume
}

#[test]
fn long_conversations_are_refused_cut_or_left_out() {
    let refused = long(OnLongConversation::Fail).error_message();
    assert_eq!(
        refused,
        "VOLUME/corpus/a.jsonl, line 3: the conversation has 40 tokens, and a sequence has 24 with the target of its last \
         one: raise data.sequenceLength, or set data.onLongConversation to Truncate or Skip"
    );
    let skipped = long(OnLongConversation::Skip).prepare().unwrap();
    assert_eq!((skipped.documents, skipped.tokens), (2, 30));
    let note = "1 bad record is left out: 1 longer than data.sequenceLength; in corpus/a.jsonl (1)";
    assert_eq!(skipped.notes, [note]);
    let cut = long(OnLongConversation::Truncate).prepare().unwrap();
    assert_eq!((cut.documents, cut.tokens), (3, 30 + 25));
    assert_eq!(cut.notes, ["1 conversation is cut at the end of a turn, since it is longer than data.sequenceLength"]);
    // nothing of the assistant is left
    let mut short = long(OnLongConversation::Truncate);
    short.config.sequence_length = 9;
    let prepared = short.prepare().unwrap();
    assert_eq!((prepared.documents, prepared.tokens), (3, 30));
    short.config.sequence_length = 8;
    assert!(short.error_message().contains("3 are left out, most of them longer than data.sequenceLength"));
}

/// The tokens are counted before the proof of the mask, which costs most for conversations with many turns.
#[test]
fn a_long_conversation_that_is_left_out_needs_no_proof() {
    let mut volume = long(OnLongConversation::Skip);
    // without a header for add_generation_prompt no mask is proven
    let unproven = "{% for m in messages %}[BOT] {{ m.role[:1] }} {{ m.content }} [EOT] {% endfor %}";
    volume.write("letters/chat_template.jinja", unproven.as_bytes());
    volume.config.on_bad_record = OnBadRecord::Skip;
    let nothing = volume.error_message();
    assert!(nothing.contains("3 are left out, most of them without a proof"), "{nothing}");
    volume.config.sequence_length = 8;
    let nothing = volume.error_message();
    assert!(nothing.contains("3 are left out, most of them longer than data.sequenceLength"), "{nothing}");
}

/// Losses of texts are noted for conversations too, except in the part that is cut off.
#[test]
fn losses_of_a_conversation_are_counted() {
    let of = |contents: [&str; 4]| {
        let roles = ["user", "assistant", "user", "assistant"];
        let message = |(role, content): (&str, &str)| json!({"role": role, "content": content});
        let record = json!({"messages": roles.into_iter().zip(contents).map(message).collect::<Vec<_>>()});
        volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&[record]))])
    };
    let unknown = |count| format!("the tokenizer lacks characters of the corpus: {count} for them");
    let mut words = of(["a z", "z b", "c", "z"]);
    assert_eq!(words.prepare().unwrap().notes, [unknown("3 unknown tokens stand")]);
    words.config.sequence_length = 12;
    words.config.conversations.on_long = OnLongConversation::Truncate;
    let cut = "1 conversation is cut at the end of a turn, since it is longer than data.sequenceLength".to_owned();
    assert_eq!(words.prepare().unwrap().notes, [unknown("2 unknown tokens stand"), cut.clone()]);
    stream(&mut words.config, 1);
    let dataset = open(&words.config, &[]);
    dataset.wait_for_step(0, 1, &|_| true).unwrap();
    let noted = dataset.stream_notes(1);
    assert!(noted.iter().any(|note| note.contains("unknown tokens stand")), "{noted:?}");

    // characters without a token and without a token for such characters
    let mut letters = of(["a é", "漢 b", "c", "é"]);
    let mut tokenizer = crate::common::letters();
    tokenizer["model"] = json!({"type": "BPE", "vocab": {"a": 4, "b": 5, "c": 6, "g": 10, "h": 11}, "merges": []});
    for special in tokenizer["added_tokens"].as_array().unwrap().clone() {
        tokenizer["model"]["vocab"][special["content"].as_str().unwrap()] = special["id"].clone();
    }
    letters.write("letters/tokenizer.json", tokenizer.to_string().as_bytes());
    let dropped = |count: usize| {
        format!("the tokenizer has no token for {count} characters of the corpus, such as 'é', '漢': they are left out")
    };
    assert_eq!(letters.prepare().unwrap().notes, [dropped(3)]);
    letters.config.sequence_length = 9;
    letters.config.conversations.on_long = OnLongConversation::Truncate;
    assert_eq!(letters.prepare().unwrap().notes, [dropped(2), cut]);
}

#[test]
fn a_conversation_that_fits_exactly_is_kept() {
    let mut volume = long(OnLongConversation::Fail);
    volume.config.sequence_length = 39;
    assert_eq!(volume.open().training_sequences(), Some(2));
    volume.config.sequence_length = 38;
    assert!(volume.error_message().contains("has 40 tokens, and a sequence has 38"));
}

#[test]
fn bad_input_is_refused_in_a_sentence() {
    let good = conversation(0, 1, 0);
    let no_content = json!({"messages": [{"role": "user"}]});
    let of_template = json!({"messages": [{"role": "oops", "content": "a"}]});
    let chat = |records: &[Value]| volume(DocumentFormat::Chat, &[("a.jsonl", &lines(records))]);
    for (record, problem) in [
        (json!({"text": "a"}), "the record has no field messages: expected a list of messages with role and content"),
        (no_content, "message 1 (user) has no content: expected a text, or a list of parts of type text"),
        (of_template, "the chat template refuses the conversation: no oops (line 1)"),
        (json!([1]), "the record has no field messages: expected a list of messages with role and content"),
    ] {
        let message = chat(&[good.clone(), record]).error_message();
        assert_eq!(message, format!("VOLUME/corpus/a.jsonl, line 2: {problem}"));
    }
    let not_json = volume(DocumentFormat::Chat, &[("a.jsonl", b"{\"messages\": [")]).error_message();
    assert!(not_json.starts_with("VOLUME/corpus/a.jsonl, line 1: this is not JSON"), "{not_json}");
    let text = volume(DocumentFormat::Chat, &[("a.txt", b"a")]).error_message();
    assert_eq!(
        text,
        "VOLUME/corpus/a.txt has no records, and data.format Chat reads conversations from .jsonl, .json or .parquet files: \
         narrow data.paths, or set format to Text"
    );
    let rows = volume(DocumentFormat::Chat, &[("a.parquet", &parquet("text", &[Some("a")]))]).error_message();
    assert_eq!(
        rows,
        "VOLUME/corpus/a.parquet has no column \"messages\", which data.format Chat reads, only number, text"
    );
    let trained = chat(std::slice::from_ref(&good)).train(300).error_message();
    assert!(trained.starts_with("data.tokenizer is trained on the corpus"), "{trained}");
}

/// Faults of the job are refused even if bad records are left out.
#[test]
fn a_template_that_no_conversation_can_use_is_a_fault_of_the_job() {
    let mut volume = volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&[conversation(0, 1, 0)]))]);
    volume.config.on_bad_record = OnBadRecord::Skip;
    std::fs::remove_file(volume.folder.path().join("letters/chat_template.jinja")).unwrap();
    let without = volume.error_message();
    assert_eq!(
        without,
        "the tokenizer has no chat template: add chat_template.jinja beside it, or give one with data.chatTemplate"
    );
    volume.config.conversations.template = Some("own.jinja".into());
    let missing = volume.error_message();
    assert_eq!(missing, "data.chatTemplate: VOLUME/own.jinja does not exist: the path starts at the volume's root");
    volume.write("own.jinja", b"{% for %}");
    let broken = volume.error_message();
    assert!(broken.contains("the chat template can't be compiled") && broken.contains("data.chatTemplate"), "{broken}");
    volume.write("own.jinja", DATE_TEMPLATE.as_bytes());
    let date = volume.error_message();
    assert_eq!(date, "the chat template writes the date (strftime_now): give one with data.chatDate");
    volume.write("own.jinja", TEMPLATE.as_bytes());
    let files: BTreeMap<String, Vec<u8>> = volume.tokenizer_files();
    assert_eq!(files["chat_template.jinja"], TEMPLATE.as_bytes());
}

#[test]
fn conversations_that_are_left_out_are_counted_by_reason() {
    let records = [
        json!({"messages": []}),
        conversation(0, 1, 0),
        json!({"messages": [{"role": "oops", "content": "a"}, {"role": "assistant", "content": "a"}]}),
        json!({"messages": [{"role": "user", "content": "a"}]}),
        json!({"messages": [{"role": "user", "content": "b"}]}),
    ];
    let left_out = |records: &[Value]| {
        let mut volume = volume(DocumentFormat::Chat, &[("a.jsonl", &lines(records))]);
        volume.config.on_bad_record = OnBadRecord::Skip;
        volume
    };
    let note = "4 bad records are left out: 1 without a conversation, 1 refused by the chat template, 2 without a token to \
                train on; in corpus/a.jsonl (4)";
    assert_eq!(left_out(&records).prepare().unwrap().notes, [note]);
    // a conversation without an assistant is left out in any case
    let mut fails = left_out(&records[3..]);
    fails.write("corpus/b.jsonl", &lines(&records[1..2]));
    fails.config.on_bad_record = OnBadRecord::Fail;
    assert_eq!(fails.prepare().unwrap().documents, 1);
    let [first, _, third, fourth, fifth] = records;
    let mut all = left_out(&[first, third, fourth, fifth]);
    let nothing = "no conversation of corpus/a.jsonl and the files after it can be trained on: 4 are left out, most of them \
                   without a token to train on; set data.onBadRecord and data.onLongConversation to Fail to see the first \
                   of them";
    assert_eq!(all.error_message(), nothing);
    stream(&mut all.config, 2);
    all.config.held_out = HeldOut::Documents(0.5);
    assert_eq!(all.error_message(), nothing);
}

/// Rows of lists of structs, whose texts are declared as such or are plain bytes, two in a row group.
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

#[test]
fn all_formats_with_records_give_the_same_tokens() {
    let records = records(&[(1, 0), (2, 0), (1, 3), (1, 5), (2, 0)]);
    let of = |name: &str, contents: &[u8]| volume(DocumentFormat::Chat, &[(name, contents)]);
    let of_lines = of("a.jsonl", &lines(&records));
    let bitmap = |volume: &TestVolume| {
        let folder = volume.config.cache_root.join(volume.prepare().unwrap().folder);
        std::fs::read(folder.join("trained.bin")).unwrap()
    };
    let others = [
        of("a.json", json!(records).to_string().as_bytes()),
        of("a.jsonl.gz", &compressed(&[&lines(&records)], "gz")),
        of("a.parquet", &nested(&records, true)),
        of("b.parquet", &nested(&records, false)),
    ];
    for other in &others {
        assert_eq!((other.ids(), bitmap(other)), (of_lines.ids(), bitmap(&of_lines)));
    }
    // rows of one block, and a resumed reading within a row group
    let mut streamed = of("a.parquet", &nested(&records, true));
    stream(&mut streamed.config, 1);
    let chat = chat(&streamed);
    let expected: Vec<_> = records.iter().map(|record| alone(&chat, record)).collect();
    let dataset = open(&streamed.config, &[]);
    let rows = all_rows(&dataset, 0, 3);
    assert!(count(&rows, &expected).iter().all(|&count| count <= 1));
}

#[test]
fn held_out_conversations_stay_whole() {
    let records = records(&[(1, 0), (2, 0), (1, 3), (1, 5), (2, 0), (1, 9)]);
    let mut volume = volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&records))]);
    let chat = chat(&volume);
    let expected: Vec<_> = records.iter().map(|record| alone(&chat, record)).collect();
    for fraction in [0.01, 0.3, 0.6] {
        volume.config.held_out = HeldOut::Documents(fraction);
        let dataset = volume.open();
        let training = all_rows(&dataset, 0, dataset.training_sequences().unwrap());
        let [set] = &dataset.evaluation_sets(1)[..] else { panic!("one set") };
        let held_out: Vec<_> =
            (0..set.plan.layouts.len()).flat_map(|index| rows(&dataset.microbatch(&set.plan, index))).collect();
        assert!(!held_out.is_empty());
        let both = count(&training, &expected).into_iter().zip(count(&held_out, &expected));
        assert!(both.map(|(one, other)| one + other).all(|count| count == 1), "{fraction}");
    }
}

/// A source of texts in a mixture has the rows that it has alone.
#[test]
fn formats_of_sources_and_sets_mix() {
    let records = records(&[(1, 0), (2, 0), (1, 3)]);
    let texts: Vec<Value> = (0..9).map(|number| json!({"text": letters_of(100 + number)})).collect();
    let files: &[(&str, &[u8])] = &[("chat.jsonl", &lines(&records)), ("text.jsonl", &lines(&texts))];
    let mut mixed = volume(DocumentFormat::Chat, files);
    let source = |name: &str, format| CorpusSource {
        name: name.into(),
        format,
        ..CorpusSource::new(&format!("corpus/{name}.jsonl"))
    };
    mixed.config.sources = vec![source("text", DocumentFormat::Text), source("chat", DocumentFormat::Chat)];
    let mut texts_alone = mixed.config.clone();
    texts_alone.sources.truncate(1);
    let alone_rows = {
        let dataset = open(&texts_alone, &[]);
        let plan = dataset.step_plan(0, 0, 1, 1).unwrap();
        dataset.microbatch(&plan, 0)
    };
    let dataset = mixed.open();
    let plan = dataset.step_plan(0, 0, 2, 2).unwrap();
    assert_eq!(dataset.microbatch(&plan, 0), alone_rows);
    let chat = chat(&mixed);
    let expected: Vec<_> = records.iter().map(|record| alone(&chat, record)).collect();
    assert!(count(&rows(&dataset.microbatch(&plan, 1)), &expected).iter().sum::<usize>() > 0);
    // a corpus of texts with a held-out set of conversations
    let set = HeldOutFiles {
        name: "chat".into(),
        paths: vec!["corpus/chat.jsonl".into()],
        format: DocumentFormat::Chat,
        text_field: "text".into(),
    };
    texts_alone.held_out_files = vec![set];
    let dataset = open(&texts_alone, &[]);
    assert_eq!(dataset.held_out_files().next().map(|(name, _)| name), Some("chat"));
    let plan = dataset.step_plan(0, 0, 1, 1).unwrap();
    assert_eq!(dataset.microbatch(&plan, 0), alone_rows);
}

#[test]
fn the_cache_depends_on_everything_that_decides_the_tokens() {
    let records = records(&[(1, 0), (2, 0)]);
    let mut volume = volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&records))]);
    let mut folders = vec![volume.prepare().unwrap().folder];
    volume.config.conversations.date = Some("2026-02-28".parse().unwrap());
    folders.push(volume.prepare().unwrap().folder);
    volume.config.conversations.on_long = OnLongConversation::Skip;
    folders.push(volume.prepare().unwrap().folder);
    volume.config.sequence_length = 25;
    folders.push(volume.prepare().unwrap().folder);
    volume.write("letters/chat_template.jinja", TEMPLATE.replace(" [EOT] ", " [EOT]").as_bytes());
    folders.push(volume.prepare().unwrap().folder);
    let different: std::collections::BTreeSet<_> = folders.iter().collect();
    assert_eq!(different.len(), folders.len(), "{folders:?}");
    assert_ne!(volume.prepare().unwrap().chat_template, None);
}

#[test]
fn another_template_and_another_special_token_are_distinguished() {
    let records = records(&[(1, 0), (2, 0)]);
    let volume = volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&records))]);
    volume.write("letters/tokenizer_config.json", br#"{"unk_token": "[UNK]"}"#);
    let prepared = volume.prepare().unwrap();
    let refused = || {
        let error = stagecoach_data::document_indices(&volume.config, &prepared, &[], &mut |_| {}).unwrap_err();
        error.to_string()
    };
    volume.write("letters/tokenizer_config.json", br#"{"unk_token": "a"}"#);
    let token = refused();
    assert!(token.contains("the chat template gets another special token than the one"), "{token}");
    assert!(token.ends_with(r#"(its unk_token is "a", and was "[UNK]")"#), "{token}");
    volume.write("letters/tokenizer_config.json", br#"{"unk_token": "[UNK]"}"#);
    volume.write("letters/chat_template.jinja", TEMPLATE.replace(" [EOT] ", " [EOT]").as_bytes());
    let template = refused();
    assert!(template.contains("its chat template is another than the one"), "{template}");
}

#[test]
fn parts_of_conversations_are_found_again() {
    let records = records(&[(1, 0), (2, 0), (1, 3)]);
    let rejected = [json!({"messages": [{"role": "user", "content": "a"}]})];
    let volume = volume(
        DocumentFormat::Chat,
        &[("a.jsonl", &[lines(&records[..1]), lines(&rejected), lines(&records[1..])].concat())],
    );
    let prepared = volume.prepare().unwrap();
    let dataset = volume.open();
    let sequences = dataset.training_sequences().unwrap() as usize;
    let parts = dataset.document_parts(&dataset.step_plan(0, 0, sequences, sequences).unwrap());
    let texts = part_texts(&volume.config, &prepared, &parts, &mut |_| {}).unwrap();
    let mut numbers: Vec<u64> = texts.iter().map(|text| text.name.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 3, 4]);
    for (part, text) in parts.iter().zip(&texts) {
        assert_eq!((part.tokens.start, text.offset), (0, 0));
        assert!(text.document_tokens > part.tokens.end);
    }
}

/// The documents with their names, ids, and texts of the tokens that are trained on.
fn shown(config: &DataConfig, first: u64) -> Vec<(String, Vec<u32>, String)> {
    let mut all = Vec::new();
    stagecoach_data::show_documents(config, first, &mut |document| {
        let trained = document.tokens.iter().filter(|token| token.is_trained);
        let trained = trained.map(|token| token.text.trim()).collect::<Vec<_>>().join(" ");
        all.push((document.name.to_string(), document.tokens.iter().map(|token| token.id).collect(), trained));
        true
    })
    .unwrap();
    all
}

#[test]
fn documents_are_shown_as_training_reads_them() {
    let records = records(&[(1, 0), (2, 0), (1, 3)]);
    let rejected = [json!({"messages": [{"role": "user", "content": "a"}]})];
    let volume = volume(
        DocumentFormat::Chat,
        &[("a.jsonl", &[&lines(&records[..1])[..], b"\n", &lines(&rejected), &lines(&records[1..])].concat())],
    );
    let chat = chat(&volume);
    let documents = shown(&volume.config, 1);
    assert_eq!(
        documents.iter().map(|(name, ..)| &name[..]).collect::<Vec<_>>(),
        ["corpus/a.jsonl:1", "corpus/a.jsonl:4", "corpus/a.jsonl:5"]
    );
    for ((_, ids, _), record) in documents.iter().zip(&records) {
        assert_eq!(*ids, chat.tokens(&Conversation::chat(record).unwrap()).unwrap().ids);
    }
    assert_eq!(documents[2].2, "d a a a [EOT]");
    assert_eq!(shown(&volume.config, 3), documents[2..]);
    // texts, and the ids of another tool
    let ids = little_endian(&[BOS, A, EOS, B, C, EOS], 4);
    let texts =
        TestVolume::new(&[("a.txt", b"a b"), ("b.jsonl", b"{\"text\": \" \"}\n{\"text\": \"c\"}"), ("c.tokens", &ids)]);
    let documents = shown(&texts.config, 1);
    let names: Vec<&str> = documents.iter().map(|(name, ..)| &name[..]).collect();
    assert_eq!(names, ["corpus/a.txt:1", "corpus/b.jsonl:2", "corpus/c.tokens:1", "corpus/c.tokens:2"]);
    assert_eq!(documents.iter().flat_map(|(_, ids, _)| ids.clone()).collect::<Vec<_>>(), texts.ids());
    assert_eq!(documents[0].2, "a b [EOT]");
}
