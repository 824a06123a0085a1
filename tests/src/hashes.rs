//! The hashes of a job's results, which are the same for every number of stages, schedule and restart.

use std::path::Path;

use serde_json::Value;

/// The hashes in `result.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hashes {
    /// One hash over the losses of all steps.
    pub losses: String,
    /// One hash over all held-out losses.
    pub evaluation_losses: String,
    /// One hash over all weights.
    pub weights: String,
    /// The last hash of the hash chain over all steps. Empty if the result has none.
    pub receipt: String,
}

impl Hashes {
    /// Returns the hashes in `result.json` of a job's folder.
    ///
    /// # Panics
    /// If the file or a hash is missing.
    pub fn read(folder: &Path) -> Hashes {
        Hashes::of(&serde_json::from_slice(&std::fs::read(folder.join("result.json")).unwrap()).unwrap())
    }

    /// Returns the hashes of a result.
    ///
    /// # Panics
    /// If a hash is missing.
    pub fn of(result: &Value) -> Hashes {
        let field = |name: &str| result[name].as_str().unwrap_or_else(|| panic!("no {name} in {result}")).to_owned();
        Hashes {
            losses: field("lossesHash"),
            evaluation_losses: field("evaluationLossesHash"),
            weights: field("weightsHash"),
            receipt: result["receipt"]["head"].as_str().unwrap_or_default().to_owned(),
        }
    }
}
