//! The configuration of a model, whatever its architecture, and its reader.

use std::fmt::Debug;
use std::sync::Arc;

use tch::Device;

use super::Architecture;
use super::config_json::ConfigJson;

/// The configuration of a model: its shapes and constants, from a job or from Hugging Face's `config.json`.
pub trait ModelConfig: Debug + Send + Sync {
    /// The member of a job's `spec.model` that specifies such a model.
    fn spec_member(&self) -> &'static str;
    /// The fields whose difference gives weights another shape or another function, by their names in a job. All models
    /// of the same member have the same names.
    fn fields(&self) -> Vec<(&'static str, String)>;
    /// A field that this model has and that no job can specify.
    fn unspecifiable_field(&self) -> Option<&'static str>;
    /// Rows of embedding and head; `None` if a job leaves them to the tokenizer.
    fn vocab_size(&self) -> Option<usize>;
    /// Tokens of the longest sequence.
    fn max_position_embeddings(&self) -> usize;
    /// The same model with `vocab_size` rows in embedding and head.
    fn with_vocab_size(&self, vocab_size: usize) -> Arc<dyn ModelConfig>;
    /// The model on a device, without allocations.
    fn architecture(&self, device: Device) -> Box<dyn Architecture>;

    /// The [`fields`](Self::fields) in which another model differs, with both values. Only models of the same member
    /// have fields to compare.
    fn differences(&self, other: &dyn ModelConfig) -> Vec<String> {
        let (our_member, their_member) = (self.spec_member(), other.spec_member());
        if our_member != their_member {
            return vec![format!("type is {our_member} here and {their_member} there")];
        }
        let pairs = self.fields().into_iter().zip(other.fields());
        let different = pairs.filter(|((_, own), (_, other))| own != other);
        different.map(|((name, own), (_, other))| format!("{name} is {own} here and {other} there")).collect()
    }
}

/// The models with one `model_type` of Hugging Face.
pub(crate) trait ModelFamily: Sync {
    /// The `model_type`.
    fn model_type(&self) -> &'static str;
    /// The keys of `config.json` that [`read`](Self::read) reads or the architecture writes, separated by white space.
    fn keys(&self) -> &'static str;
    /// The configuration in a `config.json`. Absent fields have Hugging Face's defaults.
    ///
    /// # Errors
    /// If a field has a value that this trainer does not support.
    fn read(&self, json: &ConfigJson) -> Result<Arc<dyn ModelConfig>, String>;
}
