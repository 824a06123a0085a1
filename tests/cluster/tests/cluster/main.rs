//! The tests of the cluster for tests, and the tests that need an API server but no operator: chart, CRD, network
//! policies and Kueue.

mod chart;
mod crd;
mod flows;
mod kubelet;
mod kueue;
mod plane;
