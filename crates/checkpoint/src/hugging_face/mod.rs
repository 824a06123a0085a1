//! Hugging Face model directories: read, written from a checkpoint, and imported as one.

mod export;
mod import;
mod model_files;

pub use export::{ExportFormat, ExportSummary, export};
pub use import::import;
pub use model_files::{ModelFiles, TensorType, refuse_adapter};
