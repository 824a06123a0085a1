//! Hugging Face model directories: reading one, writing one from a checkpoint, and importing one as a checkpoint.

mod export;
mod import;
mod model_files;

pub use export::{ExportFormat, ExportOptions, ExportSummary, ExportType, ExportedWeights, export, export_weights};
pub use import::import;
pub use model_files::{ModelFiles, TensorType, refuse_adapter};
