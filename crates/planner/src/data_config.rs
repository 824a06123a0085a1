//! The configuration of a job's data.

use std::path::PathBuf;

use stagecoach_api::job::{
    DataFormat, DataSource, DataSpec, EvaluationSpec, OnBadRecord, OnExhausted, OnLongConversation, SpecialTokens,
    StreamingSpec, TOKEN_CACHE, TokenizerFile, TokenizerSpec,
};
use stagecoach_data::{
    ConversationConfig, CorpusSource, DataConfig, DocumentFormat, EnvironmentVariables, HeldOut, HeldOutFiles,
    NamedTokens, OnWait, Streaming, TokenizerSource,
};
use stagecoach_launcher::WINDOWS;
use stagecoach_os::is_in_cluster;

use super::job_config::JobConfig;

impl JobConfig {
    /// Returns the configuration of the data pipeline.
    pub fn data_config(&self) -> DataConfig {
        let sources = self.data.all_sources();
        let DataSpec {
            paths: _,
            sources: _,
            credentials: _,
            format,
            chat_template,
            chat_date,
            on_long_conversation,
            text_field,
            special_tokens,
            on_bad_record,
            sequence_length,
            packing,
            evaluation,
            tokenizer,
            streaming: _,
            cache: _,
        } = self.data.clone();
        let batch = u64::from(self.training.global_batch_size);
        let source = |source: DataSource| CorpusSource {
            weights: source.weights().into_iter().map(|(step, weight)| (step * batch, weight)).collect(),
            stops: source.on_exhausted == OnExhausted::Stop,
            name: source.name,
            paths: source.paths,
            format: document_format(source.format.unwrap_or(format)),
            text_field: source.text_field.unwrap_or_else(|| text_field.clone()),
        };
        DataConfig {
            volume_root: self.workspace.clone(),
            cache_root: self.workspace.join(TOKEN_CACHE),
            sources: sources.into_iter().map(source).collect(),
            sequence_length: sequence_length as usize,
            packing,
            held_out: match evaluation.as_ref().map_or(0.0, EvaluationSpec::held_out_fraction) {
                0.0 => HeldOut::Nothing,
                fraction if self.holds_out_last_sequences => HeldOut::LastSequences(fraction),
                fraction => HeldOut::Documents(fraction),
            },
            evaluation_max_sequences: evaluation.as_ref().and_then(|it| it.max_sequences).map(u64::from),
            held_out_files: evaluation
                .map_or_else(Vec::new, |evaluation| held_out_files(evaluation, format, &text_field)),
            seed: self.training.seed,
            named_tokens: match &tokenizer {
                TokenizerSpec::Train(_) => NamedTokens::default(),
                TokenizerSpec::File(TokenizerFile { path: _, bos, eos, pad }) => {
                    NamedTokens { bos: bos.clone(), eos: eos.clone(), pad: pad.clone() }
                }
            },
            tokenizer: match tokenizer {
                TokenizerSpec::Train(train) => TokenizerSource::Train { vocab_size: train.vocab_size as usize },
                TokenizerSpec::File(file) => TokenizerSource::File { path: self.local_path(&file.path) },
            },
            streaming: self.streams.then(|| self.streaming()),
            parse_special_tokens: special_tokens == SpecialTokens::Parse,
            conversations: ConversationConfig {
                template: chat_template.map(PathBuf::from),
                // validation of the job refuses a text that is not a date
                date: chat_date.and_then(|date| date.parse().ok()),
                on_long: match on_long_conversation {
                    OnLongConversation::Fail => stagecoach_data::OnLongConversation::Fail,
                    OnLongConversation::Truncate => stagecoach_data::OnLongConversation::Truncate,
                    OnLongConversation::Skip => stagecoach_data::OnLongConversation::Skip,
                },
            },
            on_bad_record: match on_bad_record {
                OnBadRecord::Fail => stagecoach_data::OnBadRecord::Fail,
                OnBadRecord::Skip => stagecoach_data::OnBadRecord::Skip,
            },
            // in a pod, a symbolic link could lead to files that do not belong to the job's author
            follow_links_out: !is_in_cluster(),
            remote_files: Some(self.remote_files.clone()),
            variables: EnvironmentVariables::of_process(),
            on_wait: OnWait::default(),
        }
    }

    fn streaming(&self) -> Streaming {
        let StreamingSpec { mode: _, window_sequences, block_bytes } = self.data.streaming_or_default();
        Streaming {
            folder: self.folder().join(WINDOWS),
            window_sequences: window_sequences.into(),
            block_bytes,
            max_bytes: self.data.cache_max_bytes(),
        }
    }
}

fn document_format(format: DataFormat) -> DocumentFormat {
    match format {
        DataFormat::Text => DocumentFormat::Text,
        DataFormat::PromptCompletion => DocumentFormat::PromptCompletion,
        DataFormat::Chat => DocumentFormat::Chat,
    }
}

/// Returns the held-out sets of `evaluation`. The files of `paths` form a set without a name.
fn held_out_files(evaluation: EvaluationSpec, format: DataFormat, text_field: &str) -> Vec<HeldOutFiles> {
    let unnamed = evaluation.paths.map(|paths| (String::new(), paths, None, None));
    let sets = evaluation.sets.into_iter().map(|set| (set.name, set.paths, set.format, set.text_field));
    let files =
        |(name, paths, of_set, field): (String, Vec<String>, Option<DataFormat>, Option<String>)| HeldOutFiles {
            name,
            paths,
            format: document_format(of_set.unwrap_or(format)),
            text_field: field.unwrap_or_else(|| text_field.to_owned()),
        };
    unnamed.into_iter().chain(sets).map(files).collect()
}
