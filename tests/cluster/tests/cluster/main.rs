//! The cluster for tests, and the tests that need an API server but no operator: chart, CRD and network policies.

mod chart;
mod crd;
mod flows;
mod kubelet;
mod kueue;
mod plane;
