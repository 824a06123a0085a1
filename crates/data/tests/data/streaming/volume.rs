//! Tests windows on the volume, the thread that makes windows, and sources that change or fail during training.

use std::fs;
use std::path::Path;

use stagecoach_data::{CorpusSource, DataError, Dataset, HeldOut, OnBadRecord};
use stagecoach_test_wait::until;

use super::{BATCH, documents, json_lines, stream, train, volume};
use crate::common::{TestVolume, open_stream};

#[test]
fn a_source_that_fails_is_one_sentence_after_the_windows_before_it() {
    let mut volume = TestVolume::new(&[]);
    let good = String::from_utf8(json_lines(&documents(64..128))).unwrap();
    volume.write("corpus/a.jsonl", format!("{good}{{\"text\": null}}\n").as_bytes());
    volume.config.packing = false;
    stream(&mut volume, 16);
    let dataset = open_stream(&volume.config, &[]);
    assert_eq!(train(&dataset, 0, 0..21).len(), 21);
    let error = dataset.wait_for_step(63, BATCH, &|_| true).unwrap_err().to_string();
    assert!(error.contains("a.jsonl") && error.contains("line 65"), "{error}");

    volume.config.on_bad_record = OnBadRecord::Skip;
    let dataset = open_stream(&volume.config, &[]);
    train(&dataset, 0, 0..28);
    let expected = [
        "of the streamed corpus: 95 documents read",
        "1 bad record is left out: 1 with null for text; in corpus/a.jsonl (1)",
    ];
    assert_eq!(dataset.stream_notes(28 * BATCH as u64), expected);

    // the file grows while it is read
    let changed = volume.write("corpus/a.jsonl", good.as_bytes());
    let dataset = open_stream(&volume.config, &[]);
    train(&dataset, 0, 0..1);
    fs::write(&changed, good.repeat(2)).unwrap();
    let error = (1..100).find_map(|step| dataset.wait_for_step(3 * step, BATCH, &|_| true).err()).unwrap();
    assert!(matches!(error, DataError::Changed { .. }), "{error}");
}

#[test]
fn the_volume_keeps_the_windows_in_use_and_as_many_others_as_it_may() {
    let mut volume = volume(60);
    stream(&mut volume, 4);
    let kept = |folder: &Path| {
        let source = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path().join("0");
        let mut names: Vec<String> =
            fs::read_dir(source).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    for (max_bytes, expected) in [(0, 3..=6), (1 << 30, 20..=30)] {
        let streaming = volume.config.streaming.as_mut().unwrap();
        streaming.max_bytes = max_bytes;
        streaming.folder = volume.folder.path().join(format!("windows-{max_bytes}"));
        let folder = streaming.folder.clone();
        let dataset = open_stream(&volume.config, &[]);
        train(&dataset, 0, 0..30);
        drop(dataset);
        assert!(expected.contains(&kept(&folder).len()), "{:?}", kept(&folder));
    }
}

#[test]
fn parts_of_windows_are_never_taken_for_windows() {
    let volume = volume(20);
    let mut config = volume.config.clone();
    config.held_out = HeldOut::Documents(0.2);
    config.streaming.as_mut().unwrap().max_bytes = 1 << 30;
    let undisturbed = train(&open_stream(&config, &[]), 0, 0..12);
    let prepared = stagecoach_data::prepare(&config, &mut |_| {}).unwrap();
    let windows = config.streaming.as_ref().unwrap().folder.join(&prepared.folder).join("0");
    // one window is partly removed, one is truncated, one has a damaged header, and one is unfinished
    fs::remove_file(windows.join("0000000000/ids.bin")).unwrap();
    let damaged = windows.join("0000000001/ids.bin");
    fs::File::options().write(true).open(&damaged).unwrap().set_len(1).unwrap();
    let path = windows.join("0000000002/window.json");
    let mut header: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    header["documents"] = u64::MAX.into();
    fs::write(&path, header.to_string()).unwrap();
    let unfinished = windows.join("unfinished-0123456789abcdef");
    fs::create_dir(&unfinished).unwrap();
    let of_another_cache = windows.parent().unwrap().with_file_name("0123456789abcdef0123456789abcdef");
    fs::create_dir(&of_another_cache).unwrap();
    assert_eq!(train(&open_stream(&config, &[]), 0, 0..12), undisturbed);
    assert!(!of_another_cache.exists() && !unfinished.exists());
}

#[test]
fn windows_are_made_of_the_files_that_were_prepared() {
    let volume = volume(20);
    let prepared = stagecoach_data::prepare(&volume.config, &mut |_| {}).unwrap();
    let mut dataset = Dataset::open(&volume.config, &prepared).unwrap();
    volume.write("corpus/e.jsonl", &json_lines(&documents(0..3)));
    let error = dataset.make_windows(&volume.config, &prepared, &[]).unwrap_err();
    assert!(error.to_string().starts_with("the corpus has other files, or files with other contents"), "{error}");
}

/// If a file of one block is overwritten or cut off while it is read, no window contains parts of both contents.
#[test]
fn a_file_that_changes_within_a_block_ends_the_stream() {
    let texts = documents(64..512);
    for rest in [json_lines(&documents(512..960)), json_lines(&texts[..200])] {
        let mut volume = TestVolume::new(&[]);
        volume.write("corpus/a.jsonl", &json_lines(&texts));
        stream(&mut volume, 8);
        let undisturbed = train(&open_stream(&volume.config, &[]), 0, 0..100);
        volume.config.streaming.as_mut().unwrap().folder = volume.folder.path().join("elsewhere");
        let dataset = open_stream(&volume.config, &[]);
        let mut trained = train(&dataset, 0, 0..3);
        fs::write(volume.folder.path().join("corpus/a.jsonl"), &rest).unwrap();
        let error = loop {
            let step = trained.len() as u64;
            assert!(step < 100, "the change was not noticed");
            match dataset.wait_for_step(step * BATCH as u64, BATCH, &|_| true) {
                Ok(_) => trained.extend(train(&dataset, 0, step..step + 1)),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("changed while it was being read"), "{error}");
        assert_eq!(trained, undisturbed[..trained.len()]);
    }
}

/// Returns the names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.filter_map(|task| Some(fs::read_to_string(task.path().join("comm")).ok()?.trim().to_owned())).collect()
}

#[test]
fn an_unneeded_maker_ends_within_its_window() {
    let mut volume = TestVolume::new(&[]);
    // no other test has so many sources, so only this test has a thread data-23
    volume.config.sources = (0..24)
        .map(|source| {
            volume.write(&format!("corpus/{source}.jsonl"), &json_lines(&documents(source * 8..source * 8 + 8)));
            CorpusSource { name: format!("s{source}"), ..CorpusSource::new(&format!("corpus/{source}.jsonl")) }
        })
        .collect();
    // a window of this size needs so many epochs that its maker would run for hours
    stream(&mut volume, 1 << 28);
    let dataset = open_stream(&volume.config, &[]);
    let runs = || threads().contains(&"data-23".to_owned());
    until("the thread to start", || runs().then_some(()));
    drop(dataset);
    until("the thread to end", || (!runs()).then_some(()));
}
