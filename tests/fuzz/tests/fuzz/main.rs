//! Fuzzes all functions that read bytes from outside the process. Each function must return, and must not allocate more
//! memory than its bound, whatever lengths the changed bytes announce.
#![allow(clippy::unwrap_used, clippy::panic)]

mod data;
mod files;
mod wire;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use stagecoach_fuzz::{Mutation, mutate, mutations, peak_bytes};

/// The number of bytes that any reader may allocate in addition to a multiple of its input's length.
const FIXED_BYTES: u64 = 4 << 20;

/// Calls `read` with each input of `valid`, which `read` must accept, and then with `cases` changed inputs. `read`
/// returns whether it accepts its input. A call may allocate [`FIXED_BYTES`] plus `times` times the length of its
/// input.
fn fuzz(cases: u32, valid: &[Vec<u8>], times: u64, read: impl Fn(&[u8]) -> bool) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let strategy = (prop::sample::select(valid.to_vec()), mutations());
    let test = |(valid, changes): (Vec<u8>, Vec<Mutation>)| {
        let bytes = mutate(&valid, &changes);
        let (_, peak) = peak_bytes(|| read(&bytes));
        let bound = FIXED_BYTES + times * bytes.len() as u64;
        prop_assert!(peak <= bound, "{peak} bytes for {} of input, at most {bound} are allowed", bytes.len());
        Ok(())
    };
    for valid in valid {
        assert!(read(valid), "what is valid is refused");
    }
    TestRunner::new(config).run(&strategy, test).unwrap_or_else(|error| panic!("{error}"));
}
