//! Reads Hugging Face model directories, exports checkpoints to them, and imports them as checkpoints.

mod export;
mod import;
mod model_files;

pub use export::{ExportDtype, ExportFormat, ExportOptions, ExportSummary, ExportedWeights, export, export_weights};
pub use import::import;
pub use model_files::{ModelFiles, TensorType, refuse_adapter};
