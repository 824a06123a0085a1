//! The remedies for a communicator that does not connect.

use std::net::{IpAddr, Ipv4Addr};

/// The variable that selects NCCL's network interfaces.
const INTERFACE_VARIABLE: &str = "NCCL_SOCKET_IFNAME";

/// Returns the remedy, as the end of a sentence, if NCCL does not connect to `peer` because of `why`.
/// `is_invalid_usage` is set if NCCL reports invalid usage.
pub(super) fn remedy(why: &str, is_invalid_usage: bool, peer: Option<IpAddr>) -> String {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let interface = peer.and_then(|peer| interface_to(peer, &routes));
    remedy_for(why, is_invalid_usage, interface.as_deref(), std::env::var(INTERFACE_VARIABLE).ok().as_deref())
}

fn remedy_for(why: &str, is_invalid_usage: bool, interface: Option<&str>, set: Option<&str>) -> String {
    if is_invalid_usage {
        return "NCCL does not support two processes of one host on the same GPU: give each stage a GPU of its own, \
                or set spec.pipeline.transport to Tcp"
            .to_owned();
    }
    if why.contains("/dev/shm") {
        return "mount an emptyDir of medium Memory at /dev/shm in the template (docs/GPUS.md), or set \
                NCCL_SHM_DISABLE=1"
            .to_owned();
    }
    let taken = set.map_or_else(|| "is not set".to_owned(), |set| format!("is {set}"));
    let wanted = interface.map_or_else(String::new, |interface| {
        format!(", and the connections of the stages themselves go over {interface}")
    });
    let value = interface.unwrap_or("the interface between the pods");
    format!(
        "{INTERFACE_VARIABLE} {taken}{wanted}: if NCCL uses another interface, set {INTERFACE_VARIABLE}={value} in \
         the template; if a network policy blocks the ports that NCCL chooses, allow all ports between the pods of \
         the job; or set spec.pipeline.transport to Tcp"
    )
}

/// Returns the network interface for an IPv4 address, from the kernel's routing table (`/proc/net/route`): the
/// interface of the route with the longest mask.
fn interface_to(peer: IpAddr, routes: &str) -> Option<String> {
    let IpAddr::V4(peer) = peer else { return None };
    if peer.is_loopback() {
        return Some("lo".to_owned());
    }
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // the table contains addresses as hexadecimal numbers in the byte order of the host
        let address = |field: usize| {
            let number = u32::from_str_radix(fields.get(field)?, 16).ok()?;
            Some(Ipv4Addr::from(number.to_ne_bytes()).to_bits())
        };
        let (name, network, mask) = (*fields.first()?, address(1)?, address(7)?);
        (peer.to_bits() & mask == network).then(|| (mask, name.to_owned()))
    };
    routes.lines().skip(1).filter_map(route).max_by_key(|(mask, _)| *mask).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
ib0\t0005000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_interface_is_that_of_the_narrowest_route() {
        for (peer, interface) in [
            ("10.0.5.7", Some("ib0")),
            ("10.0.6.7", Some("eth0")),
            ("8.8.8.8", Some("eth0")),
            ("127.0.0.1", Some("lo")),
            ("::1", None),
        ] {
            assert_eq!(interface_to(peer.parse().unwrap(), ROUTES).as_deref(), interface, "{peer}");
        }
        assert_eq!(interface_to("10.0.5.7".parse().unwrap(), ""), None);
    }

    #[test]
    fn each_cause_has_its_remedy() {
        let usage = remedy_for("NCCL: invalid usage", true, Some("eth0"), None);
        assert!(usage.contains("give each stage a GPU of its own"), "{usage}");
        let full = "NCCL: unhandled system error (Error while creating shared memory segment /dev/shm/nccl-a (size 9))";
        assert!(remedy_for(full, false, Some("eth0"), None).contains("emptyDir of medium Memory at /dev/shm"));
        let wrong = remedy_for("no connection before the deadline", false, Some("eth0"), Some("eth1"));
        assert!(
            wrong.starts_with("NCCL_SOCKET_IFNAME is eth1, and the connections of the stages themselves go over eth0:")
        );
        assert!(wrong.contains("set NCCL_SOCKET_IFNAME=eth0") && wrong.contains("network policy"), "{wrong}");
        let unknown = remedy_for("no connection before the deadline", false, None, None);
        assert!(unknown.starts_with("NCCL_SOCKET_IFNAME is not set: if NCCL"), "{unknown}");
    }
}
