//! Renders timelines as text for a terminal, as SVG, and as a trace for Perfetto.

mod svg;
mod text;
mod trace;

pub use svg::{escape_xml, timeline_css, timeline_svg, timeline_svg_unstyled};
pub use text::timeline_text;
pub use trace::timeline_trace;

use crate::action::Action;
use crate::timeline::Timeline;

/// A timeline and its heading, which may be empty. A drawing shows its panels above one another, on one time scale.
#[derive(Copy, Clone, Debug)]
pub struct Panel<'a> {
    /// The kind of the timeline, such as `measured`.
    pub heading: &'a str,
    /// The timeline.
    pub timeline: &'a Timeline,
}

impl<'a> From<&'a Timeline> for Panel<'a> {
    fn from(timeline: &'a Timeline) -> Self {
        Panel { heading: "", timeline }
    }
}

/// Returns the seconds until the last rank of all panels has finished.
fn makespan(panels: &[Panel]) -> f64 {
    panels.iter().map(|panel| panel.timeline.makespan).fold(0.0, f64::max)
}

/// Whether any rank holds more than one chunk. If so, a label shows the chunk.
fn several_chunks(panels: &[Panel]) -> bool {
    panels.iter().flat_map(|panel| &panel.timeline.spans).any(|spans| {
        let mut chunks = spans.iter().filter_map(|span| span.action.item()).map(|item| item.chunk);
        chunks.next().is_some_and(|first| chunks.any(|chunk| chunk != first))
    })
}

/// Returns a time with its unit, such as `0`, `12.5 ms` or `3.2 s`.
pub fn seconds(value: f64) -> String {
    let (value, item) = match value {
        0.0 => return "0".to_owned(),
        v if v < 1e-3 => (v * 1e6, "µs"),
        v if v < 1.0 => (v * 1e3, "ms"),
        v => (v, "s"),
    };
    let digits = if value < 10.0 { 2 } else { 1 };
    let text = format!("{value:.digits$}");
    format!("{} {item}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Returns the label of a computation, such as `F3` for the forward pass of microbatch 3. If `chunks` is true, the
/// label begins with the chunk, as in `2F3`.
fn label(action: Action, chunks: bool) -> String {
    match action.item() {
        Some(item) if !chunks => format!("{}{}", action.computation_type(), item.microbatch),
        _ => action.to_string(),
    }
}
