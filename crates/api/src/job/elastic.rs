//! `spec.elastic`: the range of replicas of a job that adapts to the capacity of the cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::default_number;
use crate::mesh::MAX_STAGES;

/// The range of the number of replicas. The job trains with as many replicas as the cluster can run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ElasticSpec {
    /// The smallest number of replicas with which the job trains.
    #[schemars(range(min = 1, max = MAX_STAGES), extend("x-expected" = "a job has 1 to 256 replicas of its pipeline"))]
    pub min_data_parallel: u32,
    /// The largest number of replicas with which the job trains. It must not exceed the number of gradient blocks.
    #[schemars(range(min = 1, max = MAX_STAGES), extend("x-expected" = "a job has 1 to 256 replicas of its pipeline"))]
    pub max_data_parallel: u32,
    /// The time, in seconds, for which all pods of an additional replica must be ready before the job trains with it.
    /// The delay prevents a node that repeatedly joins and leaves from interrupting the other replicas each time. If 0,
    /// the job trains with the replica after the next step. The job leaves out a lost replica at once.
    #[serde(default = "default_number::<60>")]
    pub stabilization_window_seconds: u32,
}
