//! Tests of the PipelineJob type, its CRD, and the contract of a stage, through the public API.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod contract;
mod crd;
mod docs;
mod jobs;
mod reading;
mod validation;
mod versions;
