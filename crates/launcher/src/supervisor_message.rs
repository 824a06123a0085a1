//! Messages to the loop of the supervisor.

use rustix::process::Pid;
use stagecoach_telemetry::TrainingEvent;

/// A message to the loop.
#[derive(Debug)]
pub(crate) enum SupervisorMessage {
    /// A stage or a spare emitted an event.
    Event { attempt: u64, event: Box<TrainingEvent> },
    /// A process has exited. It is not reaped yet, so that the kernel does not reuse its id.
    Exited { pid: Pid },
    /// The launcher received a signal to stop.
    StopRequested,
}
