//! The configuration of a model of any architecture, and the reader of `config.json`.

use std::fmt::Debug;
use std::sync::Arc;

use tch::Device;

use super::Architecture;
use super::config_json::ConfigJson;

/// The configuration of a model: its shapes and constants, from a job or from Hugging Face's `config.json`.
pub trait ModelConfig: Debug + Send + Sync {
    /// Returns the field of a job's `spec.model` that configures this architecture, such as `llama`.
    fn spec_field(&self) -> &'static str;
    /// Returns the fields that determine the shapes of the weights or the function that the model computes. Each field
    /// has its name in a job and its value as text. All models with the same [`spec_field`](Self::spec_field) have
    /// fields with the same names.
    fn fields(&self) -> Vec<(&'static str, String)>;
    /// Returns a field that this model has and that no job can specify, if there is one.
    fn field_not_in_spec(&self) -> Option<&'static str>;
    /// Returns the number of rows of embedding and head; `None` if the tokenizer determines the number.
    fn vocab_size(&self) -> Option<usize>;
    /// Returns the number of tokens of the longest sequence.
    fn max_position_embeddings(&self) -> usize;
    /// Returns the same model with `vocab_size` rows in embedding and head.
    fn with_vocab_size(&self, vocab_size: usize) -> Arc<dyn ModelConfig>;
    /// Returns the architecture of the model on a device. The call allocates no memory on the device.
    fn architecture(&self, device: Device) -> Box<dyn Architecture>;

    /// Returns the [`fields`](Self::fields) in which another model differs, with both values. If the models have
    /// different types, the result contains only the difference of the types.
    fn differences(&self, other: &dyn ModelConfig) -> Vec<String> {
        let (our_member, their_member) = (self.spec_field(), other.spec_field());
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
    /// Returns the `model_type` of the family.
    fn model_type(&self) -> &'static str;
    /// Returns the keys of `config.json` that [`read`](Self::read) reads or the architecture writes, separated by white
    /// space.
    fn keys(&self) -> &'static str;
    /// Reads the configuration in a `config.json`. Absent fields have Hugging Face's defaults.
    ///
    /// # Errors
    /// If a field has a value that this trainer does not support.
    fn read(&self, json: &ConfigJson) -> Result<Arc<dyn ModelConfig>, String>;
}
