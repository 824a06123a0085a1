//! `spec.data.streaming` and `spec.data.cache`: training while the corpus is read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spec::BuiltIn;
use super::{DataSpec, OnExhausted, TrainingLength, default_number};

/// The choice to stream, and the size of windows and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamingSpec {
    /// Whether the job trains while the corpus is read.
    #[serde(default)]
    pub mode: StreamingMode,
    /// The number of sequences in a window. The job shuffles the sequences within each window, and training begins when
    /// the first window is complete.
    #[serde(default = "default_number::<4096>")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub window_sequences: u32,
    /// The approximate size of a block, in bytes. A block is a range of a Parquet file that the job reads at once. A
    /// file of another format is one block.
    #[serde(default = "block_bytes")]
    #[schemars(range(min = 4096, max = 1_099_511_627_776_u64))]
    pub block_bytes: u64,
}

string_enum! {
    /// Whether a job trains while the corpus is read.
    #[derive(Default)]
    pub enum StreamingMode {
        /// The job streams if a path of `data.paths` or `data.sources` is a URI, `training.steps` gives the job's
        /// length, and no source has `onExhausted: Stop`.
        #[default]
        Auto = "Auto",
        /// The job streams all files, including files of the volume.
        Always = "Always",
        /// The job tokenises the whole corpus before the first step.
        Never = "Never",
    }
}

/// The cache for the tokens of a streamed corpus, on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CacheSpec {
    /// The maximum total size, in bytes, of the windows that stay on the volume. The job deletes the oldest windows
    /// first, but never a window in use.
    #[serde(default = "max_bytes")]
    #[schemars(range(min = 1))]
    pub max_bytes: u64,
}

impl Default for StreamingSpec {
    fn default() -> Self {
        Self { mode: StreamingMode::default(), window_sequences: default_number::<4096>(), block_bytes: block_bytes() }
    }
}

impl Default for CacheSpec {
    fn default() -> Self {
        Self { max_bytes: max_bytes() }
    }
}

impl DataSpec {
    /// Returns `data.streaming`, or its defaults if it is absent.
    pub fn streaming_or_default(&self) -> StreamingSpec {
        self.streaming.unwrap_or_default()
    }

    /// Returns `data.cache.maxBytes`, or its default.
    pub fn cache_max_bytes(&self) -> u64 {
        self.cache.unwrap_or_default().max_bytes
    }
}

impl BuiltIn<'_> {
    /// Whether the job trains while the corpus is read.
    pub fn streams(&self) -> bool {
        match self.data.streaming_or_default().mode {
            StreamingMode::Always => true,
            StreamingMode::Never => false,
            StreamingMode::Auto => {
                let sources = self.data.all_sources();
                let is_remote = sources.iter().flat_map(|source| &source.paths).any(|path| path.contains("://"));
                let stops = sources.iter().any(|source| source.on_exhausted == OnExhausted::Stop);
                is_remote && !stops && matches!(self.training.length(), Some(TrainingLength::Steps(_)))
            }
        }
    }
}

fn block_bytes() -> u64 {
    16 << 20
}

fn max_bytes() -> u64 {
    1 << 30
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = include_str!("../../tests/jobs/minimal.yaml");
    const REMOTE: (&str, &str) = ("data.paths", "[a.txt, hf://datasets/a/b/c.parquet]");

    fn spec(set: &[(&str, &str)]) -> crate::PipelineJobSpec {
        let set: Vec<_> = set.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
        crate::parse_with(MINIMAL, "minimal.yaml", &set).unwrap().spec
    }

    fn streams(set: &[(&str, &str)]) -> bool {
        spec(set).built_in().unwrap().streams()
    }

    #[test]
    fn a_job_streams_if_a_path_is_a_uri() {
        assert!(!streams(&[]));
        assert!(streams(&[REMOTE]));
        assert!(streams(&[REMOTE, ("data.streaming", "{}")]));
        assert!(streams(&[("data.paths", "[s3://bucket/a.txt]")]));
        // a URI among the held-out files does not matter, because the job always reads these files as a whole
        assert!(!streams(&[("data.evaluation", "{paths: [s3://bucket/a.txt]}")]));
    }

    #[test]
    fn a_job_streams_if_a_path_of_a_source_is_a_uri_and_no_source_stops() {
        let sources = |more: &str| {
            let sources = format!("[{{name: a, paths: [a.txt]{more}}}, {{name: b, paths: ['gs://bucket/*']}}]");
            streams(&[("data.paths", "null"), ("data.sources", &sources)])
        };
        assert!(sources(""));
        assert!(sources(", onExhausted: Repeat"));
        assert!(!sources(", onExhausted: Stop"));
        assert!(!streams(&[("data.paths", "null"), ("data.sources", "[{name: a, paths: [a.txt]}]")]));
    }

    #[test]
    fn a_job_with_epochs_does_not_stream() {
        assert!(!streams(&[REMOTE, ("training.steps", "null"), ("training.epochs", "1")]));
    }

    #[test]
    fn a_mode_decides_alone() {
        assert!(streams(&[("data.streaming", "{mode: Always}")]));
        assert!(!streams(&[REMOTE, ("data.streaming", "{mode: Never}")]));
    }

    #[test]
    fn what_is_absent_has_its_default() {
        let default = StreamingSpec { mode: StreamingMode::Auto, window_sequences: 4096, block_bytes: 16_777_216 };
        let values = |set: &[(&str, &str)]| {
            let data = spec(set).data.unwrap();
            (data.streaming_or_default(), data.cache_max_bytes())
        };
        assert_eq!(values(&[]), (default, 1_073_741_824));
        assert_eq!(values(&[("data.streaming", "{}"), ("data.cache", "{}")]), (default, 1_073_741_824));
        let given = StreamingSpec { mode: StreamingMode::Never, window_sequences: 7, block_bytes: 8192 };
        let streaming = ("data.streaming", "{mode: Never, windowSequences: 7, blockBytes: 8192}");
        assert_eq!(values(&[streaming, ("data.cache", "{maxBytes: 9}")]), (given, 9));
    }
}
