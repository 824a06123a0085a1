//! Tests handshakes and records without sockets.

use std::io::{ErrorKind, Read, Write};

use proptest::prelude::*;

use super::stream::{MAX_PAYLOAD_BYTES, PREFIX_BYTES, TAG_BYTES};
use super::*;
use crate::wire::frame::tests::SlowStream;

fn secret(epoch: u64) -> GroupSecret {
    GroupSecret { epoch, key: [7; KEY_BYTES] }
}

/// Returns the sessions of both sides.
fn sessions() -> [Session; 2] {
    let (handshake, message) = Handshake::begin(&secret(1), "test").unwrap();
    let (peer, answer) = Handshake::respond(&secret(1), "test", &message).unwrap();
    [handshake.finish(&answer).unwrap(), peer]
}

fn sent(session: &Session, parts: &[&[u8]]) -> Vec<u8> {
    let mut writer = session.writer(Vec::new());
    parts.iter().for_each(|part| writer.write_all(part).unwrap());
    writer.stream
}

#[test]
fn a_secret_round_trips_as_text_and_is_not_printed() {
    let secret = GroupSecret::generate(7).unwrap();
    let hex = secret.key_hex();
    assert_eq!(GroupSecret::from_key_hex(7, &hex), Some(secret.clone()));
    assert_ne!(GroupSecret::generate(7).unwrap(), secret);
    assert_eq!(format!("{secret:?}"), "GroupSecret(epoch 7)");
    for other in ["", "00", &hex[1..], &format!("{}zz", &hex[2..]), &"é".repeat(32)] {
        assert_eq!(GroupSecret::from_key_hex(7, other), None, "{other}");
    }
}

#[test]
fn another_key_epoch_or_purpose_fails_the_handshake() {
    let other_key = GroupSecret { key: [8; KEY_BYTES], ..secret(1) };
    for (peer, purpose) in [(other_key, "test"), (secret(2), "test"), (secret(1), "another")] {
        let (_, message) = Handshake::begin(&secret(1), "test").unwrap();
        let error = Handshake::respond(&peer, purpose, &message).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert_eq!(error.to_string(), "the peer does not have this group's key");
    }
    // an answer from a peer without the key fails too
    let (handshake, _) = Handshake::begin(&secret(1), "test").unwrap();
    assert_eq!(handshake.finish(&[3; HANDSHAKE_BYTES]).unwrap_err().kind(), ErrorKind::InvalidData);
}

#[test]
fn a_replayed_handshake_leads_nowhere() {
    let (handshake, message) = Handshake::begin(&secret(1), "test").unwrap();
    let (peer, answer) = Handshake::respond(&secret(1), "test", &message).unwrap();
    let records = sent(&handshake.finish(&answer).unwrap(), &[b"hello"]);
    let mut read = String::new();
    peer.reader(&*records).read_to_string(&mut read).unwrap();
    assert_eq!(read, "hello");
    // a replayed handshake message gets a different answer, so the new session can't decrypt the old records
    let (again, other_answer) = Handshake::respond(&secret(1), "test", &message).unwrap();
    assert_ne!(other_answer, answer);
    assert_eq!(again.reader(&*records).read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::InvalidData);
}

#[test]
fn a_changed_repeated_or_missing_record_ends_the_connection() {
    let [ours, peer] = sessions();
    let records = sent(&ours, &[b"one", b"two"]);
    let one = PREFIX_BYTES + 3 + TAG_BYTES;
    let read = |bytes: &[u8]| peer.reader(bytes).read_to_end(&mut Vec::new()).map_err(|e| e.kind());
    assert_eq!(read(&records), Ok(6));
    for at in 0..one {
        let mut changed = records.clone();
        changed[at] ^= 1;
        assert!(read(&changed).is_err(), "byte {at}");
    }
    assert_eq!(read(&[&records[..one], &records[..one]].concat()), Err(ErrorKind::InvalidData));
    assert_eq!(read(&records[one..]), Err(ErrorKind::InvalidData));
    assert_eq!(read(&records[..one]), Ok(3));
    assert_eq!(read(&records[..one + 1]), Err(ErrorKind::UnexpectedEof));
    // a side can't decrypt its own records
    assert_eq!(ours.reader(&*records).read_to_end(&mut Vec::new()).unwrap_err().kind(), ErrorKind::InvalidData);
}

#[test]
fn nothing_is_read_beyond_a_record_and_large_ones_are_split() {
    let [ours, peer] = sessions();
    let large = vec![5; 3 * MAX_PAYLOAD_BYTES + 1];
    let mut bytes = sent(&ours, &[&large]);
    bytes.extend(b"rest");
    let mut stream = &bytes[..];
    let mut read = vec![0; large.len()];
    peer.reader(&mut stream).read_exact(&mut read).unwrap();
    assert!(read == large && stream == b"rest");
}

proptest! {
    /// The stream returns one byte per read, and `WouldBlock` before each byte.
    #[test]
    fn records_round_trip_through_a_stream_that_would_block(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..99), 0..9)) {
        let [ours, peer] = sessions();
        let bytes = sent(&ours, &parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let mut reader = peer.reader(SlowStream { bytes: &bytes, blocked: false });
        let (mut read, mut buffer) = (Vec::new(), [0; 7]);
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => read.extend_from_slice(&buffer[..count]),
                Err(error) => prop_assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        prop_assert_eq!(read, parts.concat());
    }

    /// Arbitrary bytes that arrive instead of a handshake or a record cause an error. The reader allocates at most
    /// twice the memory of the largest record.
    #[test]
    fn foreign_bytes_are_an_error(message in prop::array::uniform32(any::<u8>()), bytes in prop::collection::vec(any::<u8>(), 3..300)) {
        let mut first = [0; HANDSHAKE_BYTES];
        first[..32].copy_from_slice(&message);
        prop_assert!(Handshake::respond(&secret(1), "test", &first).is_err());
        let [_, peer] = sessions();
        let mut reader = peer.reader(&*bytes);
        prop_assert!(reader.read(&mut [0; 8]).is_err());
        prop_assert!(reader.record.capacity() <= 2 * (PREFIX_BYTES + usize::from(u16::MAX)));
    }
}
