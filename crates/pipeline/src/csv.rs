//! Schedules as torchtitan's compute-only CSV: one line per rank, one action per cell, an empty cell where a rank
//! idles.

use crate::action::{Action, ActionError};
use crate::lower::lower;
use crate::placement::Placement;
use crate::schedule::Schedule;
use crate::verify::Violation;

/// Error of parsing a schedule. Lines and columns count from 1; a missing action is reported after the line's last
/// cell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsvError {
    /// A cell is not an action.
    #[error("line {line}, column {column}: {error}")]
    Cell {
        /// The line.
        line: usize,
        /// The cell.
        column: usize,
        /// The error.
        error: ActionError,
    },
    /// More or fewer lines than ranks.
    #[error("the CSV has {found} lines but the pipeline has {ranks} ranks: write one line per rank")]
    Lines {
        /// Lines of the CSV.
        found: usize,
        /// Ranks of the placement.
        ranks: usize,
    },
    /// All cells are empty.
    #[error("the CSV holds no action: write at least one microbatch's F and B for every chunk, like 0F0,0B0")]
    Empty,
    /// The actions don't form a step.
    #[error("line {line}, column {column}, action {action}: {violation}")]
    Schedule {
        /// The line.
        line: usize,
        /// The cell.
        column: usize,
        /// The action at this place, or missing there.
        action: Action,
        /// The violation; its rank and position count from 0, without empty cells.
        violation: Violation,
    },
    /// A placement unsupported by CSV schedules.
    #[error("the pipeline itself is impossible: {0}")]
    Pipeline(Violation),
}

/// Writes the schedule's actions, without idle cells.
pub fn to_csv(schedule: &Schedule) -> String {
    let line = |actions: &Vec<Action>| actions.iter().map(Action::to_string).collect::<Vec<_>>().join(",") + "\n";
    schedule.ranks.iter().map(line).collect()
}

/// Reads a schedule and checks all that can be checked without costs. `microbatches` None takes the number from the
/// CSV.
///
/// # Errors
/// Names line, column and action.
pub fn from_csv(text: &str, placement: &Placement, microbatches: Option<usize>) -> Result<Schedule, CsvError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).trim_end();
    let rows =
        text.lines().enumerate().map(|(index, line)| parse_line(index + 1, line)).collect::<Result<Vec<_>, _>>()?;
    let actions = || rows.iter().flat_map(|row| &row.actions);
    if actions().next().is_none() {
        return Err(CsvError::Empty);
    }
    if rows.len() != placement.ranks() {
        return Err(CsvError::Lines { found: rows.len(), ranks: placement.ranks() });
    }
    let highest = actions().filter_map(|action| action.item()).map(|item| item.microbatch).max().unwrap_or(0);
    let schedule = Schedule {
        name: "CSV".to_owned(),
        placement: placement.clone(),
        microbatches: microbatches.unwrap_or(highest.saturating_add(1)),
        ranks: rows.iter().map(|row| row.actions.clone()).collect(),
    };
    // Lowering checks the schedule; its result is discarded, because the plan lowers again, with the tied embedding.
    match lower(&schedule, false) {
        Ok(_) => Ok(schedule),
        Err(error) => Err(locate(&rows, error.violation)),
    }
}

/// A rank's actions, the column of each, and how many cells the line has.
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
            row.actions.push(cell.parse().map_err(|error| CsvError::Cell { line, column: index + 1, error })?);
            row.columns.push(index + 1);
        }
    }
    Ok(row)
}

fn locate(rows: &[CsvRow], violation: Violation) -> CsvError {
    let Some((location, row)) = violation.location().and_then(|location| Some((location, rows.get(location.rank)?)))
    else {
        return CsvError::Pipeline(violation);
    };
    let column = row.columns.get(location.position).copied().unwrap_or(row.cells + 1);
    CsvError::Schedule { line: location.rank + 1, column, action: location.action, violation }
}
