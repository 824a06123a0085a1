//! Messages to the loop of the supervisor.

use rustix::process::Pid;
use stagecoach_telemetry::TrainingEvent;

/// A message to the loop.
#[derive(Debug)]
pub(crate) enum SupervisorMessage {
    /// A stage or a spare emitted an event.
    Event { attempt: u64, event: Box<TrainingEvent> },
    /// A process has exited. The kernel does not reuse its id before the supervisor reaps the process, which it does
    /// earlier than this message only for a process that it kills and removes from its list.
    Exited { pid: Pid },
    /// The launcher received a signal to stop.
    StopRequested,
}
