//! The report that links are slower than they could be, because they can't use a faster carrier than TCP. The faster
//! carriers are shared memory within a host, and NCCL between GPUs.

use serde::{Deserialize, Serialize};
use stagecoach_group::{Member, Roster};
use stagecoach_transport::Links;

use crate::train::collective::{all_gather, topic};
use crate::train::context::StageContext;
use crate::train::leave::LeaveReason;

/// For each carrier, the reason why the links of a stage can't use it; `None` if no link lacks the carrier.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct MissingCarriers {
    shared_memory: Option<String>,
    nccl: Option<String>,
}

/// Returns a message for the user about each carrier that any stage lacks. All stages call this together.
///
/// # Errors
/// If the group has failed.
pub(in crate::train) fn missing(
    context: &StageContext,
    member: &Member,
    roster: &Roster,
    links: &Links,
) -> Result<Vec<String>, LeaveReason> {
    let rank = context.group_rank;
    let host = |rank: usize| roster.members.get(rank).map(|hello| &hello.host);
    // a ring buffer in shared memory can't connect two hosts, so links between hosts do not lack one
    let ring = links.without_ring.iter().find(|(link, _)| host(link.to) == host(rank)).map(|(_, why)| why.clone());
    let own = MissingCarriers { shared_memory: ring, nccl: links.without_nccl.clone() };
    Ok(sentences(&all_gather(member, topic::CARRIERS, &own)?))
}

fn sentences(of_stages: &[MissingCarriers]) -> Vec<String> {
    let lacking = |carrier: fn(&MissingCarriers) -> &Option<String>| {
        let lacking: Vec<(usize, &String)> = of_stages
            .iter()
            .enumerate()
            .filter_map(|(stage, lacking)| Some((stage, carrier(lacking).as_ref()?)))
            .collect();
        let stages: Vec<String> = lacking.iter().map(|(stage, _)| stage.to_string()).collect();
        let users = match stages.as_slice() {
            [stage] => format!("stage {stage} uses"),
            stages => format!("stages {} use", stages.join(", ")),
        };
        lacking.first().map(|(_, why)| (users, (*why).clone()))
    };
    let shared_memory = lacking(|lacking| &lacking.shared_memory).map(|(users, why)| {
        format!(
            "{users} TCP to the other stages on the same host, because shared memory can't be created in /dev/shm \
             ({why}): enlarge it, or set spec.pipeline.transport to Tcp"
        )
    });
    let nccl = lacking(|lacking| &lacking.nccl).map(|(users, why)| {
        format!(
            "{users} the memory of the host to send from a GPU, because NCCL can't be used: {why}; to accept this, \
             set spec.pipeline.transport to Tcp"
        )
    });
    shared_memory.into_iter().chain(nccl).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sentence_for_each_carrier_names_all_stages_without_it() {
        let full = || MissingCarriers { shared_memory: Some("No space left on device".to_owned()), nccl: None };
        let no_nccl = || MissingCarriers { shared_memory: None, nccl: Some("libnccl.so.2 can't be loaded".to_owned()) };
        assert_eq!(sentences(&[MissingCarriers::default(), MissingCarriers::default()]), [""; 0]);
        assert_eq!(
            sentences(&[full(), MissingCarriers::default(), full()]),
            ["stages 0, 2 use TCP to the other stages on the same host, because shared memory can't be created in \
              /dev/shm (No space left on device): enlarge it, or set spec.pipeline.transport to Tcp"]
        );
        assert_eq!(
            sentences(&[MissingCarriers::default(), no_nccl()]),
            ["stage 1 uses the memory of the host to send from a GPU, because NCCL can't be used: libnccl.so.2 can't \
              be loaded; to accept this, set spec.pipeline.transport to Tcp"]
        );
    }
}
