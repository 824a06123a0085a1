//! The loss over the steps as a picture: `svg` for a browser, `terminal` for a terminal. Both draw the same `series`.

mod series;
mod svg;
mod terminal;
mod ticks;

pub(crate) use svg::svg;
pub(crate) use terminal::terminal;
