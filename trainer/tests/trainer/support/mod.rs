//! What several tests share: training without a launcher, and the reference's files.

pub(crate) mod dump;
pub(crate) mod pipeline;
