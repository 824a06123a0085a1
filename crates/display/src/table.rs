//! Tables without borders.

use comfy_table::{CellAlignment, Table, presets};

/// Columns two spaces apart, without borders. Columns listed in `right_aligned` are aligned to the right.
pub fn table(header: Option<&[&str]>, right_aligned: &[usize], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    if let Some(header) = header {
        table.set_header(header.iter().copied());
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right_aligned.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["7".into(), "a".into()], vec!["1000".into(), "b".into()]];
        assert_eq!(table(Some(&["STEP", "NAME"]), &[0], rows.clone()), "STEP  NAME\n   7  a\n1000  b");
        assert_eq!(table(None, &[], rows[..1].to_vec()), "7  a");
    }
}
