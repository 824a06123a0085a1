//! Shared parts of several tests: training without a launcher, and the reference's files.

pub(crate) mod pipeline;
pub(crate) mod reference_data;
