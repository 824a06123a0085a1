//! A Kubernetes for tests, without root and without a container runtime: [`ControlPlane`] starts etcd, the API server, the
//! controller manager and the scheduler as processes of the test; [`TestKubelet`] stands in for the nodes, and lets a test
//! decide how each pod behaves. What fails here fails a test, so these functions panic.

mod certificates;
pub mod chart;
mod client;
mod components;
pub mod flows;
mod kubelet;
mod plane;
mod process;
mod proxy;
mod scratch;
mod tools;
mod wait;

pub use client::{Client, Refusal};
pub use components::{Component, Settings};
pub use kubelet::{Behaviour, PodHandle, PodView, TestKubelet};
pub use plane::ControlPlane;
pub use process::Process;
pub use proxy::{Fate, Proxy, Seen};
pub use tools::tool;
pub use wait::until;
