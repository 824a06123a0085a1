//! Reads and writes schedules as the compute-only CSV of torch and torchtitan. A line is a rank, and a cell is an
//! action. A rank idles at an empty cell. The line of a chunk's actions determines the chunk's rank.

use crate::action::{Action, ActionError};
use crate::lower::lower;
use crate::placement::Placement;
use crate::schedule::Schedule;
use crate::verify::Violation;
use std::collections::BTreeMap;

/// An error that occurs while a schedule is parsed. Lines and columns count from 1. The column of a missing action is
/// the column after the line's last cell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CsvError {
    /// A cell is not an action.
    #[error("line {line}, column {column}: {error}")]
    Cell {
        /// The number of the line.
        line: usize,
        /// The number of the column.
        column: usize,
        /// The error of the cell's text.
        error: ActionError,
    },
    /// The CSV has more or fewer lines than the pipeline has ranks.
    #[error("the CSV has {found} lines but the pipeline has {ranks} ranks: write one line per rank")]
    Lines {
        /// The number of lines in the CSV.
        found: usize,
        /// The number of ranks in the pipeline.
        ranks: usize,
    },
    /// All cells are empty.
    #[error("the CSV holds no action: write at least one microbatch's F and B for every chunk, like 0F0,0B0")]
    Empty,
    /// A rank has no chunk.
    #[error("line {line} has no chunk of its own: give every rank F and B of at least one chunk")]
    NoChunk {
        /// The number of the rank's line.
        line: usize,
    },
    /// A chunk between chunk 0 and the highest chunk has no action.
    #[error("the CSV has actions of chunk {highest} but none of chunk {chunk}: number the chunks from 0 without gaps")]
    ChunkGap {
        /// The chunk without actions.
        chunk: usize,
        /// The highest chunk.
        highest: usize,
    },
    /// The actions don't form a step.
    #[error("line {line}, column {column}, action {action}: {violation}")]
    Schedule {
        /// The number of the line.
        line: usize,
        /// The number of the column.
        column: usize,
        /// The action in this cell, or the action that is missing from it.
        action: Action,
        /// The violation. Its rank and position count from 0 and ignore empty cells.
        violation: Violation,
    },
    /// The violation does not belong to a cell of the file.
    #[error("no schedule is possible for this pipeline: {0}")]
    Pipeline(Violation),
}

/// Returns the schedule's actions as CSV, without empty cells.
pub fn to_csv(schedule: &Schedule) -> String {
    let line = |actions: &Vec<Action>| actions.iter().map(Action::to_string).collect::<Vec<_>>().join(",") + "\n";
    schedule.ranks.iter().map(line).collect()
}

/// Parses a schedule for `ranks` ranks and makes all checks that need no costs. Torch runs the two actions of a cell
/// with `OVERLAP_F_B` at the same time. This function reads them as two consecutive actions.
///
/// # Errors
/// Returns an error if the text is not a valid schedule. If the error belongs to a cell, it names the line, the column
/// and the action.
pub fn from_csv(text: &str, ranks: usize) -> Result<Schedule, CsvError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).trim_end();
    let rows =
        text.lines().enumerate().map(|(index, line)| parse_line(index + 1, line)).collect::<Result<Vec<_>, _>>()?;
    let actions = || rows.iter().flat_map(|row| &row.actions);
    if actions().next().is_none() {
        return Err(CsvError::Empty);
    }
    if rows.len() != ranks {
        return Err(CsvError::Lines { found: rows.len(), ranks });
    }
    let highest = actions().filter_map(|action| action.item()).map(|item| item.microbatch).max().unwrap_or(0);
    let schedule = Schedule {
        name: "CSV".to_owned(),
        placement: placement(&rows)?,
        microbatches: highest.saturating_add(1),
        ranks: rows.iter().map(|row| row.actions.clone()).collect(),
    };
    // Lowering checks the schedule. The programs are discarded, because the caller lowers the schedule again and then
    // knows whether the embedding is tied.
    match lower(&schedule, false) {
        Ok(_) => Ok(schedule),
        Err(error) => Err(locate(&rows, error.violation)),
    }
}

/// Places each chunk on the rank whose line has most of its actions. Actions of the chunk on other lines are mistakes,
/// which lowering reports.
fn placement(rows: &[CsvRow]) -> Result<Placement, CsvError> {
    let mut actions: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
    for (rank, row) in rows.iter().enumerate() {
        for item in row.actions.iter().filter_map(|action| action.item()) {
            *actions.entry(item.chunk).or_default().entry(rank).or_default() += 1;
        }
    }
    let highest = actions.last_key_value().map_or(0, |(chunk, _)| *chunk);
    if let Some((chunk, _)) = actions.keys().enumerate().find(|(expected, chunk)| expected != *chunk) {
        return Err(CsvError::ChunkGap { chunk, highest });
    }
    let most = |counts: BTreeMap<usize, usize>| counts.into_iter().rev().max_by_key(|(_, count)| *count);
    let rank_of: Vec<usize> = actions.into_values().filter_map(most).map(|(rank, _)| rank).collect();
    match (0..rows.len()).find(|rank| !rank_of.contains(rank)) {
        Some(rank) => Err(CsvError::NoChunk { line: rank + 1 }),
        None => Placement::new(rank_of).map_err(|_| CsvError::Empty),
    }
}

/// A rank's actions, the column of each action, and the number of cells in the line.
struct CsvRow {
    actions: Vec<Action>,
    columns: Vec<usize>,
    cells: usize,
}

fn parse_line(line: usize, text: &str) -> Result<CsvRow, CsvError> {
    let mut row = CsvRow { actions: Vec::new(), columns: Vec::new(), cells: 0 };
    for (index, cell) in text.split(',').enumerate() {
        row.cells = index + 1;
        let cell = cell.trim();
        let cell = cell.strip_prefix('"').and_then(|cell| cell.strip_suffix('"')).unwrap_or(cell);
        if !cell.is_empty() {
            let actions = parse_cell(cell).map_err(|error| CsvError::Cell { line, column: index + 1, error })?;
            row.columns.extend(actions.iter().map(|_| index + 1));
            row.actions.extend(actions);
        }
    }
    Ok(row)
}

fn parse_cell(cell: &str) -> Result<Vec<Action>, ActionError> {
    match cell.strip_prefix('(').and_then(|cell| cell.strip_suffix(")OVERLAP_F_B")) {
        Some(actions) => actions.split(';').map(|action| action.trim().parse()).collect(),
        None => Ok(vec![cell.parse()?]),
    }
}

fn locate(rows: &[CsvRow], violation: Violation) -> CsvError {
    let Some((location, row)) = violation.location().and_then(|location| Some((location, rows.get(location.rank)?)))
    else {
        return CsvError::Pipeline(violation);
    };
    let column = row.columns.get(location.position).copied().unwrap_or(row.cells + 1);
    CsvError::Schedule { line: location.rank + 1, column, action: location.action, violation }
}
