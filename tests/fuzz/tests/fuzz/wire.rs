//! Fuzzes the readers of messages from a network.

use std::collections::BTreeMap;
use std::io::Read;

use proptest::prelude::*;
use stagecoach_fuzz::{mutate, mutations, peak_bytes};
use stagecoach_group::frame::{FrameReader, encode_frame};
use stagecoach_group::{GroupSecret, HANDSHAKE_BYTES, Handshake, Hello, Roster, SecureReader, Session, StepVote};

use crate::fuzz;

const MAX_FRAME_BYTES: usize = 1 << 20;

fn hello() -> Hello {
    Hello {
        job_uid: "uid".into(),
        attempt: 3,
        rank: 1,
        world_size: 2,
        lost_ranks: Some(vec![1]),
        incarnation: 1,
        pod_uid: "pod".into(),
        version: "0.1.0".into(),
        config: BTreeMap::from([("training.steps".into(), "400".into()), ("seed".into(), "42".into())]),
        data_address: "10.0.0.7:29600".into(),
        host: "node".into(),
    }
}

#[test]
fn frames_and_what_is_in_them() {
    let hellos = [encode_frame(&hello(), MAX_FRAME_BYTES).unwrap()];
    fuzz(2000, &hellos, 64, |bytes| FrameReader::new(MAX_FRAME_BYTES).read::<Hello>(&mut &bytes[..]).is_ok());
    let rosters = [encode_frame(&Roster { members: vec![hello(), hello()] }, MAX_FRAME_BYTES).unwrap()];
    fuzz(2000, &rosters, 64, |bytes| FrameReader::new(MAX_FRAME_BYTES).read::<Roster>(&mut &bytes[..]).is_ok());
    let votes = [encode_frame(&StepVote::default(), MAX_FRAME_BYTES).unwrap()];
    fuzz(2000, &votes, 64, |bytes| FrameReader::new(MAX_FRAME_BYTES).read::<StepVote>(&mut &bytes[..]).is_ok());
    type Parts = (u32, Vec<Vec<u8>>);
    let parts: Parts = (7, vec![vec![1; 100]; 3]);
    let parts = [encode_frame(&parts, MAX_FRAME_BYTES).unwrap()];
    fuzz(2000, &parts, 64, |bytes| FrameReader::new(MAX_FRAME_BYTES).read::<Parts>(&mut &bytes[..]).is_ok());
}

fn sessions(secret: &GroupSecret) -> (Session, Session) {
    let (begun, message) = Handshake::begin(secret, "a test").unwrap();
    let (responder, answer) = Handshake::respond(secret, "a test", &message).unwrap();
    (begun.finish(&answer).unwrap(), responder)
}

proptest! {
    /// A handshake fails after any change of a message, because a valid message requires the secret key.
    #[test]
    fn handshakes(changes in mutations()) {
        let secret = GroupSecret::generate(7).unwrap();
        let (begun, message) = Handshake::begin(&secret, "a test").unwrap();
        let (_, answer) = Handshake::respond(&secret, "a test", &message).unwrap();
        let changed = |bytes: &[u8; HANDSHAKE_BYTES]| -> Option<[u8; HANDSHAKE_BYTES]> {
            mutate(bytes, &changes).first_chunk().copied().filter(|changed| changed != bytes)
        };
        if let Some(message) = changed(&message) {
            prop_assert!(Handshake::respond(&secret, "a test", &message).is_err());
        }
        if let Some(answer) = changed(&answer) {
            prop_assert!(begun.finish(&answer).is_err());
        }
    }

    /// A reader returns the records before the first changed record as they were sent, and nothing of the changed
    /// record.
    #[test]
    fn encrypted_records(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..4), changes in mutations()) {
        use std::io::Write;
        let (one, other) = sessions(&GroupSecret::generate(7).unwrap());
        let mut sent = Vec::new();
        let mut writer = one.writer(&mut sent);
        payloads.iter().for_each(|payload| writer.write_all(payload).unwrap());
        let changed = mutate(&sent, &changes);
        let mut received = Vec::new();
        let (_, peak) = peak_bytes(|| {
            let mut reader: SecureReader<&[u8]> = other.reader(&changed[..]);
            reader.read_to_end(&mut received)
        });
        prop_assert!(payloads.concat().starts_with(&received));
        prop_assert!(peak <= 1 << 20, "{peak}");
    }

    /// Fuzzes the parser of a group's key. Stage 0 publishes the key as part of a name in its fence's folder on the
    /// volume.
    #[test]
    fn keys_of_groups(changes in mutations(), epoch in any::<u64>()) {
        let secret = GroupSecret::generate(epoch).unwrap();
        let hex = secret.key_hex();
        prop_assert_eq!(GroupSecret::from_key_hex(epoch, &hex), Some(secret.clone()));
        let changed = String::from_utf8_lossy(&mutate(hex.as_bytes(), &changes)).into_owned();
        let read = GroupSecret::from_key_hex(epoch, &changed);
        prop_assert!(read.is_none_or(|read| (read == secret) == changed.eq_ignore_ascii_case(&hex)));
    }
}
