//! The CustomResourceDefinition, without a cluster: its form, its defaults, and that no demand in it lacks a manifest
//! that breaks it. The same manifests meet a real API server in the tests of the cluster.

mod changes;
mod coverage;
mod defaults;
mod form;
mod generated;
mod refusals;
mod rows;
mod schema;
