//! Log lines and event messages that both people and programs read. Their words are defined only here, so that the code
//! that writes them and the code that parses them agree.

/// The start of the log line in which the leader prints the address of the live page. Only this line contains the
/// page's access token.
pub const PAGE_NOTE: &str = "the live page";

/// The reason of the event that the operator emits when a spare becomes a stage.
pub const SPARE_TOOK_PLACE: &str = "SpareTookPlace";

/// Returns the message of the event [`SPARE_TOOK_PLACE`]. `stage` has the form of [`super::Mesh::name`].
pub fn promotion_note(spare: u32, pod: &str, stage: &str) -> String {
    format!("spare {spare} (pod {pod}){}", took_place(stage))
}

/// Returns the number of the spare that replaced `stage`, if `note` is a message of [`promotion_note`] about this
/// stage.
pub fn promoted_spare(note: &str, stage: &str) -> Option<u32> {
    let (spare, _) = note.strip_suffix(&took_place(stage))?.strip_prefix("spare ")?.split_once(' ')?;
    spare.parse().ok()
}

fn took_place(stage: &str) -> String {
    format!(" took the place of {stage}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spare_is_read_from_the_note() {
        let note = promotion_note(2, "small-spare-2-1", "stage 11");
        assert_eq!(note, "spare 2 (pod small-spare-2-1) took the place of stage 11");
        assert_eq!(promoted_spare("stage 11 starts again", "stage 11"), None);
        assert_eq!(["stage 11", "stage 1"].map(|stage| promoted_spare(&note, stage)), [Some(2), None]);
    }
}
