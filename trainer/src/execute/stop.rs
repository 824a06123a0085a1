//! A request to stop, as a step looks at it: between two of its actions, and when it votes.

use std::fmt;

/// What is asked of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nothing.
    No,
    /// To be the last one.
    AfterStep,
    /// To be given up: there is no time for the rest of it.
    Now,
}

/// Tells what is asked at this moment.
#[derive(Clone, Copy)]
pub struct StopSignal<'a>(pub &'a dyn Fn() -> Stop);

impl StopSignal<'_> {
    /// Nothing is ever asked.
    pub const NEVER: StopSignal<'static> = StopSignal(&|| Stop::No);
}

impl fmt::Debug for StopSignal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StopSignal({:?})", (self.0)())
    }
}
