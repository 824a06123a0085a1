//! Pairwise covering sets: few rows in which every pair of values of any two dimensions occurs.

/// Returns rows in which every pair of values occurs. `sizes` contains the number of values of each dimension, and a
/// row contains the index of a value for each dimension. The algorithm is greedy (Cohen et al. 1997).
pub fn pairwise(sizes: &[usize]) -> Vec<Vec<usize>> {
    let all = product(sizes);
    let mut open: Vec<[usize; 4]> = Vec::new();
    for a in 0..sizes.len() {
        for b in a + 1..sizes.len() {
            open.extend((0..sizes[a]).flat_map(|x| (0..sizes[b]).map(move |y| [a, x, b, y])));
        }
    }
    let mut rows = Vec::new();
    while !open.is_empty() {
        let covers = |row: &Vec<usize>| open.iter().filter(|[a, x, b, y]| row[*a] == *x && row[*b] == *y).count();
        let best = all.iter().max_by_key(|row| covers(row)).unwrap().clone();
        open.retain(|[a, x, b, y]| best[*a] != *x || best[*b] != *y);
        rows.push(best);
    }
    rows
}

/// Returns every combination of values, in the form of [`pairwise`].
pub fn product(sizes: &[usize]) -> Vec<Vec<usize>> {
    sizes.iter().fold(vec![vec![]], |rows, &size| {
        rows.iter().flat_map(|row| (0..size).map(move |value| [row.as_slice(), &[value]].concat())).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_covered_by_few_rows() {
        let sizes = [5, 2, 3, 2, 2, 2];
        let rows = pairwise(&sizes);
        assert!((15..=20).contains(&rows.len()), "{}", rows.len());
        for a in 0..sizes.len() {
            for b in a + 1..sizes.len() {
                for (x, y) in (0..sizes[a]).flat_map(|x| (0..sizes[b]).map(move |y| (x, y))) {
                    assert!(rows.iter().any(|row| row[a] == x && row[b] == y), "{a}={x} {b}={y}");
                }
            }
        }
        assert_eq!(product(&sizes).len(), 240);
    }
}
