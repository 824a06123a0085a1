//! Columns for people.

/// Columns, two spaces apart, those in `right` aligned to the right. A header of empty titles is left out.
pub(super) fn table(header: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(|title| (*title).to_owned()).collect();
    let all: Vec<&Vec<String>> =
        std::iter::once(&header).chain(rows).filter(|row| !row.iter().all(String::is_empty)).collect();
    let widths: Vec<usize> = (0..header.len())
        .map(|column| all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in all {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match right.contains(&column) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["7".into(), "a".into()], vec!["1000".into(), "b".into()]];
        assert_eq!(table(&["STEP", "NAME"], &[0], &rows), "STEP  NAME\n   7  a\n1000  b");
        assert_eq!(table(&["", ""], &[], &rows[..1]), "7  a");
    }
}
