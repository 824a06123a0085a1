//! Addresses of pods.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener};

/// Whoever listens here has the address. No stage uses the port.
const CLAIM_PORT: u16 = 65535;

/// An address of 127.0.0.0/8, no other pod's on this machine while this lives, whichever test that belongs to.
#[derive(Debug)]
pub(super) struct Address {
    pub(super) ip: String,
    _claim: TcpListener,
}

impl Address {
    /// # Panics
    /// If many addresses in a row can't be taken.
    pub(super) fn claim() -> Address {
        for attempt in 0..100u8 {
            let [a, b, c, ..] = RandomState::new().hash_one(attempt).to_le_bytes();
            // 127.0.x.x is where people put services of their own
            let ip = Ipv4Addr::new(127, a.max(1), b, c.clamp(1, 254));
            if let Ok(claim) = TcpListener::bind((ip, CLAIM_PORT)) {
                return Address { ip: ip.to_string(), _claim: claim };
            }
        }
        panic!("no address of 127.0.0.0/8 can be claimed at port {CLAIM_PORT}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_are_the_same() {
        let claimed: Vec<_> = (0..200).map(|_| super::Address::claim()).collect();
        let distinct: std::collections::HashSet<&str> = claimed.iter().map(|address| address.ip.as_str()).collect();
        assert_eq!(distinct.len(), claimed.len());
    }
}
