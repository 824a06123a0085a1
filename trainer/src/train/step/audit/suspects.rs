//! Compares all results of one work item, and identifies the ranks that computed a wrong result. The functions are
//! pure.

use std::collections::BTreeSet;

/// The suspected ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Suspects {
    pub(super) ranks: BTreeSet<usize>,
    /// Whether each of these ranks computed a wrong result. If false, one of them did, and the results do not show
    /// which.
    pub(super) is_clear: bool,
}

/// Returns the suspected ranks. `computed` has the results of each rank, one for each time that the rank computed the
/// item. The result that the most ranks computed counts as right, unless only one rank computed it or as many ranks
/// computed another result. A rank that computed any other result is suspected. If no result counts as right, all ranks
/// are suspected.
pub(super) fn suspects<T: PartialEq>(computed: &[(usize, Vec<T>)]) -> Suspects {
    let all = || computed.iter().flat_map(|(_, results)| results);
    let supporters = |result: &T| computed.iter().filter(|(_, results)| results.contains(result)).count();
    let most = all().map(&supporters).max().unwrap_or(0);
    let right: Vec<&T> = all().filter(|result| supporters(result) == most).collect();
    let is_clear = most > 1 && right.iter().all(|result| *result == right[0]);
    let is_wrong = |results: &[T]| results.iter().any(|result| !is_clear || result != right[0]);
    Suspects {
        ranks: computed.iter().filter(|(_, results)| is_wrong(results)).map(|(rank, _)| *rank).collect(),
        is_clear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(computed: &[(usize, &[char])]) -> Vec<usize> {
        let computed: Vec<_> = computed.iter().map(|(rank, results)| (*rank, results.to_vec())).collect();
        suspects(&computed).ranks.into_iter().collect()
    }

    #[test]
    fn a_stage_that_computed_wrong_once_is_alone_suspected() {
        // in its second computation, the stage computes the same result as the other stage
        assert_eq!(of(&[(0, &['x', 'a']), (1, &['a', 'a'])]), [0]);
        assert_eq!(of(&[(0, &['a', 'a']), (1, &['x', 'a'])]), [1]);
    }

    #[test]
    fn a_third_stage_decides_between_two_that_stay_with_their_results() {
        assert_eq!(of(&[(0, &['x', 'x']), (1, &['a', 'a']), (2, &['a'])]), [0]);
        assert_eq!(of(&[(2, &['a', 'a']), (0, &['x', 'x']), (1, &['a'])]), [0]);
        assert_eq!(of(&[(0, &['x', 'y']), (1, &['a', 'a']), (2, &['a'])]), [0]);
    }

    #[test]
    fn two_stages_that_stay_with_their_results_are_both_suspected() {
        assert_eq!(of(&[(0, &['x', 'x']), (1, &['a', 'a'])]), [0, 1]);
        // no rank computes a result twice
        assert_eq!(of(&[(0, &['x', 'y']), (1, &['a', 'b']), (2, &['c'])]), [0, 1, 2]);
        // each rank also computes the result of the other rank
        assert_eq!(of(&[(0, &['x', 'a']), (1, &['a', 'x'])]), [0, 1]);
    }
}
