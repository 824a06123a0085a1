//! Reads Hugging Face model directories, exports a checkpoint as a model directory, and imports a model directory as a
//! checkpoint.

mod export;
mod import;
mod model_files;

pub use export::{ExportDtype, ExportFormat, ExportOptions, ExportSummary, ExportedWeights, export, export_weights};
pub use import::import;
pub use model_files::{ModelFiles, TensorType, refuse_adapter};
