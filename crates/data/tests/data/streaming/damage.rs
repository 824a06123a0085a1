//! Tests bytes that change on their way from a hub. A job reads ranges of a Parquet file, and the hub has no digest for
//! a range. The job stores the tokens in windows: folders with a fixed number of sequences.

use std::io::Read;

use stagecoach_data::{DataConfig, DataError, StreamPosition, part_texts};
use stagecoach_test_hub::{File, Hub};

use super::{document, documents, rows, stream, train};
use crate::common::{TestVolume, open_stream};
use crate::hub::{REPO, remote};

/// A Parquet file in gzip compression. pyarrow wrote it with `write_page_checksum`, so its pages have checksums. A
/// column of zeros makes the file larger than the bytes that a reader requests together with the footer.
const WITH_CHECKSUMS: &[u8] = include_bytes!("../files/checksums.parquet.gz");

/// Returns a hub with the file `contents`, and a volume whose job streams this file.
fn job(contents: &[u8]) -> (Hub, TestVolume) {
    let hub = Hub::start();
    hub.put(REPO, "main", [("0.parquet", File::large(contents.to_vec()))]);
    let mut volume = remote(&hub, "hf://datasets/org/plays/*");
    stream(&mut volume, 4);
    (hub, volume)
}

/// Returns the configuration of the job, with a folder that has no windows of the stream yet.
fn without_windows(volume: &TestVolume) -> DataConfig {
    let mut config = volume.config.clone();
    config.streaming.as_mut().unwrap().folder = volume.folder.path().join("other-windows");
    config
}

/// Returns the error with which step `step` fails, if the stream begins at `positions`.
fn refused(config: &DataConfig, positions: &[StreamPosition], step: u64) -> DataError {
    open_stream(config, positions).wait_for_step(3 * step, 3, &|_| true).unwrap_err()
}

#[test]
fn a_damaged_page_with_a_checksum_is_refused() {
    let mut contents = Vec::new();
    flate2::read::GzDecoder::new(WITH_CHECKSUMS).read_to_end(&mut contents).unwrap();
    let (hub, volume) = job(&contents);
    train(&open_stream(&volume.config, &[]), 0, 0..2);
    hub.faults(|faults| faults.flipped_byte = Some(100));
    let error = refused(&without_windows(&volume), &[], 0);
    assert!(error.to_string().contains("0.parquet") && error.to_string().contains("CRC"), "{error}");
}

#[test]
fn a_window_that_is_made_again_has_the_tokens_that_were_trained_on() {
    let contents = rows(&documents(512..4096));
    let (hub, volume) = job(&contents);
    let steps = train(&open_stream(&volume.config, &[]), 0, 0..9);
    let (_, positions, _) = &steps[4];
    let other = without_windows(&volume);
    assert_eq!(train(&open_stream(&other, positions), 0, 5..9), steps[5..]);

    // the fifth step reads three of the four sequences of window 3
    let prepared = volume.prepare().unwrap();
    let texts = part_texts(&volume.config, &prepared, &steps[4].2, &mut |_| {}).unwrap();
    let differs = |at: usize| {
        hub.faults(|faults| faults.flipped_byte = Some(at as u64));
        std::fs::remove_dir_all(volume.folder.path().join("other-windows")).ok();
        let step = open_stream(&other, positions).wait_for_step(15, 3, &|_| true);
        matches!(step, Err(DataError::WindowDiffers { window: 3 }))
    };
    // the positions of letters that the flipped bit turns into the next letter; some of them may be in the page
    // statistics, where a flipped bit does not change a token
    let letters = texts.iter().flat_map(|text| {
        let text = document(512 + text.name.number as usize).into_bytes();
        let starts = (0..contents.len()).filter(|&at| contents[at..].starts_with(&text)).collect::<Vec<_>>();
        let letter = text.iter().position(|&letter| letter != b' ' && letter % 2 == 0);
        starts.into_iter().filter_map(move |start| Some(start + letter?))
    });
    let damaged: Vec<usize> = letters.filter(|&at| differs(at)).collect();
    assert!(damaged.len() >= 2);

    // windows that an earlier attempt made of damaged bytes are made again
    let mut keeping = without_windows(&volume);
    keeping.streaming.as_mut().unwrap().max_bytes = 1 << 30;
    hub.faults(|faults| faults.flipped_byte = Some(damaged[0] as u64));
    assert!(train(&open_stream(&keeping, &[]), 0, 0..9) != steps);
    hub.faults(|faults| faults.flipped_byte = None);
    assert_eq!(train(&open_stream(&keeping, positions), 0, 5..9), steps[5..]);
}
