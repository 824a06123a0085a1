//! Writes event files for TensorBoard. A file consists of TFRecord frames of `Event` messages
//! (tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto). This module writes only scalars.

use std::borrow::Cow;
use std::io::{self, Write};

use crc::{CRC_32_ISCSI, Crc};

use super::StepRecord;

/// The version that the first event of a file contains.
const FILE_VERSION: &str = "brain.Event:2";
/// The value of `SessionLog.SessionStatus.START`.
const SESSION_START: u64 = 1;

static CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// The event file of a run.
#[derive(Debug)]
pub struct EventFile<W> {
    writer: W,
    last_step: u64,
}

impl<W: Write> EventFile<W> {
    /// Creates a file and writes its first event.
    ///
    /// # Errors
    /// Returns the writer's error.
    pub fn create(writer: W, wall_time: f64) -> io::Result<EventFile<W>> {
        let mut file = EventFile { writer, last_step: 0 };
        file.write_event(wall_time, 0, |event| text(event, 3, FILE_VERSION))?;
        Ok(file)
    }

    /// Returns the last step that was written.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// Writes an event that makes TensorBoard discard the steps after `step`, because training has resumed from `step`.
    ///
    /// # Errors
    /// Returns the writer's error.
    pub fn rewind(&mut self, wall_time: f64, step: u64) -> io::Result<()> {
        let mut session = Vec::new();
        number(&mut session, 1, SESSION_START);
        self.last_step = step;
        self.write_event(wall_time, step + 1, |event| bytes(event, 7, &session))
    }

    /// Writes the measurements of a step.
    ///
    /// # Errors
    /// Returns the writer's error.
    pub fn write(&mut self, wall_time: f64, record: &StepRecord) -> io::Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in scalars(record) {
            let mut tag_value = Vec::new();
            text(&mut tag_value, 1, &tag);
            float(&mut tag_value, 2, value);
            bytes(&mut summary, 1, &tag_value);
        }
        self.last_step = record.step;
        self.write_event(wall_time, record.step, |event| bytes(event, 5, &summary))
    }

    /// Flushes all written data to the operating system.
    ///
    /// # Errors
    /// Returns the writer's error.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    fn write_event(&mut self, wall_time: f64, step: u64, what: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut event = Vec::new();
        key(&mut event, 1, 1);
        event.extend(wall_time.to_le_bytes());
        number(&mut event, 2, step);
        what(&mut event);
        self.writer.write_all(&frame(&event))
    }
}

/// Returns the scalars of a step, by their tags. Scalars that were not measured are left out.
fn scalars(record: &StepRecord) -> impl Iterator<Item = (Cow<'static, str>, f32)> {
    let sets = record.evaluation_set_losses.iter();
    let sets = sets.map(|(set, loss)| (Cow::Owned(format!("loss/held-out/{set}")), *loss as f32));
    let measured = [
        ("loss/train", record.loss),
        ("loss/held-out", record.evaluation_loss.map(|loss| loss as f32)),
        ("gradient_norm", record.gradient_norm.map(|norm| norm as f32)),
        ("learning_rate", Some(record.learning_rate as f32)),
        ("speed/tokens_per_second", Some(record.tokens_per_second as f32)),
        ("speed/seconds", Some(record.seconds as f32)),
        ("speed/data_wait_seconds", record.data_wait_seconds.map(|seconds| seconds as f32)),
        ("pipeline/bubble", record.mean_bubble().map(|share| share as f32)),
        ("pipeline/exposed_communication", record.mean_exposed_communication().map(|share| share as f32)),
        ("pipeline/imbalance", record.largest_imbalance().map(|ratio| ratio as f32)),
        ("memory/peak_bytes", record.peak_bytes.iter().max().map(|bytes| *bytes as f32)),
    ];
    measured.into_iter().filter_map(|(tag, value)| Some((Cow::Borrowed(tag), value?))).chain(sets)
}

/// Returns a TFRecord: the length, the checksum of the length, the message, and the checksum of the message.
fn frame(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let checksum = |bytes: &[u8]| masked_crc(bytes).to_le_bytes();
    [&length[..], &checksum(&length), message, &checksum(message)].concat()
}

