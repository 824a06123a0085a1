//! Schedules as torchtitan's compute-only CSV: one rank a line, one action a cell, an empty cell where a rank idles.

use crate::action::{Action, ActionError};
use crate::lower::lower;
use crate::placement::Placement;
use crate::schedule::Schedule;
use crate::verify::Violation;

/// A CSV that is no schedule. Lines and columns count from 1; a missing action is reported behind the line's last cell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsvError {
    /// A cell that holds no action.
    #[error("line {line}, column {column}: {error}")]
    Cell {
        /// Where.
        line: usize,
        /// Which cell.
        column: usize,
        /// What is wrong with it.
        error: ActionError,
    },
    /// More or fewer lines than ranks.
    #[error("the CSV has {found} lines but the pipeline has {ranks} ranks: write one line a rank")]
    Lines {
        /// In the CSV.
        found: usize,
        /// By the placement.
        ranks: usize,
    },
    /// Nothing but empty cells.
    #[error("the CSV holds no action: write at least one microbatch's F and B for every chunk, like 0F0,0B0")]
    Empty,
    /// Actions that don't make a step.
    #[error("line {line}, column {column}, action {action}: {violation}")]
    Schedule {
        /// Where.
        line: usize,
        /// Which cell.
        column: usize,
        /// What is there, or is missing there.
        action: Action,
        /// What is wrong with it; its rank and position count from 0, without empty cells.
        violation: Violation,
    },
    /// A placement that no schedule fits.
    #[error("the pipeline itself is impossible: {0}")]
    Pipeline(Violation),
}

/// Writes the schedule's actions, without idle cells.
pub fn to_csv(schedule: &Schedule) -> String {
    let line = |actions: &Vec<Action>| actions.iter().map(Action::to_string).collect::<Vec<_>>().join(",") + "\n";
    schedule.ranks.iter().map(line).collect()
}

/// Reads a schedule and checks all that can be checked without costs. `microbatches` None takes the number from the CSV.
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
    let highest = actions().filter_map(|action| action.unit()).map(|unit| unit.microbatch).max().unwrap_or(0);
    let schedule = Schedule {
        name: "CSV".to_owned(),
        placement: placement.clone(),
        microbatches: microbatches.unwrap_or(highest.saturating_add(1)),
        ranks: rows.iter().map(|row| row.actions.clone()).collect(),
    };
    // Lowering checks the schedule; what it adds is made again, with the tied embedding, when the plan is.
    match lower(&schedule, false) {
        Ok(_) => Ok(schedule),
        Err(error) => Err(locate(&rows, error.violation)),
    }
}

/// A rank's actions, the column of each, and how many cells the line has.
struct Row {
    actions: Vec<Action>,
    columns: Vec<usize>,
    cells: usize,
}

fn parse_line(line: usize, text: &str) -> Result<Row, CsvError> {
    let mut row = Row { actions: Vec::new(), columns: Vec::new(), cells: 0 };
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

fn locate(rows: &[Row], violation: Violation) -> CsvError {
    let Some((at, row)) = violation.at().and_then(|at| Some((at, rows.get(at.rank)?))) else {
        return CsvError::Pipeline(violation);
    };
    let column = row.columns.get(at.position).copied().unwrap_or(row.cells + 1);
    CsvError::Schedule { line: at.rank + 1, column, action: at.action, violation }
}
