//! The callbacks of a running step.

use std::fmt;

use stagecoach_transport::LinkError;

/// Whether a step must stop, and how soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRequest {
    /// No stop is requested.
    None,
    /// Stop after this step.
    AfterStep,
    /// Abandon this step: too little time is left to finish it.
    Immediately,
}

/// Functions that a step calls while it runs.
#[derive(Clone, Copy)]
pub struct StepControl<'a> {
    /// Returns whether the step must stop. The step calls it between its actions, and when it votes.
    pub stop: &'a dyn Fn() -> StopRequest,
    /// Called before the step votes: waits for everything that the vote promises to the group.
    pub before_vote: &'a dyn Fn() -> Result<(), LinkError>,
    /// The index in the program of the action before which `when_idle` is called: where the stage is expected to wait.
    pub idle_before: Option<usize>,
    /// Called before action `idle_before`, for work that can be done at any time.
    pub when_idle: &'a dyn Fn() -> Result<(), LinkError>,
}

impl StepControl<'_> {
    /// Never requests a stop, and never waits.
    pub const NONE: StepControl<'static> =
        StepControl { stop: &|| StopRequest::None, before_vote: &|| Ok(()), idle_before: None, when_idle: &|| Ok(()) };
}

impl fmt::Debug for StepControl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StepControl({:?})", (self.stop)())
    }
}
