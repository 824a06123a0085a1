//! The loss curve as text of 72 columns. The plot has 16 rows of braille characters, of 2 by 4 dots each.

use super::series::{CurvePoint, LossSeries, smooth};
use super::ticks::{labels, step_label, ticks, whole_ticks};
use crate::StepRecord;

/// The number of columns of the drawing, labels included.
const COLUMNS: usize = 72;
/// The number of rows of the plot. The axis takes two more rows.
const ROWS: usize = 16;
/// The number of columns of the labels on the left.
const MARGIN: usize = 8;
/// The number of columns of the plot.
const WIDTH: usize = COLUMNS - MARGIN - 1;

/// Draws the smoothed training loss (dots), held-out losses (`o`) and the unigram entropy (dashes) in lines of at most
/// 72 columns. Each line ends with a line feed.
pub fn terminal(records: &[StepRecord], entropy: Option<f64>) -> String {
    draw(&LossSeries::new(records, entropy))
}

/// Draws two series of smoothed training losses for the same steps. The losses of `records` are a line. The losses of
/// `others` are marked by `o`, and the legend calls them `name`.
pub fn comparison_terminal(records: &[StepRecord], others: &[StepRecord], name: &str) -> String {
    let series = LossSeries::comparison(records, others, &format!("{name}, smoothed"));
    draw(&LossSeries { held_out: smooth(&series.held_out), ..series })
}

fn draw(series: &LossSeries) -> String {
    let (Some(steps), Some(losses)) = (series.steps(), series.losses()) else {
        return "no step has been trained yet\n".into();
    };
    let mut grid = BrailleGrid { steps, losses, cells: vec![[GridCell::Empty; WIDTH]; ROWS] };
    if let Some(entropy) = series.entropy {
        let row = grid.row(entropy);
        grid.cells[row].fill(GridCell::Dash);
    }
    grid.line(&series.smoothed);
    for point in &series.held_out {
        let (column, row) = (grid.column(point.0), grid.row(point.1));
        grid.cells[row][column] = GridCell::HeldOut;
    }
    grid.text(series)
}

#[derive(Clone, Copy, PartialEq)]
enum GridCell {
    Empty,
    Dash,
    HeldOut,
    /// The bits of a braille character.
    Dots(u8),
}

struct BrailleGrid {
    steps: (f64, f64),
    losses: (f64, f64),
    /// The rows, from the top.
    cells: Vec<[GridCell; WIDTH]>,
}

impl BrailleGrid {
    /// Returns the index of a value's cell when `range` is divided into `count` cells.
    fn cell_index(value: f64, range: (f64, f64), count: usize) -> usize {
        let share = (value - range.0) / (range.1 - range.0);
        ((share * count as f64) as usize).min(count - 1)
    }

    fn column(&self, step: f64) -> usize {
        Self::cell_index(step, self.steps, WIDTH)
    }

    fn row(&self, loss: f64) -> usize {
        ROWS - 1 - Self::cell_index(loss, self.losses, ROWS)
    }

    /// Draws a line through the points: one dot per dot column, and vertical dots where the line is steep.
    fn line(&mut self, points: &[CurvePoint]) {
        let mut previous: Option<(usize, usize)> = None;
        for (step, loss) in points {
            let x = Self::cell_index(*step, self.steps, WIDTH * 2);
            let y = ROWS * 4 - 1 - Self::cell_index(*loss, self.losses, ROWS * 4);
            let (from_x, from_y) = previous.unwrap_or((x, y));
            for column in from_x..=x {
                let share = if x > from_x { (column - from_x) as f64 / (x - from_x) as f64 } else { 1.0 };
                self.dot(column, (from_y as f64 + share * (y as f64 - from_y as f64)).round() as usize);
            }
            // without these dots, a steep segment would have gaps
            (from_y.min(y)..=from_y.max(y)).filter(|_| x <= from_x + 1).for_each(|row| self.dot(x, row));
            previous = Some((x, y));
        }
    }

    fn dot(&mut self, x: usize, y: usize) {
        // Unicode numbers the upper three dots of the left column, then the upper three of the right column, and then
        // the bottom row
        const BITS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
        let cell = &mut self.cells[y / 4][x / 2];
        let dots = if let GridCell::Dots(dots) = cell { *dots } else { 0 };
        *cell = GridCell::Dots(dots | BITS[y % 4][x % 2]);
    }

    fn text(&self, series: &LossSeries) -> String {
        let loss_ticks = ticks(self.losses.0, self.losses.1, 6);
        let labelled: Vec<(usize, String)> =
            loss_ticks.iter().map(|tick| self.row(*tick)).zip(labels(&loss_ticks)).collect();
        let mut text = String::new();
        for (row, cells) in self.cells.iter().enumerate() {
            let label = labelled.iter().find(|(at, _)| *at == row).map(|(_, label)| label.as_str());
            text += &format!("{:>MARGIN$}", label.map_or(String::new(), |label| format!("{label} ")));
            text.push(if label.is_some() { '┤' } else { '│' });
            let line: String = cells.iter().map(character).collect();
            text += line.trim_end();
            text.push('\n');
        }
        text + &self.axis() + &legend(series)
    }

