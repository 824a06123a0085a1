//! Finds the stage that blocks the group, by following the wait-for graph. This module is pure. Ranks in this file are
//! global ranks.

use std::time::Duration;

use stagecoach_api::contract::Mesh;

use crate::names::numbers;
use crate::wire::connection::format_seconds;

/// The activity of one stage, and its duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StageActivity {
    /// The action, or a description of what the stage waits for.
    pub(crate) text: String,
    /// The rank that the stage waits for, if any.
    pub(crate) waits_for: Option<usize>,
    /// The duration of this activity.
    pub(crate) age: Duration,
}

/// The reason why a group makes no progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hang {
    /// The rank that all other ranks on the chain wait for; `None` in a deadlock.
    pub(crate) root_cause_rank: Option<usize>,
    /// The chain of waits in words, for example `stage 1 waits for RECV_B of microbatch 3 from stage 2, which has been
    /// in F 5 for 41 s`.
    pub(crate) report: String,
}

/// Finds the stage at the end of the chain of waiting stages. `stages` has one entry for each rank.
///
/// If there is a cycle (deadlock), only the cycle is reported. Among several chain ends, the end with the oldest
/// activity is reported, or the lowest rank if the ages are equal. The report contains the longest chain to this end.
pub(crate) fn find_hang(stages: &[StageActivity], mesh: Mesh) -> Hang {
    let name = |rank: usize| mesh.name(rank as u32);
    let waits = |rank: usize| {
        let from = stages[rank].waits_for.map_or(String::new(), |other| format!(" from {}", name(other)));
        format!("waits for {}{from}", stages[rank].text)
    };
    let chains: Vec<Chain> = (0..stages.len()).map(|start| follow(stages, start)).collect();
    if let Some(cycle) = chains.iter().find(|chain| chain.cycle_start == chain.ranks.first().copied()) {
        let each: Vec<String> = cycle.ranks.iter().map(|&rank| format!("{} {}", name(rank), waits(rank))).collect();
        return Hang {
            root_cause_rank: None,
            report: format!("stages {} wait for each other: {}", numbers(mesh, &cycle.ranks), each.join("; ")),
        };
    }
    let ends = (0..stages.len()).filter(|&rank| waited_for_rank(stages, rank).is_none());
    let Some(end) = ends.reduce(|oldest, rank| if stages[rank].age > stages[oldest].age { rank } else { oldest })
    else {
        return Hang { root_cause_rank: None, report: "there is no stage in the group".to_owned() };
    };
    let longest = chains.iter().filter(|chain| chain.ranks.last() == Some(&end));
    let longest =
        longest.reduce(|longest, chain| if chain.ranks.len() > longest.ranks.len() { chain } else { longest });
    let mut report = String::new();
    for (nth, &rank) in longest.iter().flat_map(|chain| &chain.ranks).enumerate() {
        report += &if nth == 0 { name(rank) } else { ", which".to_owned() };
        report += &if rank == end { String::new() } else { format!(" {}", waits(rank)) };
    }
    report += &match stages[end].text.as_str() {
        "" => " has reported no activity".to_owned(),
        text => format!(" has been in {text}"),
    };
    report += &format!(" for {}", format_seconds(stages[end].age));
    Hang { root_cause_rank: Some(end), report }
}

/// The chain of ranks from one rank to the last rank that it waits for, directly or indirectly.
struct Chain {
    ranks: Vec<usize>,
    /// The rank at which the chain closes into a cycle.
    cycle_start: Option<usize>,
}

fn follow(stages: &[StageActivity], start: usize) -> Chain {
    let mut ranks = vec![start];
    let mut at = start;
    while let Some(next) = waited_for_rank(stages, at) {
        if ranks.contains(&next) {
            return Chain { ranks, cycle_start: Some(next) };
        }
        ranks.push(next);
        at = next;
    }
    Chain { ranks, cycle_start: None }
}

/// Returns the rank that `rank` waits for; `None` if `rank` does not wait, or waits for a rank that does not exist.
fn waited_for_rank(stages: &[StageActivity], rank: usize) -> Option<usize> {
    stages[rank].waits_for.filter(|&next| next < stages.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(text: &str, waits_for: usize) -> StageActivity {
        StageActivity { text: text.to_owned(), waits_for: Some(waits_for), age: Duration::from_secs(40) }
    }

    fn find_hang_of(stages: &[StageActivity]) -> Hang {
        find_hang(stages, Mesh::pipeline(stages.len() as u32))
    }

    fn does(text: &str, age: u64) -> StageActivity {
        StageActivity { text: text.to_owned(), waits_for: None, age: Duration::from_secs(age) }
    }

    #[test]
    fn a_chain_is_followed_to_its_end() {
        let found = find_hang_of(&[does("B 2", 3), waits("RECV_B of microbatch 3", 2), does("F 5", 41)]);
        assert_eq!(found.root_cause_rank, Some(2));
        assert_eq!(
            found.report,
            "stage 1 waits for RECV_B of microbatch 3 from stage 2, which has been in F 5 for 41 s"
        );
    }

    #[test]
    fn a_single_stage_is_the_root_cause() {
        let found = find_hang_of(&[does("F 0", 5)]);
        assert_eq!((found.root_cause_rank, found.report.as_str()), (Some(0), "stage 0 has been in F 0 for 5.0 s"));
    }

    #[test]
    fn a_deadlock_is_reported_without_a_root_cause() {
        let found = find_hang_of(&[does("F 0", 90), waits("RECV_F 1", 2), waits("RECV_B 0", 1), waits("RECV_B 0", 2)]);
        assert_eq!(found.root_cause_rank, None);
        assert_eq!(
            found.report,
            "stages 1, 2 wait for each other: stage 1 waits for RECV_F 1 from stage 2; \
             stage 2 waits for RECV_B 0 from stage 1"
        );
    }

    #[test]
    fn waiting_for_itself_or_for_a_rank_outside_the_group() {
        assert_eq!(find_hang_of(&[waits("x", 0)]).root_cause_rank, None);
        assert_eq!(find_hang_of(&[waits("x", 7)]).root_cause_rank, Some(0));
        assert_eq!(find_hang_of(&[]).root_cause_rank, None);
    }

    #[test]
    fn stages_of_several_replicas() {
        let mesh = Mesh { stages: 1, data_parallel: 3 };
        assert_eq!(
            find_hang(&[does("F 5", 41), waits("REDUCE", 0), does("B 2", 3)], mesh).report,
            "stage 0 of replica 1 waits for REDUCE from stage 0 of replica 0, which has been in F 5 for 41 s"
        );
        assert_eq!(
            find_hang(&[waits("x", 2), does("F 5", 41), waits("y", 0)], mesh).report,
            "stages 0 of replica 0, 0 of replica 2 wait for each other: stage 0 of replica 0 waits for x from stage 0 of \
             replica 2; stage 0 of replica 2 waits for y from stage 0 of replica 0"
        );
    }
}
