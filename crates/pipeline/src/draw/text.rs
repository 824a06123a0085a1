use super::{Panel, label, makespan, seconds, several_chunks};
use crate::action::Action;
use crate::timeline::ActionSpan;

/// Returns the timelines for a terminal of `width` columns. Each rank has one row with time from left to right and the
/// rank's bubble at the end.
///
/// `F3` begins the forward pass of microbatch 3, dashes continue an action, and dots are idle time. If any name does
/// not fit into its bar, no names are shown. Each column of a computation then shows the last digit of the microbatch,
/// and a line below explains the symbols. Messages are not shown. The replicas' reduction (`R`) and gather (`G`) are
/// shown only where no computation runs. `T` is the reduction of the tied embedding, `X` the exchange, `U` the update
/// and `S` the snapshot.
pub fn timeline_text(panels: &[Panel], width: usize) -> String {
    let ranks = panels.iter().map(|panel| panel.timeline.spans.len()).max().unwrap_or(0);
    let name = format!("stage {}", ranks.saturating_sub(1)).len();
    let columns = width.saturating_sub(name + " || bubble 100.0%".len()).max(10);
    let canvas = Canvas { columns, makespan: makespan(panels), chunks: several_chunks(panels) };
    let named = panels.iter().flat_map(|panel| &panel.timeline.spans).all(|spans| canvas.names_fit(spans));
    let mut text = String::new();
    for Panel { heading, timeline } in panels {
        if !heading.is_empty() {
            text += &format!("{heading}, {}\n", seconds(timeline.makespan));
        }
        for (rank, spans) in timeline.spans.iter().enumerate() {
            let row = canvas.row(spans, named);
            let bubble = timeline.bubble.get(rank).copied().unwrap_or(0.0) * 100.0;
            text += &format!("{:<name$} |{row}| bubble {bubble:.1}%\n", format!("stage {rank}"));
        }
    }
    let end = seconds(canvas.makespan);
    text += &format!("{:name$}  0{end:>rest$}\n", "", rest = columns.saturating_sub(1));
    if !named {
        let key = "0-9 forward, a-j backward, A-J weight gradients: the last digit of the microbatch";
        text += &format!("{:name$}  {key}\n", "");
    }
    text
}

struct Canvas {
    columns: usize,
    makespan: f64,
    chunks: bool,
}

impl Canvas {
    fn column(&self, time: f64) -> usize {
        let share = if self.makespan > 0.0 { time / self.makespan } else { 0.0 };
        ((share * self.columns as f64).round() as usize).min(self.columns)
    }

    fn names_fit(&self, spans: &[ActionSpan]) -> bool {
        spans.iter().filter(|span| span.action.is_compute()).all(|span| {
            let columns = self.column(span.end).saturating_sub(self.column(span.start));
            columns == 0 && span.start == span.end || label(span.action, self.chunks).len() <= columns
        })
    }

    fn row(&self, spans: &[ActionSpan], named: bool) -> String {
        let mut row = vec!['.'; self.columns];
        let (beside, own): (Vec<&ActionSpan>, Vec<&ActionSpan>) = spans
            .iter()
            .filter(|span| !span.action.is_send() && !span.action.is_recv())
            .partition(|span| span.action.is_between_replicas());
        for span in beside.into_iter().chain(own) {
            let Some(cells) = row.get_mut(self.column(span.start)..self.column(span.end)) else { continue };
            let name = if named { label(span.action, self.chunks) } else { String::new() };
            let (name, fill) = match letter(span.action) {
                Some(letter) => (String::new(), letter),
                None if named => (name, '-'),
                None => (name, digit(span.action)),
            };
            for (cell, character) in cells.iter_mut().zip(name.chars().chain(std::iter::repeat(fill))) {
                *cell = character;
            }
        }
        row.into_iter().collect()
    }
}

/// Returns the letter of an action that is not a computation.
fn letter(action: Action) -> Option<char> {
    match action {
        Action::Reduce(_) => Some('R'),
        Action::ReduceTied => Some('T'),
        Action::Exchange => Some('X'),
        Action::Update => Some('U'),
        Action::Gather(_) => Some('G'),
        Action::Snapshot => Some('S'),
        _ => None,
    }
}

/// Returns the symbol of a computation that is too narrow for its name.
fn digit(action: Action) -> char {
    let last = action.item().map_or(0, |item| item.microbatch % 10) as u8;
    let first = match action {
        Action::Forward(_) => b'0',
        Action::BackwardWeight(_) => b'A',
        _ => b'a',
    };
    char::from(first + last)
}
