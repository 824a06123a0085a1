//! Defines the names of all files and folders on the volume. A group is the set of processes of one attempt to run the
//! job. The newest group holds the fence, the right to change checkpoints ([`crate::Fence`]). `<holder>` is the random
//! name of a group.
//!
//! ```text
//! fences/0007/<holder>/step-00000100/    unfinished work of the current group
//! fences/0006.fenced/<holder>.0.retired/ files of an older group
//! checkpoints/step-00000100/             committed
//! checkpoints/.probe-<holder>/           exists for a moment when a group begins
//! damaged/step-00000100/                 set aside, with reason.txt
//! ```

/// The folder of committed checkpoints.
pub const CHECKPOINTS_DIR: &str = "checkpoints";
/// The folder of damaged checkpoints.
pub const DAMAGED_DIR: &str = "damaged";
/// The folder of all fences: the held fence, and the older fences that newer groups have fenced off.
pub const FENCES_DIR: &str = "fences";
/// The file that describes a checkpoint.
pub const MANIFEST_FILE: &str = "manifest.json";
/// The index of a Hugging Face model directory, which names the shard of each tensor.
pub const WEIGHTS_INDEX_FILE: &str = "model.safetensors.index.json";
/// The file of weights in a model directory without shards.
pub(crate) const SINGLE_WEIGHTS_FILE: &str = "model.safetensors";
/// PEFT's configuration file of an adapter. The weights in a directory with this file are changes to the weights of a
/// base model.
pub const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";
/// PEFT's file of an adapter's weights.
pub(crate) const ADAPTER_WEIGHTS_FILE: &str = "adapter_model.safetensors";
/// The file with the reason why a checkpoint was moved to `damaged/`.
pub const REASON_FILE: &str = "reason.txt";

/// The prefix of the folder names that [`probe_path`] returns.
const PROBE: &str = ".probe-";

/// The suffix of the folder names that [`retired_path`] returns.
const RETIRED: &str = ".retired";

/// Returns the name of a checkpoint's folder.
pub fn step_dir_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// Returns the step in the name of a checkpoint's folder, or `None` if the name has another form.
pub fn parse_step_dir_name(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_dir_name(step) == name).then_some(step)
}

/// Returns the step in the name of a folder in `damaged/`, or `None` if the name has another form.
pub(crate) fn parse_damaged_dir_name(name: &str) -> Option<u64> {
    let (step, again) = name.split_once('.').unwrap_or((name, "2"));
    let is_count = again.parse::<u64>().is_ok_and(|count| count > 1 && count.to_string() == again);
    parse_step_dir_name(step).filter(|_| is_count)
}

/// Returns the path of a committed checkpoint.
pub fn checkpoint_path(step: u64) -> String {
    format!("{CHECKPOINTS_DIR}/{}", step_dir_name(step))
}

/// Returns the name of the file with stage `rank`'s weights.
pub fn weights_file(rank: usize) -> String {
    format!("stage-{rank}.model.safetensors")
}

/// Whether a file of a checkpoint holds weights.
pub fn is_weights_file(name: &str) -> bool {
    name.starts_with("stage-") && name.ends_with(".model.safetensors")
}

/// Returns the name of the file with stage `rank`'s optimizer state.
pub fn optimizer_file(rank: usize) -> String {
    format!("stage-{rank}.optimizer.safetensors")
}

/// Returns the path of a held fence.
pub(crate) fn fence_path(number: u64) -> String {
    format!("{FENCES_DIR}/{number:04}")
}

/// Returns the path to which a newer group renames an older fence. The caller increments `again` until the name is
/// unused.
pub(crate) fn fenced_path(number: u64, again: u32) -> String {
    match again {
        0 => format!("{FENCES_DIR}/{number:04}.fenced"),
        again => format!("{FENCES_DIR}/{number:04}.{again}.fenced"),
    }
}

/// Returns the path to which the contents of a fenced-off holder's folder move. The caller increments `again` until the
/// name is unused.
pub(crate) fn retired_path(holder: &str, again: u32) -> String {
    format!("{holder}.{again}{RETIRED}")
}

/// Whether a folder in a fence has a name that [`retired_path`] returns.
pub(crate) fn is_retired(name: &str) -> bool {
    name.ends_with(RETIRED)
}

/// Returns the path in `checkpoints/` to which a holder renames a folder to test whether the volume can rename folders.
pub(crate) fn probe_path(holder: &str) -> String {
    format!("{CHECKPOINTS_DIR}/{PROBE}{holder}")
}

/// Returns the holder in the name of a [`probe_path`] folder, or `None` if the name has another form.
pub(crate) fn parse_probe_dir_name(name: &str) -> Option<&str> {
    name.strip_prefix(PROBE)
}

/// Returns the number in the name of a folder in `fences/`, and whether that fence is held. Returns `None` if the name
/// has another form.
pub(crate) fn parse_fence_dir_name(name: &str) -> Option<(u64, bool)> {
    let path = format!("{FENCES_DIR}/{name}");
    let Some(rest) = name.strip_suffix(".fenced") else {
        let number = name.parse().ok()?;
        return (fence_path(number) == path).then_some((number, true));
    };
    let (number, again) = rest.split_once('.').unwrap_or((rest, "0"));
    let (number, again) = (number.parse().ok()?, again.parse().ok()?);
    (fenced_path(number, again) == path).then_some((number, false))
}

/// Whether `name` is a file name without a folder. Names in manifests and indexes must not lead to another folder.
pub(crate) fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_other_names_are_rejected() {
        for step in [0, 100, 99_999_999, 123_456_789_012] {
            assert_eq!(parse_step_dir_name(&step_dir_name(step)), Some(step));
        }
        assert_eq!(step_dir_name(100), "step-00000100");
        for foreign in ["step-100", "step-", "step-+0000100", "step-00000100.bak", "steps", "", "step-0000010x"] {
            assert_eq!(parse_step_dir_name(foreign), None, "{foreign}");
        }
        assert!(is_weights_file(&weights_file(12)) && !is_weights_file(&optimizer_file(12)));
        assert_eq!(parse_fence_dir_name("0007"), Some((7, true)));
        assert_eq!(parse_fence_dir_name("0007.fenced"), Some((7, false)));
        assert_eq!(parse_fence_dir_name("12345.3.fenced"), Some((12345, false)));
        for foreign in
            ["lost+found", "7", "+0007", "old.fenced", "7.fenced", "0007.0.fenced", "0007.x.fenced", "0007.bak"]
        {
            assert_eq!(parse_fence_dir_name(foreign), None, "{foreign}");
        }
        assert_eq!(
            (parse_damaged_dir_name("step-00000100"), parse_damaged_dir_name("step-00000100.2")),
            (Some(100), Some(100))
        );
        for foreign in ["step-100", "step-00000100.bak", "step-00000100.1", "step-00000100.02", "step-00000100.2.3"] {
            assert_eq!(parse_damaged_dir_name(foreign), None, "{foreign}");
        }
        assert!(
            is_plain_file_name("config.json")
                && !is_plain_file_name("../config.json")
                && !is_plain_file_name("..")
                && !is_plain_file_name("a/b")
        );
    }
}
