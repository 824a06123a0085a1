//! Fields that only a cluster uses: the names of other objects, and the addresses that a NetworkPolicy allows.

use super::Problems;
use super::names::is_dns_label;
use crate::job::{Cidr, PipelineJobSpec, wrong_object_name};

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
