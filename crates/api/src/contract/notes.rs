//! Sentences for people that programs read too. Their words are defined only here, so that writers and readers agree.

/// The start of stage 0's log line about the live page, followed by the page's address. Nothing else contains the
/// page's token.
pub const PAGE_NOTE: &str = "the live page";

/// The operator's event about a spare that has become a stage.
pub const SPARE_TOOK_PLACE: &str = "SpareTookPlace";

/// The message of that event. `stage` has the form of [`super::Mesh::name`].
pub fn promotion_note(spare: u32, pod: &str, stage: &str) -> String {
    format!("spare {spare} (pod {pod}){}", took_place(stage))
}

/// The spare that took the place of `stage`, according to such a message.
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
