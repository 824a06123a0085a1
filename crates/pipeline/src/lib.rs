//! One step of a pipeline as data: schedules say in which order each rank computes, lowering adds what the ranks tell
//! each other, and that same list of actions is verified, simulated, drawn and, by the trainer, executed.
//! The partition (which layers go to which chunk) is found here too. Everything is pure: no files, no clocks, no threads.
#![forbid(unsafe_code)]

mod action;
pub mod csv;
pub mod draw;
mod lower;
pub mod partition;
mod placement;
mod program;
mod residency;
pub mod schedule;
mod simulate;
mod timeline;
mod verify;
mod walk;

pub use action::{Action, ActionError, Edge, Unit};
pub use csv::{CsvError, from_csv, to_csv};
pub use draw::{timeline_svg, timeline_text, timeline_trace};
pub use lower::{LowerError, evaluation, lower};
pub use partition::{LayerCost, Memory, ModelCost, Partition, PartitionError, balance, balanced, explicit};
pub use placement::{Placement, PlacementError};
pub use program::{Programs, TextError};
pub use schedule::{Schedule, gpipe, one_f_one_b};
pub use simulate::{ChunkCosts, Costs, simulate};
pub use timeline::{Span, Timeline};
pub use verify::{At, Limits, Proof, Stuck, Violation, verify, verify_evaluation};
