//! The cluster of the tests, and what needs an API server but no operator: chart, CRD and network policies.

mod chart;
mod crd;
mod flows;
mod kubelet;
mod plane;
