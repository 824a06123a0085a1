//! Tests conversations in Parquet files: the number of requests to a hub for a file, and texts that are not UTF-8.

use serde_json::{Value, json};
use stagecoach_data::{DocumentFormat, OnBadRecord};
use stagecoach_test_hub::{File, Hub, Port};

use crate::conversations::{conversation, nested_in_groups, volume};
use crate::hub::{REPO, remote};

/// Returns the number of requests, each for a range of bytes, with which a job reads the Parquet file `table` from a
/// hub.
fn ranges(table: &[u8]) -> usize {
    let local = volume(DocumentFormat::Chat, &[("t.parquet", table)]);
    let hub = Hub::start();
    hub.put(REPO, "main", [("t.parquet", File::large(table.to_vec()))]);
    let mut job = remote(&hub, "hf://datasets/org/plays/t.parquet");
    job.config.sources[0].format = DocumentFormat::Chat;
    job.config.sequence_length = local.config.sequence_length;
    let template = std::fs::read(local.folder.path().join("letters/chat_template.jinja")).unwrap();
    job.write("letters/chat_template.jinja", &template);
    job.prepare().unwrap();
    let ranges = hub.take_requests().into_iter().filter(|request| request.port == Port::Cdn).count();
    assert_eq!(job.ids(), local.ids());
    ranges
}

/// One request reads a row group whose columns are close together. The metadata outside the footer needs a few more
/// requests.
#[test]
fn small_row_groups_are_read_in_one_request_each() {
    let records: Vec<Value> = (0..400).map(|number| conversation(number, 1, 0)).collect();
    let ranges = ranges(&nested_in_groups(&records, true, 2));
    assert!(ranges <= 206, "{ranges} requests for 200 row groups");
}

/// The iterator over rows alternates between the pages of the columns. With one buffer for all columns, each change of
/// the column would need a request, so the reader has a separate buffer for each column.
#[test]
fn a_large_row_group_is_read_in_few_requests() {
    let named = |number| {
        let mut record = conversation(number, 1, 0);
        record["messages"][0]["name"] = json!(format!("{number} {}", "n".repeat(4 << 10)));
        record
    };
    let records: Vec<Value> = (0..4000).map(named).collect();
    let table = nested_in_groups(&records, true, records.len());
    assert!(table.len() > 15 << 20);
    let ranges = ranges(&table);
    assert!(ranges <= 8, "{ranges} requests for {} bytes", table.len());
}

/// If a text is not UTF-8, only its row is a bad record.
#[test]
fn a_text_that_is_not_utf_8_is_one_bad_record() {
    for is_declared in [true, false] {
        let mut records: Vec<Value> = (0..5).map(|number| conversation(number, 1, 0)).collect();
        records[2]["messages"][1]["content"] = json!("a wxyz");
        let mut table = nested_in_groups(&records, is_declared, 3);
        let places: Vec<usize> = (0..table.len() - 4).filter(|&at| table[at..].starts_with(b"wxyz")).collect();
        places.iter().for_each(|&at| table[at..at + 4].copy_from_slice(b"\xff\xfe\xfd\xfc"));
        let mut volume = volume(DocumentFormat::Chat, &[("a.parquet", &table)]);
        let refused = volume.error_message();
        assert_eq!(refused, "VOLUME/corpus/a.parquet, row 2: has a text that is not valid UTF-8");
        volume.config.on_bad_record = OnBadRecord::Skip;
        let prepared = volume.prepare().unwrap();
        assert_eq!(prepared.documents, 4);
        assert_eq!(prepared.notes, ["1 bad record is left out: 1 in invalid UTF-8; in corpus/a.parquet (1)"]);
    }
}
