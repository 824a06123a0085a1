//! Draws the loss curve: `svg` for browsers, `terminal` for terminals. Both modules draw the same `series`. Plotting
//! libraries lack the dark colour scheme in SVG, and labelled ticks and a legend in a terminal. This module therefore
//! draws the curve itself.

mod series;
mod svg;
mod terminal;
mod ticks;

pub use svg::{comparison_svg, svg};
pub use terminal::{comparison_terminal, terminal};
pub use ticks::{labels, step_label, ticks, whole_ticks};