    /// Returns the x axis and its labels.
    fn axis(&self) -> String {
        let mut line = vec!['─'; WIDTH];
        let mut names = vec![' '; COLUMNS];
        let mut free_from = 0;
        for tick in whole_ticks(self.steps.0, self.steps.1, 6) {
            let (column, name) = (self.column(tick), step_label(tick));
            line[column] = '┬';
            let at = (MARGIN + 1 + column).saturating_sub(name.len() / 2).min(COLUMNS - name.len());
            if at >= free_from {
                names.splice(at..at + name.len(), name.chars());
                free_from = at + name.len() + 1;
            }
        }
        let (line, names): (String, String) = (line.into_iter().collect(), names.into_iter().collect());
        format!("{:MARGIN$}└{line}\n{}\n", "", names.trim_end())
    }
}

fn character(cell: &GridCell) -> char {
    match cell {
        GridCell::Empty => ' ',
        GridCell::Dash => '╌',
        GridCell::HeldOut => 'o',
        GridCell::Dots(dots) => char::from_u32(0x2800 + u32::from(*dots)).unwrap_or('*'),
    }
}

fn legend(series: &LossSeries) -> String {
    let mut names = vec![format!("⠒⠒ {}, smoothed", series.name)];
    if !series.held_out.is_empty() {
        names.push(format!("o {}", series.points_name));
    }
    if series.entropy.is_some() {
        names.push("╌╌ unigram entropy".into());
    }
    format!("{:MARGIN$}{}\n", "", names.join("  "))
}

#[cfg(test)]
mod tests {
    use super::super::series::tests::records;
    use super::*;

    #[test]
    fn a_falling_loss_falls() {
        let losses: Vec<f32> = (0..500).map(|step| 3.0 + 5.0 * (-(step as f32) / 80.0).exp()).collect();
        let mut run = records(&losses);
        run[99].evaluation_loss = Some(5.0);
        let picture = terminal(&run, Some(6.0));
        let lines: Vec<&str> = picture.lines().collect();
        assert_eq!(lines.len(), ROWS + 3);
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS), "{picture}");
        let first_dot = |line: &str| line.chars().position(|c| ('\u{2801}'..='\u{28ff}').contains(&c));
        let columns: Vec<usize> = lines[..ROWS].iter().filter_map(|line| first_dot(line)).collect();
        assert!(columns.len() > 10 && columns.windows(2).all(|pair| pair[0] <= pair[1]), "{picture}");
        assert!(picture.contains('o') && picture.contains("╌╌╌"), "{picture}");
        assert!(lines[ROWS + 1].trim_start().starts_with("0 ") && lines[ROWS + 1].ends_with("500"), "{picture}");
    }

    #[test]
    fn two_runs_of_the_same_steps_are_drawn_from_their_first_on() {
        let run = |loss: f32| -> Vec<StepRecord> {
            records(&[loss; 120]).into_iter().map(|record| StepRecord { step: record.step + 300, ..record }).collect()
        };
        let picture = comparison_terminal(&run(4.0), &run(3.0), "without a.txt:1");
        let rows_with = |wanted: &dyn Fn(char) -> bool| -> Vec<usize> {
            let plot = picture.lines().take(ROWS).enumerate();
            plot.filter(|(_, line)| line.chars().any(wanted)).map(|(row, _)| row).collect()
        };
        // each series fills one row of the picture
        let (line, points) = (rows_with(&|c| ('\u{2801}'..='\u{28ff}').contains(&c)), rows_with(&|c| c == 'o'));
        assert_eq!((line.len(), points.len(), line[0] < points[0]), (1, 1, true), "{picture}");
        let lines: Vec<&str> = picture.lines().collect();
        assert!(lines[ROWS + 1].trim_start().starts_with("300 ") && lines[ROWS + 1].ends_with("400"), "{picture}");
        assert!(lines[ROWS + 2].contains("as trained") && lines[ROWS + 2].contains("o without a.txt:1"), "{picture}");
    }

    #[test]
    fn no_point_one_point_and_gaps() {
        assert_eq!(terminal(&[], Some(6.0)), "no step has been trained yet\n");
        assert_eq!(terminal(&records(&[f32::NAN]), None), "no step has been trained yet\n");
        let dots = |picture: &str| {
            picture.lines().take(ROWS).collect::<String>().matches(|c| ('\u{2801}'..='\u{28ff}').contains(&c)).count()
        };
        assert_eq!(dots(&terminal(&records(&[2.0]), None)), 1);
        assert!(dots(&terminal(&records(&[2.0, f32::NAN, 1.0]), None)) > 2);
    }
}