/// Returns the checksum of TFRecords. This is CRC-32C, rotated and added to a constant, because a plain CRC of data
/// that contains CRCs is weak.
fn masked_crc(bytes: &[u8]) -> u32 {
    CRC32C.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Appends the key of a field in protobuf's wire format.
fn key(into: &mut Vec<u8>, field: u64, wire_type: u64) {
    varint(into, field << 3 | wire_type);
}

fn varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

fn number(into: &mut Vec<u8>, field: u64, value: u64) {
    key(into, field, 0);
    varint(into, value);
}

fn float(into: &mut Vec<u8>, field: u64, value: f32) {
    key(into, field, 5);
    into.extend(value.to_le_bytes());
}

fn bytes(into: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(into, field, 2);
    varint(into, value.len() as u64);
    into.extend(value);
}

fn text(into: &mut Vec<u8>, field: u64, value: &str) {
    bytes(into, field, value.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::event_formatter::tests::record;
    use super::*;

    #[test]
    fn held_out_sets_have_scalars_of_their_own() {
        let evaluated = StepRecord {
            evaluation_loss: Some(2.5),
            evaluation_set_losses: [("code".to_owned(), 3.0), ("web".to_owned(), 2.25)].into(),
            ..record(300)
        };
        let held_out: Vec<_> = scalars(&evaluated).filter(|(tag, _)| tag.starts_with("loss/held-out")).collect();
        let tags = held_out.iter().map(|(tag, loss)| (&**tag, *loss));
        assert!(tags.eq([("loss/held-out", 2.5), ("loss/held-out/code", 3.0), ("loss/held-out/web", 2.25)]));
    }

    #[test]
    fn the_wait_for_data_is_a_scalar_if_it_was_measured() {
        let wait = |data_wait_seconds| {
            let record = StepRecord { data_wait_seconds, ..record(300) };
            scalars(&record).find(|(tag, _)| tag == "speed/data_wait_seconds").map(|(_, seconds)| seconds)
        };
        assert_eq!((wait(Some(0.0)), wait(Some(1.5)), wait(None)), (Some(0.0), Some(1.5), None));
    }

    /// Returns the messages of a file. Asserts that their checksums are right.
    fn messages(mut file: &[u8]) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        while let Some((length, rest)) = file.split_first_chunk::<8>() {
            let (length_crc, rest) = rest.split_first_chunk::<4>().unwrap();
            let (message, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
            let (message_crc, rest) = rest.split_first_chunk::<4>().unwrap();
            assert_eq!(u32::from_le_bytes(*length_crc), masked_crc(length));
            assert_eq!(u32::from_le_bytes(*message_crc), masked_crc(message));
            messages.push(message.to_vec());
            file = rest;
        }
        messages
    }

    #[test]
    fn checksums_are_those_of_tfrecords() {
        // "123456789" has the CRC-32C e3069283
        assert_eq!(masked_crc(b"123456789"), 0xe306_9283_u32.rotate_right(15).wrapping_add(0xa282_ead8));
        assert_eq!(CRC32C.checksum(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_file_has_its_version_and_an_event_a_step() {
        let mut file = EventFile::create(Vec::new(), 1.0).unwrap();
        file.write(2.0, &record(300)).unwrap();
        file.rewind(3.0, 299).unwrap();
        assert_eq!(file.last_step(), 299);
        let messages = messages(&file.writer);
        let wall_time = |seconds: f64| [&[0x09][..], &seconds.to_le_bytes()].concat();
        assert_eq!(messages[0], [wall_time(1.0), b"\x10\x00\x1a\x0dbrain.Event:2".to_vec()].concat());
        // the event has step 300 as a varint, then the summary, whose first value is the loss
        assert!(messages[1].starts_with(&[wall_time(2.0), b"\x10\xac\x02\x2a".to_vec()].concat()));
        let tag = |tag: &str| messages[1].windows(tag.len()).any(|window| window == tag.as_bytes());
        assert!(tag("\x0a\x0aloss/train\x15") && tag("gradient_norm") && !tag("loss/held-out"));
        // the last event starts a session at step 300 again
        assert_eq!(messages[2], [wall_time(3.0), b"\x10\xac\x02\x3a\x02\x08\x01".to_vec()].concat());
    }
}
