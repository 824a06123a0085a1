//! The `PipelineJob` type, its reader and its validation, and the contract between a stage's process or pod and the
//! programs that start and watch it. The crate does no I/O, has no async functions, and reads no clock.

#![forbid(unsafe_code)]

#[macro_use]
mod string_enum;

pub mod contract;
pub mod crd;
pub mod explain;
pub mod job;
mod mesh;
mod parse;
mod validate;
mod versions;
mod visible;

pub use job::{PipelineJob, PipelineJobSpec, PipelineJobStatus};
pub use parse::{Location, ParseError, parse, parse_with};
pub use validate::Problem;
pub use versions::StoredSpec;
pub use visible::visible;
