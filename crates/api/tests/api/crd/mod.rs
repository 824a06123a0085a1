//! Tests of the CustomResourceDefinition without a cluster: its form, its defaults, and a manifest that breaks each of
//! its constraints. The tests of the cluster apply the same manifests to a real API server.

mod changes;
mod coverage;
mod defaults;
mod explain;
mod form;
mod generated;
mod refusals;
mod rows;
mod schema;
