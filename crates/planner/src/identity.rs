//! The identity of a job, which checkpoints record, and the fields on which all stages must agree. The table `CHANGES`
//! of the crate `api` lists the effect that a change of each field of the spec has. From these effects, this module
//! derives both sets of fields.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stagecoach_api::job::{ChangeEffect, StreamingSpec};
use stagecoach_data::{Dataset, PreparedCorpus};
use stagecoach_telemetry::flatten_json;

use super::JobConfig;

/// The fields of an identity's `data` whose values are known only after the corpus has been read.
const OF_CORPUS: [&str; 7] =
    ["corpus", "tokenizer", "chatTemplateHash", "specialTokenIds", "trainingSequences", "sources", "heldOutFiles"];

impl JobConfig {
    /// Returns the identity: the fields that determine the numerical results. After training has begun, these fields
    /// may not change, except the decay of the learning rate when the job gets more steps. The identity identifies the
    /// corpus and its split by content, so a user may rename a file.
    pub fn identity(&self, prepared: &PreparedCorpus, dataset: &Dataset) -> Value {
        let files = dataset.held_out_files().map(|(name, sequences)| json!({"name": name, "sequences": sequences}));
        self.identity_of(prepared, dataset.epoch_lengths().as_deref(), files.collect())
    }

    /// Like [`JobConfig::identity`]. `epoch_lengths` has the number of sequences per epoch of each source; it is `None`
    /// for a streamed job.
    fn identity_of(
        &self,
        prepared: &PreparedCorpus,
        epoch_lengths: Option<&[u64]>,
        held_out_files: Vec<Value>,
    ) -> Value {
        let values = [
            prepared.corpus_hash.clone().into(),
            prepared.tokenizer_hash.clone().into(),
            prepared.chat_template.clone().into(),
            prepared.special_tokens.identity().unwrap_or_default(),
            epoch_lengths.map(|lengths| lengths.iter().sum::<u64>()).into(),
            self.identity_of_sources(epoch_lengths),
            Some(held_out_files).filter(|files| !files.is_empty()).into(),
        ];
        self.identity_over(OF_CORPUS.into_iter().zip(values))
    }

    /// Returns the weights of the sources, their `onExhausted` and, if known, their sequences per epoch; null for a job
    /// without `data.sources`. The result does not have the names and the files of the sources, so these may change.
    fn identity_of_sources(&self, epoch_lengths: Option<&[u64]>) -> Value {
        let sources = self.data.sources.iter().flatten().enumerate();
        let sources = sources.map(|(index, source)| {
            let mut identity = json!({"weights": source.weights(), "onExhausted": source.on_exhausted});
            if let Some(sequences) = epoch_lengths.and_then(|lengths| lengths.get(index)) {
                identity["trainingSequences"] = (*sequences).into();
            }
            identity
        });
        Some(sources.collect::<Vec<Value>>()).filter(|sources| !sources.is_empty()).into()
    }

