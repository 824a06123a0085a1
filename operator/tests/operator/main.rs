//! Tests of the real operator with a real API server. The kubelet is simulated.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod address_families;
mod compatibility;
mod containers;
mod contested;
mod crashes;
mod deadlines;
mod elastic;
mod evictions;
mod failures;
mod faults;
mod folders;
mod gangs;
mod gitops;
mod lifecycle;
mod manifests;
mod namespaces;
mod outage;
mod owned;
mod placement;
mod plugin;
mod queues;
mod refusals;
mod replacement;
mod replicas;
mod responsiveness;
mod restart_rules;
mod scheduling;
mod serving;
mod spares;
mod status;
mod support;
mod watches;
