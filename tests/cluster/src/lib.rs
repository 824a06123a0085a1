//! A Kubernetes for tests. [`ControlPlane`] needs neither root nor a container runtime: etcd, the API server, the controller
//! manager and the scheduler as processes of the test; [`TestKubelet`] stands in for the nodes, and lets a test decide how
//! each pod behaves. [`Node`] is a real node with real containers, and needs root. What fails here fails a test, so these
//! functions panic, but for [`node::up`] and [`node::down`], which are a program's.

mod certificates;
pub mod chart;
mod client;
mod components;
pub mod flows;
mod kubectl;
mod kubelet;
pub mod node;
mod object;
mod plane;
mod process;
mod proxy;
mod scratch;
mod tools;
mod wait;

pub use client::{Client, Refusal};
pub use components::{Component, Settings};
pub use kubelet::{Behaviour, PodHandle, PodView, TestKubelet};
pub use node::Node;
pub use object::{condition_of, merge};
pub use plane::ControlPlane;
pub use process::Process;
pub use proxy::{Fate, Proxy, Seen};
pub use tools::tool;
pub use wait::until;
