//! `spec.elastic`: a number of replicas that follows the pods that the cluster can run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::default_number;
use crate::mesh::MAX_STAGES;

/// The range of the number of replicas. The job trains with as many replicas as the cluster can run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ElasticSpec {
    /// The fewest replicas with which the job trains.
    #[schemars(range(min = 1, max = MAX_STAGES), extend("x-expected" = "a job has 1 to 256 replicas of its pipeline"))]
    pub min_data_parallel: u32,
    /// The most replicas with which the job trains, at most as many as gradient blocks.
    #[schemars(range(min = 1, max = MAX_STAGES), extend("x-expected" = "a job has 1 to 256 replicas of its pipeline"))]
    pub max_data_parallel: u32,
    /// Seconds for which all pods of another replica must be ready before the job trains with it, so that a node that
    /// comes and goes does not interrupt the other replicas each time. With 0, the job trains with it after the next
    /// step. A lost replica is left out at once.
    #[serde(default = "default_number::<60>")]
    pub stabilization_window_seconds: u32,
}
