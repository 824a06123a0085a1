//! Tests of the test cluster itself, and tests that need an API server but no operator: of the chart, the CRD, network
//! policies and Kueue.

mod chart;
mod crd;
mod flows;
mod kubelet;
mod kueue;
mod plane;
