//! Fields that only a cluster uses: the names of other objects, and the addresses that a NetworkPolicy allows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Problems;
use super::names::is_dns_label;
use crate::job::{PipelineJobSpec, wrong_object_name};

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    let secret = spec.data.as_ref().and_then(|data| Some(&data.credentials.as_ref()?.secret_name));
    let kueue = spec.scheduling.kueue.as_ref();
    for (field, kind, name) in [
        ("spec.data.credentials.secretName", "Secret", secret),
        ("spec.scheduling.kueue.queueName", "LocalQueue", kueue.map(|kueue| &kueue.queue_name)),
        (
            "spec.scheduling.kueue.priorityClassName",
            "WorkloadPriorityClass",
            kueue.and_then(|kueue| kueue.priority_class_name.as_ref()),
        ),
    ] {
        let Some(name) = name else { continue };
        problems.require(name.is_empty() || name.split('.').all(is_dns_label), field, || {
            format!("\"{}\" {}", name.escape_debug(), wrong_object_name(kind))
        });
    }
    for (index, text) in spec.network_policy.egress_cidrs.iter().enumerate() {
        let field = format!("spec.networkPolicy.egressCIDRs[{index}]");
        let cidr = Cidr::parse(text);
        problems.require(text.is_empty() || cidr.is_some(), field.as_str(), || {
            format!(
                "\"{}\" is no CIDR: write an address and the length of its prefix, such as 203.0.113.0/24 or 2001:db8::/32",
                text.escape_debug()
            )
        });
        if let Some(cidr) = cidr {
            let (first, length) = (cidr.first(), cidr.length);
            problems.require(first == cidr.address, field, || {
                format!("\"{text}\" has bits set beyond its prefix: write {first}/{length}")
            });
        }
    }
}

/// A network in the one form that all versions of Kubernetes accept in a NetworkPolicy. Since 1.36, Kubernetes refuses
/// leading zeros, IPv4-mapped IPv6 addresses, and bits beyond the prefix.
struct Cidr {
    address: IpAddr,
    length: u32,
}

impl Cidr {
    fn parse(text: &str) -> Option<Cidr> {
        let (address, digits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let length: u32 = digits.parse().ok()?;
        let (bits, is_mapped) = match address {
            IpAddr::V4(_) => (Ipv4Addr::BITS, false),
            IpAddr::V6(address) => (Ipv6Addr::BITS, address.to_ipv4_mapped().is_some()),
        };
        let is_valid = length <= bits && length.to_string() == digits && !is_mapped;
        is_valid.then_some(Cidr { address, length })
    }

    /// The network's first address, which has no bits beyond the prefix.
    fn first(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(Ipv4Addr::BITS - self.length).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(Ipv6Addr::BITS - self.length).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        }
    }
}
