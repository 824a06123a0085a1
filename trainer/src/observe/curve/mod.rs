//! The loss curve: `svg` for browsers, `terminal` for terminals. Both draw the same `series`. Drawn here rather than by a
//! plotting library for what those lack: the dark colour scheme in SVG, labelled ticks and a legend in a terminal.

mod series;
mod svg;
mod terminal;
mod ticks;

pub(crate) use svg::{comparison_svg, svg};
pub(crate) use terminal::{comparison_terminal, terminal};
pub(crate) use ticks::{labels, step_label, ticks, whole_ticks};
