//! The parts of a job's objects that Kueue reads: the Workload with the job's demand, and the placement of admitted
//! pods.

mod demand;
pub(crate) mod keys;
mod placement;
mod pod_sets;
mod workload;

pub(crate) use demand::{Demand, PriorityClassName, next_workload_number, workload_name, workload_number};
pub(crate) use placement::{PodSetPlacement, PodSetPlacements};
pub(crate) use pod_sets::PodSet;
pub(crate) use workload::{KUEUE_API_VERSION, PodSetUpdate, QueueAdmission, Workload, condition_type};
