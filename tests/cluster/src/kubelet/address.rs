//! Gives each pod its own IP address, usually a loopback address. Servers that must all use the same port number, such
//! as Kueue's controllers, also get their own addresses.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, TcpListener};

use k8s_openapi::api::core::v1::Pod;

/// The annotation that sets a pod's address, for example an IPv6 address. If another pod on this machine has the
/// address, the pod waits until the address is free.
const ANNOTATION: &str = "stagecoach.test/address";

/// The port on which an [`Address`] listens, to reserve its IP address. No stage uses this port.
const CLAIM_PORT: u16 = 65535;

/// The IP address of a pod, or of another server that a test starts. While this value lives, no other [`Address`] on
/// this machine, in any test, has the same IP address.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) ip: String,
    _claim: TcpListener,
}

impl Address {
    /// Returns the address in the pod's annotation. Without an annotation, returns a free address of 127.0.0.0/8.
    ///
    /// # Panics
    /// If the annotation is not an address, or the address is not free within a minute.
    pub(super) async fn of(pod: &Pod) -> Address {
        let annotations = pod.metadata.annotations.as_ref();
        let Some(wanted) = annotations.and_then(|annotations| annotations.get(ANNOTATION)) else {
            return Address::claim();
        };
        let ip: IpAddr = wanted.parse().unwrap_or_else(|e| panic!("{ANNOTATION}: {wanted}: {e}"));
        for _ in 0..600 {
            if let Ok(claim) = TcpListener::bind((ip, CLAIM_PORT)) {
                return Address { ip: wanted.clone(), _claim: claim };
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("{wanted} can't be claimed at port {CLAIM_PORT}")
    }

    /// Returns a free address of 127.0.0.0/8.
    ///
    /// # Panics
    /// If 100 random addresses in a row are in use.
    pub(crate) fn claim() -> Address {
        for attempt in 0..100u8 {
            let [a, b, c, ..] = RandomState::new().hash_one(attempt).to_le_bytes();
            // avoid 127.0.x.x, where services of the user usually listen
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
