//! Tells that stages of one host pass their tensors over TCP because shared memory is not to be had.

use stagecoach_group::{Member, Roster};

use super::collective::{all_gather, topic};
use crate::fatal::Fatal;
use crate::links::Links;

/// A sentence for people, if this is so of any stage. All stages call it.
///
/// # Errors
/// If the group has failed.
pub(super) fn missing(member: &Member, roster: &Roster, rank: usize, links: &Links) -> Result<Option<String>, Fatal> {
    let host = |rank: usize| roster.members.get(rank).map(|hello| &hello.host);
    // with another host there is none to share
    let own = links.without_ring.iter().find(|(link, _)| host(link.to) == host(rank)).map(|(_, why)| why.clone());
    let of_stages: Vec<Option<String>> = all_gather(member, topic::SHARED_MEMORY, &own)?;
    Ok(sentence(&of_stages))
}

fn sentence(of_stages: &[Option<String>]) -> Option<String> {
    let lacking = || of_stages.iter().enumerate().filter_map(|(stage, why)| Some((stage, why.as_ref()?)));
    let (_, why) = lacking().next()?;
    let stages: Vec<String> = lacking().map(|(stage, _)| stage.to_string()).collect();
    Some(format!(
        "stages send over TCP to others on their host ({}), since no shared memory could be made in /dev/shm ({why}): enlarge it, \
         or set spec.pipeline.transport to Tcp",
        stages.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sentence_names_all_stages_without_shared_memory() {
        let full = || Some("No space left on device".to_owned());
        assert_eq!(sentence(&[None, None]), None);
        assert_eq!(
            sentence(&[full(), None, full()]).unwrap(),
            "stages send over TCP to others on their host (0, 2), since no shared memory could be made in /dev/shm (No space left \
             on device): enlarge it, or set spec.pipeline.transport to Tcp"
        );
    }
}
