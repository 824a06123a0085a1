//! Who keeps a group waiting: follows "waits for" from stage to stage. Pure.

use std::time::Duration;

/// What one stage is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doing {
    /// The action, or what it waits for.
    pub text: String,
    /// The stage it waits for, if it waits.
    pub waits_for: Option<usize>,
    /// For how long.
    pub age: Duration,
}

/// Why nothing moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hang {
    /// The stage that all others on the chain wait for; none if they wait in a circle.
    pub culprit: Option<usize>,
    /// For example `stage 1 waits for RECV_B of microbatch 3 from stage 2, which has been in F 5 for 41 s`.
    pub report: String,
}

/// Finds the stage at the end of the chain of waiting stages, `doing[rank]`.
///
/// A circle is told first, since it can never resolve. Of several ends the one that has been at it the longest is
/// meant (the lowest rank of equals), and the longest chain that leads to it is told.
pub fn hang(doing: &[Doing]) -> Hang {
    let chains: Vec<Chain> = (0..doing.len()).map(|start| follow(doing, start)).collect();
    if let Some(circle) = chains.iter().find(|chain| chain.back_to == chain.ranks.first().copied()) {
        let names: Vec<String> = circle.ranks.iter().map(usize::to_string).collect();
        let waits: Vec<String> = circle.ranks.iter().map(|&rank| waiting(doing, rank)).collect();
        return Hang {
            culprit: None,
            report: format!("stages {} wait for each other: {}", names.join(", "), waits.join("; ")),
        };
    }
    let ends = (0..doing.len()).filter(|&rank| target(doing, rank).is_none());
    let Some(end) = ends.reduce(|oldest, rank| if doing[rank].age > doing[oldest].age { rank } else { oldest }) else {
        return Hang { culprit: None, report: "there is no stage in the group".to_owned() };
    };
    let longest = chains.iter().filter(|chain| chain.ranks.last() == Some(&end));
    let longest =
        longest.reduce(|longest, chain| if chain.ranks.len() > longest.ranks.len() { chain } else { longest });
    let mut report = String::new();
    for (nth, &rank) in longest.iter().flat_map(|chain| &chain.ranks).enumerate() {
        match (nth, rank == end) {
            (0, true) => report += &format!("stage {rank} has been in "),
            (0, false) => report += &waiting(doing, rank),
            (_, false) => {
                report += &format!(", which {}", waiting(doing, rank).trim_start_matches(&format!("stage {rank} ")))
            }
            (_, true) => report += ", which has been in ",
        }
    }
    report += &format!("{} for {}", doing[end].text, seconds(doing[end].age));
    Hang { culprit: Some(end), report }
}

/// The stages on the way from one to whatever it waits for.
struct Chain {
    ranks: Vec<usize>,
    /// The stage that the last one waits for, where the chain bites itself.
    back_to: Option<usize>,
}

fn follow(doing: &[Doing], start: usize) -> Chain {
    let mut ranks = vec![start];
    let mut at = start;
    while let Some(next) = target(doing, at) {
        if ranks.contains(&next) {
            return Chain { ranks, back_to: Some(next) };
        }
        ranks.push(next);
        at = next;
    }
    Chain { ranks, back_to: None }
}

/// Whom a stage waits for; a stage outside the group can't be followed.
fn target(doing: &[Doing], rank: usize) -> Option<usize> {
    doing[rank].waits_for.filter(|&next| next < doing.len())
}

fn waiting(doing: &[Doing], rank: usize) -> String {
    let from = doing[rank].waits_for.map_or(String::new(), |next| format!(" from stage {next}"));
    format!("stage {rank} waits for {}{from}", doing[rank].text)
}

/// Seconds as people read them: `0.4 s`, `41 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 9.95 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(text: &str, waits_for: usize) -> Doing {
        Doing { text: text.to_owned(), waits_for: Some(waits_for), age: Duration::from_secs(40) }
    }

    fn does(text: &str, age: u64) -> Doing {
        Doing { text: text.to_owned(), waits_for: None, age: Duration::from_secs(age) }
    }

    #[test]
    fn a_chain_is_followed_to_its_end() {
        let found = hang(&[does("B 2", 3), waits("RECV_B of microbatch 3", 2), does("F 5", 41)]);
        assert_eq!(found.culprit, Some(2));
        assert_eq!(
            found.report,
            "stage 1 waits for RECV_B of microbatch 3 from stage 2, which has been in F 5 for 41 s"
        );
    }

    #[test]
    fn the_longest_chain_is_told() {
        let found = hang(&[waits("RECV_B of microbatch 1", 1), waits("RECV_B of microbatch 2", 2), does("F 5", 41)]);
        assert_eq!(
            found.report,
            "stage 0 waits for RECV_B of microbatch 1 from stage 1, which waits for RECV_B of microbatch 2 from \
             stage 2, which has been in F 5 for 41 s"
        );
    }

    #[test]
    fn a_single_stage_is_its_own_end() {
        let found = hang(&[does("F 0", 5)]);
        assert_eq!((found.culprit, found.report.as_str()), (Some(0), "stage 0 has been in F 0 for 5.0 s"));
    }

    #[test]
    fn a_circle_is_said_as_such_and_has_no_culprit() {
        let found = hang(&[does("F 0", 90), waits("RECV_F 1", 2), waits("RECV_B 0", 1), waits("RECV_B 0", 2)]);
        assert_eq!(found.culprit, None);
        assert_eq!(
            found.report,
            "stages 1, 2 wait for each other: stage 1 waits for RECV_F 1 from stage 2; \
             stage 2 waits for RECV_B 0 from stage 1"
        );
    }

    #[test]
    fn a_stage_that_waits_for_itself_or_for_nobody_known() {
        assert_eq!(hang(&[waits("x", 0)]).culprit, None);
        assert_eq!(hang(&[waits("x", 7)]).culprit, Some(0));
        assert_eq!(hang(&[]).culprit, None);
    }
}