    /// Returns the identity, with the fields of `corpus` added to its `data`, except fields whose value is null.
    fn identity_over(&self, corpus: impl Iterator<Item = (&'static str, Value)>) -> Value {
        let mut identity = self.job.spec.select(&[ChangeEffect::Identity, ChangeEffect::Extension]);
        if let Some(data) = identity["data"].as_object_mut() {
            let by_content = ["paths", "sources", "textField", "evaluation", "tokenizer", "streaming", "chatTemplate"];
            data.retain(|field, _| !by_content.contains(&field.as_str()));
        }
        if let Some(evaluation) = &self.data.evaluation {
            if let Some(max) = evaluation.max_sequences {
                identity["data"]["evaluation"]["maxSequences"] = max.into();
            }
            // an identity without this field belongs to a job that holds out the last sequences instead of randomly
            // drawn documents
            if evaluation.held_out_fraction() > 0.0 && !self.holds_out_last_sequences {
                identity["data"]["evaluation"]["heldOut"] = "Documents".into();
            }
        }
        if self.streams {
            let StreamingSpec { mode: _, window_sequences, block_bytes } = self.data.streaming_or_default();
            identity["data"]["streaming"] = json!({"windowSequences": window_sequences, "blockBytes": block_bytes});
        }
        for (field, value) in corpus {
            if !value.is_null() {
                identity["data"][field] = value;
            }
        }
        identity["training"]["gradientBlocks"] = self.gradient_blocks.into();
        // fields at their defaults are left out, because checkpoints of older versions lack these fields
        let defaults: [(&str, &str, Value); 7] = [
            ("/model/llama", "modelType", "Llama".into()),
            ("/data", "format", "Text".into()),
            ("/data", "onLongConversation", "Fail".into()),
            ("/data", "specialTokens", "Text".into()),
            ("/data", "onBadRecord", "Fail".into()),
            ("/training", "kernels", "Fastest".into()),
            ("/training", "gradientBlocks", 1.into()),
        ];
        for (pointer, field, default) in defaults {
            if let Some(Value::Object(fields)) = identity.pointer_mut(pointer) {
                fields.retain(|name, value| name != field || *value != default);
            }
        }
        // the absence of clipping is recorded as null
        identity["training"]["gradientClipNorm"] = self.training.gradient_clip_norm.into();
        let init_from = identity.as_object_mut().and_then(|identity| identity.remove("checkpoint"));
        if let Some(checkpoint) = init_from {
            identity["initFrom"] = checkpoint["initFrom"]["path"].clone();
        }
        // a branch may move, so the identity has the commit with which the job began
        for pointer in ["/model/pretrained/path", "/initFrom"] {
            if let Some(Value::String(path)) = identity.pointer_mut(pointer) {
                *path = self.remote_models.at_commit(path);
            }
        }
        identity
    }

    /// Returns the identity of this job with the corpus and the tokenizer of `recorded`. A caller can compare it with
    /// `recorded` before the job's corpus and tokenizer are read.
    pub fn identity_over_corpus_of(&self, recorded: &Value) -> Value {
        self.identity_over(OF_CORPUS.into_iter().map(|field| (field, recorded["data"][field].clone())))
    }

    /// Returns the fields on which all stages must agree, by path. The error about a mismatch names the paths. Fields
    /// that only the operator or the launcher reads may differ.
    pub fn agreement(&self) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        let read_by_stages = [ChangeEffect::Identity, ChangeEffect::Extension, ChangeEffect::Attempt];
        flatten_json("spec", &self.job.spec.select(&read_by_stages), &mut fields);
        fields
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use stagecoach_api::job::InitFromSpec;
    use stagecoach_data::HeldOut;

    use super::*;

    /// Returns the configuration of the sample job with the changes `set`.
    pub(crate) fn config(set: &[(&str, &str)]) -> JobConfig {
        let set: Vec<_> = set.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
        let sample = include_str!("../../../manifests/samples/shakespeare.yaml");
        JobConfig::new(stagecoach_api::parse_with(sample, "shakespeare.yaml", &set).unwrap(), Path::new("/tmp"))
            .unwrap()
    }

    fn prepared() -> PreparedCorpus {
        PreparedCorpus {
            folder: "tokens".into(),
            corpus_hash: "c".into(),
            tokenizer_hash: "t".into(),
            tokens: 1,
            documents: 1,
            by_source: Vec::new(),
            empty_documents: 0,
            vocab_size: 4096,
            id_bytes: 2,
            padding: 0,
            special_tokens: Default::default(),
            chat_template: None,
            template_parts: None,
            findings: Default::default(),
            notes: Vec::new(),
        }
    }

    /// The identity must have the form that earlier versions wrote. Another form would make their checkpoints unusable.
    #[test]
    fn the_identity_is_what_checkpoints_have() {
        let mut identity = json!({
            "model": {"type": "Llama", "llama": {
                "hiddenSize": 192, "numHiddenLayers": 6, "numAttentionHeads": 6, "numKeyValueHeads": 2,
                "intermediateSize": 512, "maxPositionEmbeddings": 128, "ropeTheta": 10000.0, "rmsNormEps": 1e-5,
                "tieWordEmbeddings": false, "initializerRange": 0.02,
            }},
            "data": {
                "corpus": "c", "tokenizer": "t", "sequenceLength": 128, "packing": true, "trainingSequences": 12648,
            },
            "training": {
                "globalBatchSize": 32, "microbatches": 8, "seed": 42, "precision": "Float32", "gradientClipNorm": 1.0,
                "optimizer": {"type": "AdamW", "adamW": {
                    "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weightDecay": 0.1, "decayNormsAndEmbeddings": false,
                }},
                "learningRate": {
                    "peak": 0.003, "warmupSteps": 50, "warmupStart": 0.0, "schedule": "Cosine", "decayFraction": 0.2,
                    "floor": 0.0003,
                },
            },
        });
        let resumed_identity = |set: &[(&str, &str)], recorded: &Value| {
            config(set).resuming(recorded).unwrap().identity_of(&prepared(), Some(&[12648]), Vec::new())
        };
        assert_eq!(resumed_identity(&[], &identity), identity);
        assert_eq!(resumed_identity(&[("training.gradientBlocks", "1")], &identity), identity);
        identity["training"]["gradientClipNorm"] = Value::Null;
        identity["training"]["learningRate"]["decaySteps"] = 500.into();
        identity["data"]["evaluation"] = json!({"maxSequences": 7});
        identity["initFrom"] = "older".into();
        identity["training"]["gradientBlocks"] = 4.into();
        let other = [
            ("training.gradientBlocks", "4"),
            ("data.evaluation.maxSequences", "7"),
            ("training.gradientClipNorm", "null"),
            ("training.learningRate.decaySteps", "500"),
            ("checkpoint.initFrom.path", "older"),
        ];
        assert_eq!(resumed_identity(&other, &identity), identity);
    }

    /// After a branch has moved, it names another model, so the identity changes. A job may name the commit instead of
    /// the branch.
    #[test]
    fn the_identity_has_the_commit_of_a_model_on_the_hub() {
        let identity = |path: &str, commit: &str| {
            let mut config = config(&[]);
            config.job.spec.checkpoint.init_from = Some(InitFromSpec { path: path.to_owned() });
            config.remote_models = serde_json::from_value(json!({"commits": {path: commit}})).unwrap();
            config.identity_of(&prepared(), Some(&[1]), Vec::new())
        };
        let begun = identity("hf://org/tiny", "aa");
        assert_eq!(begun["initFrom"], "hf://org/tiny@aa");
        assert_eq!(identity("hf://org/tiny@aa", "aa"), begun);
        assert_ne!(identity("hf://org/tiny", "bb"), begun);
    }

    #[test]
    fn a_job_that_begins_draws_documents_and_says_so() {
        let files = vec![json!({"name": "code", "sequences": 7})];
        let begun = config(&[]).identity_of(&prepared(), Some(&[12648]), files.clone());
        assert_eq!(begun["data"]["evaluation"], json!({"heldOut": "Documents"}));
        assert_eq!(begun["data"]["heldOutFiles"], json!(files));
        let resumed = config(&[]).resuming(&begun).unwrap();
        assert_eq!(resumed.identity_of(&prepared(), Some(&[12648]), files), begun);
        assert_eq!(resumed.data_config().held_out, HeldOut::Documents(0.02));
        let paths = config(&[("data.evaluation", "{paths: [corpus/held-out.txt]}")]);
        assert_eq!(paths.data_config().held_out, HeldOut::Nothing);
        assert_eq!(paths.identity_of(&prepared(), Some(&[1]), Vec::new())["data"].get("evaluation"), None);
    }

    #[test]
    fn a_job_is_streamed_as_long_as_it_lives_if_it_began_so() {
        let remote = [("data.paths", "['hf://datasets/o/n/*.parquet']"), ("data.streaming.windowSequences", "64")];
        let streamed = config(&remote);
        let identity = streamed.identity_of(&prepared(), None, Vec::new());
        assert_eq!(identity["data"]["streaming"], json!({"windowSequences": 64, "blockBytes": 16 << 20}));
        assert_eq!(identity["data"].get("trainingSequences"), None);
        assert!(streamed.data_config().streaming.is_some_and(|streaming| streaming.folder.ends_with("windows")));
        // a version that could not stream a corpus began the job
        let mut older = identity.clone();
        older["data"].as_object_mut().unwrap().remove("streaming");
        let resumed = |set: &[(&str, &str)], recorded| config(set).resuming(recorded).unwrap().streams;
        assert!(!resumed(&remote, &older) && resumed(&remote, &identity));
        assert!(!resumed(&[], &older) && resumed(&[], &identity));
        // an explicit mode stays as specified, and the comparison of identities detects a difference
        let always = [&remote[..], &[("data.streaming.mode", "Always")]].concat();
        assert!(resumed(&always, &older));
    }

    #[test]
    fn stages_agree_on_what_they_read() {
        let fields = config(&[("restart.maxRestarts", "3"), ("networkPolicy.mode", "None")]).agreement();
        for path in ["spec.stages", "spec.training.threads", "spec.training.steps", "spec.data.evaluation.everySteps"] {
            assert!(fields.contains_key(path), "{path} is missing from {:?}", fields.keys());
        }
        let unread = |path: &&String| path.starts_with("spec.restart") || path.starts_with("spec.networkPolicy");
        assert_eq!(fields.keys().find(unread), None);
    }
}
