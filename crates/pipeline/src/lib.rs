#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod action;
mod activation_memory;
mod advice;
mod costs;
mod csv;
mod draw;
mod gradient_blocks;
mod lower;
mod measured;
mod optimal;
mod partition;
mod placement;
mod program;
mod replica;
mod schedule;
mod simulate;
mod speeds;
mod split;
mod timeline;
mod verify;
mod work_item;

pub use action::{Action, ActionError, Edge};
pub use advice::{Advice, advise};
pub use costs::{ChunkCosts, Costs, SENDS_IN_FLIGHT};
pub use csv::{CsvError, from_csv, to_csv};
pub use draw::{
    Panel, escape_xml, seconds, timeline_css, timeline_svg, timeline_svg_unstyled, timeline_text, timeline_trace,
};
pub use gradient_blocks::{GradientBlocks, ReplicaBlocks, Subtree};
pub use lower::{LowerError, forward_only_programs, lower};
pub use measured::{RankBreakdown, breakdown};
pub use optimal::{OptimalSchedule, optimal_schedule};
pub use partition::{
    ModelCost, ModuleCost, Partition, PartitionError, RankMemory, StageMemory, balance_ratio, balanced_partition,
    explicit_partition,
};
pub use placement::{Placement, PlacementError};
pub use program::{ActionLocation, ProgramTextError, Programs};
pub use replica::{Replica, ReplicaLinks};
pub use schedule::{
    ChunkRule, INTERLEAVED_ONE_F_ONE_B, ONE_F_ONE_B, SCHEDULES, Schedule, ScheduleType, gpipe, interleaved_one_f_one_b,
    interleaved_zero_bubble, one_f_one_b, zbv_zero_bubble,
};
pub use simulate::simulate;
pub use speeds::{RankSpeeds, SpeedError};
pub use timeline::{ActionSpan, Timeline};
pub use verify::{BlockedActions, Limits, Violation, verify, verify_evaluation};
pub use work_item::WorkItem;
