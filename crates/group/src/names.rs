//! The names of processes in messages. A name consists of the stage and the replica, because a rank does not show which
//! stage of which replica is meant.

use stagecoach_api::contract::Mesh;

/// The maximum number of stages that a message names.
const MAX_NAMED_STAGES: usize = 16;

/// Returns `stage 2`, or `stages 1, 2` (`stages 1 of replica 0, 2 of replica 0` if there are several replicas). A long
/// list has the first names and the number of omitted names.
pub(crate) fn names(mesh: Mesh, ranks: &[usize]) -> String {
    let numbers = numbers(mesh, &ranks[..ranks.len().min(MAX_NAMED_STAGES)]);
    let more = match ranks.len().saturating_sub(MAX_NAMED_STAGES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("stage{} {numbers}{more}", if ranks.len() == 1 { "" } else { "s" })
}

/// Returns a list such as `1, 2`, that is, the names of the stages without the word `stage`.
pub(crate) fn numbers(mesh: Mesh, ranks: &[usize]) -> String {
    ranks.iter().map(|&rank| mesh.number(rank as u32)).collect::<Vec<_>>().join(", ")
}

/// Returns `2`, or `2 of replica 1`, from the name of a stage.
pub(crate) fn without_noun(name: &str) -> &str {
    name.trim_start_matches("stage ")
}
