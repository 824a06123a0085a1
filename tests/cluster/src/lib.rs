//! A Kubernetes cluster for tests. [`ControlPlane`] needs neither root nor a container runtime: etcd, the API server,
//! the controller manager and the scheduler are processes of the test. [`TestKubelet`] simulates the nodes, and lets a
//! test decide the behaviour of each pod. [`kueue::Kueue`] runs Kueue's controller. The functions of this crate panic
//! on failure, so that the test fails. The crate `stagecoach-node` builds a real node from the same parts.

mod certificates;
pub mod chart;
mod client;
mod components;
pub mod flows;
mod kubectl;
mod kubelet;
pub mod kueue;
mod kueue_cluster;
mod object;
mod plane;
mod process;
mod proxy;
mod scratch;
pub mod tools;

pub use certificates::{Authority, control_plane};
pub use client::{ApiRefusal, Client, connect};
pub use components::{Component, ControlPlaneSettings, ControlPlaneSite, SERVICES, command};
pub use kubectl::Kubectl;
pub use kubelet::{Behaviour, PodHandle, PodView, TestKubelet};
pub use object::{condition_of, merge, pipeline_job};
pub use plane::ControlPlane;
pub use process::{GARBAGE_COLLECTION, Process, printed, run};
pub use proxy::{Fate, Proxy, Seen};
pub use stagecoach_test_wait::{Deadline, attempt, is_gone, process_state, spawn, until, until_or_tell, until_within};
pub use tools::tool;
