//! Tests conversations that are cut, left out or refused.

use super::*;

/// Returns a volume with conversations of 10, 20 and 40 tokens. The last one is longer than a sequence of 24 tokens.
fn long(on_long: OnLongConversation) -> TestVolume {
    let records = [conversation(0, 1, 1), conversation(1, 2, 1), conversation(2, 4, 1)];
    let mut volume = volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&records))]);
    volume.config.conversations.on_long = on_long;
    volume
}

/// Asserts that the preparation leaves out all three conversations of `volume`, most of them for `reason`.
fn all_three_are_left_out(volume: &TestVolume, reason: &str) {
    let error = volume.error_message();
    let expected = format!("are left out, most of them {reason}");
    assert!(error.starts_with("all 3 conversations of ") && error.contains(&expected), "{error}");
}

#[test]
fn long_conversations_are_refused_cut_or_left_out() {
    let refused = long(OnLongConversation::Fail).error_message();
    assert_eq!(
        refused,
        "VOLUME/corpus/a.jsonl, line 3: the conversation has 40 tokens, more than the 24 inputs of a sequence and \
         the target of the last input: raise data.sequenceLength, or set data.onLongConversation to Truncate or Skip"
    );
    let skipped = long(OnLongConversation::Skip).prepare().unwrap();
    assert_eq!((skipped.documents, skipped.tokens), (2, 30));
    let note = "1 bad record is left out: 1 longer than data.sequenceLength; in corpus/a.jsonl (1)";
    assert_eq!(skipped.notes, [note]);
    let cut = long(OnLongConversation::Truncate).prepare().unwrap();
    assert_eq!((cut.documents, cut.tokens), (3, 30 + 25));
    assert_eq!(cut.notes, ["1 conversation is cut at the end of a turn, since it is longer than data.sequenceLength"]);
    // a question with its answer fits into a sequence of 9 tokens, but not into a sequence of 8 tokens
    let mut short = long(OnLongConversation::Truncate);
    short.config.sequence_length = 9;
    let prepared = short.prepare().unwrap();
    assert_eq!((prepared.documents, prepared.tokens), (3, 30));
    short.config.sequence_length = 8;
    all_three_are_left_out(&short, "longer than data.sequenceLength");
}

/// The encoder must prove which tokens of a conversation the assistant writes. The proof is expensive for conversations
/// with many turns, so the encoder counts the tokens first.
#[test]
fn a_long_conversation_that_is_left_out_needs_no_proof() {
    let mut volume = long(OnLongConversation::Skip);
    // this template ignores add_generation_prompt, so the encoder can't prove which tokens the assistant writes
    let unproven = "{% for m in messages %}[BOT] {{ m.role[:1] }} {{ m.content }} [EOT] {% endfor %}";
    volume.write("letters/chat_template.jinja", unproven.as_bytes());
    volume.config.on_bad_record = OnBadRecord::Skip;
    all_three_are_left_out(&volume, "without a proof");
    volume.config.sequence_length = 8;
    all_three_are_left_out(&volume, "longer than data.sequenceLength");
}

/// A note reports the characters for which the tokenizer has no token. The note does not count the characters in the
/// part of a conversation that is cut off.
#[test]
fn losses_of_a_conversation_are_counted() {
    let conversation_volume = |contents: [&str; 4]| {
        let roles = ["user", "assistant", "user", "assistant"];
        let message = |(role, content): (&str, &str)| json!({"role": role, "content": content});
        let record = json!({"messages": roles.into_iter().zip(contents).map(message).collect::<Vec<_>>()});
        volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&[record]))])
    };
    let unknown = |count| format!("the tokenizer lacks characters of the corpus: {count} for them");
    let mut words = conversation_volume(["a z", "z b", "c", "z"]);
    assert_eq!(words.prepare().unwrap().notes, [unknown("3 unknown tokens stand")]);
    words.config.sequence_length = 12;
    words.config.conversations.on_long = OnLongConversation::Truncate;
    let cut = "1 conversation is cut at the end of a turn, since it is longer than data.sequenceLength".to_owned();
    assert_eq!(words.prepare().unwrap().notes, [unknown("2 unknown tokens stand"), cut.clone()]);
    stream(&mut words.config, 1);
    let dataset = open_stream(&words.config, &[]);
    dataset.wait_for_step(0, 1, &|_| true).unwrap();
    let noted = dataset.stream_notes(1);
    assert!(noted.iter().any(|note| note.contains("unknown tokens stand")), "{noted:?}");

    // a tokenizer that lacks characters and has no unknown token
    let mut letters = conversation_volume(["a é", "漢 b", "c", "é"]);
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
    assert!(volume.error_message().contains("has 40 tokens, more than the 38 inputs of a sequence"));
}

