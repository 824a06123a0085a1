//! Tests rows of whole conversations, in epochs, streams, held-out sets and mixtures.

use super::*;

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
        let undisturbed = open_stream(&volume.config, &[]);
        let rows = all_rows(&undisturbed, seed, 20 * window);
        let counts = count(&rows, &expected);
        // a stream reads one epoch after the other, so the counts differ by at most one
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
        let undisturbed = steps(&open_stream(&volume.config, &[]), 0..24);
        let mut elsewhere = volume.config.clone();
        elsewhere.streaming.as_mut().unwrap().folder = volume.folder.path().join("elsewhere");
        let before = steps(&open_stream(&elsewhere, &[]), 0..cut);
        let after = steps(&open_stream(&elsewhere, &before.last().unwrap().1), cut..24);
        prop_assert_eq!([before, after].concat(), undisturbed);
    }
}

/// If prompts and completions are texts, the completion and the end-of-text token are trained on.
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

/// A source of texts has the same rows in a mixture as in a corpus without other sources.
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
        let dataset = open_stream(&texts_alone, &[]);
        let plan = dataset.step_plan(0, 0, 1, 1).unwrap();
        dataset.microbatch(&plan, 0)
    };
    let dataset = mixed.open();
    let plan = dataset.step_plan(0, 0, 2, 2).unwrap();
    assert_eq!(dataset.microbatch(&plan, 0), alone_rows);
    let chat = chat(&mixed);
    let expected: Vec<_> = records.iter().map(|record| alone(&chat, record)).collect();
    assert!(count(&rows(&dataset.microbatch(&plan, 1)), &expected).iter().sum::<usize>() > 0);
    // a corpus of texts may have a held-out set of conversations
    let set = HeldOutFiles {
        name: "chat".into(),
        paths: vec!["corpus/chat.jsonl".into()],
        format: DocumentFormat::Chat,
        text_field: "text".into(),
    };
    texts_alone.held_out_files = vec![set];
    let dataset = open_stream(&texts_alone, &[]);
    assert_eq!(dataset.held_out_files().next().map(|(name, _)| name), Some("chat"));
    let plan = dataset.step_plan(0, 0, 1, 1).unwrap();
    assert_eq!(dataset.microbatch(&plan, 0), alone_rows);
}
