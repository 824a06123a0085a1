//! What several tests share: training without a launcher, and the reference's files.

pub(crate) mod pipeline;
pub(crate) mod reference_data;