#[test]
fn bad_input_is_refused_in_a_sentence() {
    let good = conversation(0, 1, 0);
    let no_content = json!({"messages": [{"role": "user"}]});
    let of_template = json!({"messages": [{"role": "oops", "content": "a"}]});
    let chat = |records: &[Value]| volume(DocumentFormat::Chat, &[("a.jsonl", &lines(records))]);
    for (record, problem) in [
        (
            json!({"text": "a"}),
            "the record has no field messages, only text: expected a list of messages with role and content",
        ),
        (no_content, "message 1 (user) has no content: expected a text, or a list of parts of type text"),
        (of_template, "the chat template refuses the conversation: no oops (line 1)"),
        (
            json!([1]),
            "the record has no field messages (it is a list): expected a list of messages with role and content",
        ),
    ] {
        let message = chat(&[good.clone(), record]).error_message();
        assert_eq!(message, format!("VOLUME/corpus/a.jsonl, line 2: {problem}"));
    }
    let not_json = volume(DocumentFormat::Chat, &[("a.jsonl", b"{\"messages\": [")]).error_message();
    assert!(not_json.starts_with("VOLUME/corpus/a.jsonl, line 1: this is not JSON"), "{not_json}");
    let text = volume(DocumentFormat::Chat, &[("a.txt", b"a")]).error_message();
    assert_eq!(
        text,
        "VOLUME/corpus/a.txt has no records, and data.format Chat reads conversations from .jsonl, .json or .parquet \
         files: narrow data.paths, or set format to Text"
    );
    let rows = volume(DocumentFormat::Chat, &[("a.parquet", &parquet("text", &[Some("a")]))]).error_message();
    assert_eq!(
        rows,
        "VOLUME/corpus/a.parquet has no column \"messages\", which data.format Chat reads, only number, text"
    );
    let trained = chat(std::slice::from_ref(&good)).train(300).error_message();
    assert!(trained.starts_with("data.tokenizer is trained on the corpus"), "{trained}");
}

/// A faulty chat template ends the job even if the job leaves out bad records.
#[test]
fn a_template_that_no_conversation_can_use_is_a_fault_of_the_job() {
    let mut volume = volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&[conversation(0, 1, 0)]))]);
    volume.config.on_bad_record = OnBadRecord::Skip;
    std::fs::remove_file(volume.folder.path().join("letters/chat_template.jinja")).unwrap();
    let without = volume.error_message();
    assert_eq!(
        without,
        "the tokenizer VOLUME/letters/tokenizer.json: it has no chat template: add chat_template.jinja beside it, or \
         give one with data.chatTemplate"
    );
    volume.config.conversations.template = Some("own.jinja".into());
    let missing = volume.error_message();
    assert_eq!(missing, "data.chatTemplate: VOLUME/own.jinja does not exist: the path starts at the volume's root");
    volume.write("own.jinja", b"{% for %}");
    let broken = volume.error_message();
    assert!(broken.starts_with("VOLUME/own.jinja: the chat template can't be compiled"), "{broken}");
    assert!(broken.ends_with("data.chatTemplate"), "{broken}");
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
    let note = "4 bad records are left out: 1 without a conversation, 1 refused by the chat template, 2 without a \
                message of the role assistant; in corpus/a.jsonl (4)";
    assert_eq!(left_out(&records).prepare().unwrap().notes, [note]);
    // a conversation without an assistant is left out even if bad records are refused
    let mut fails = left_out(&records[3..]);
    fails.write("corpus/b.jsonl", &lines(&records[1..2]));
    fails.config.on_bad_record = OnBadRecord::Fail;
    assert_eq!(fails.prepare().unwrap().documents, 1);
    let [first, _, third, fourth, fifth] = records;
    let mut all = left_out(&[first, third, fourth, fifth]);
    let nothing = "all 4 conversations of corpus/a.jsonl and the files after it are left out, most of them without a \
                   message of the role assistant: give the messages to train on the role assistant";
    assert_eq!(all.error_message(), nothing);
    stream(&mut all.config, 2);
    all.config.held_out = HeldOut::Documents(0.5);
    assert_eq!(all.error_message(), nothing);
}

/// A message with an unknown role is not trained on. Without a note, a misspelt role would silently remove answers from
/// the loss.
#[test]
fn messages_of_unknown_roles_are_noted() {
    let message = |role: &str| json!({"role": role, "content": "the road"});
    let record = |roles: &[&str]| json!({"messages": roles.iter().map(|role| message(role)).collect::<Vec<_>>()});
    let records = [record(&["user", "assistant", "user", "asistant"]), record(&["system", "user", "assistant"])];
    let prepared = volume(DocumentFormat::Chat, &[("a.jsonl", &lines(&records))]).prepare().unwrap();
    assert_eq!(
        prepared.notes.last().unwrap(),
        "1 message has an unknown role, such as \"asistant\" (known: assistant, developer, environment, function, \
         ipython, system, tool, user): only messages with the role assistant are trained on"
    );
}
