//! Names on the volume: the only place that spells them.
//!
//! ```text
//! fences/0007/<holder>/step-00000100/    what the living group hasn't finished
//! fences/0006.fenced/                    what an older one left
//! checkpoints/step-00000100/             committed
//! damaged/step-00000100/                 set aside, with reason.txt
//! ```

/// Committed checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
/// What was set aside.
pub const DAMAGED: &str = "damaged";
/// Fences, held and fenced off.
pub const FENCES: &str = "fences";
/// The file that describes a checkpoint.
pub const MANIFEST: &str = "manifest.json";
/// Hugging Face's map from tensor to shard.
pub const INDEX: &str = "model.safetensors.index.json";
/// All weights of a model directory that has no shards.
pub const SINGLE: &str = "model.safetensors";
/// Why a checkpoint was set aside.
pub const REASON: &str = "reason.txt";

/// A checkpoint's folder name.
pub fn step_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a checkpoint's folder name; none if it is not one of ours.
pub fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

/// The step of a folder's name in `damaged/`; none if it is not one of ours.
pub fn damaged_of(name: &str) -> Option<u64> {
    let (step, again) = name.split_once('.').unwrap_or((name, "2"));
    let is_count = again.parse::<u64>().is_ok_and(|count| count > 1 && count.to_string() == again);
    step_of(step).filter(|_| is_count)
}

/// A committed checkpoint's path.
pub fn checkpoint(step: u64) -> String {
    format!("{CHECKPOINTS}/{}", step_name(step))
}

/// Stage `rank`'s file of weights.
pub fn weights_file(rank: usize) -> String {
    format!("stage-{rank}.model.safetensors")
}

/// Whether a file of a checkpoint holds weights.
pub fn is_weights_file(name: &str) -> bool {
    name.starts_with("stage-") && name.ends_with(".model.safetensors")
}

/// Stage `rank`'s file of optimizer state.
pub fn optimizer_file(rank: usize) -> String {
    format!("stage-{rank}.optimizer.safetensors")
}

/// A held fence's path.
pub(crate) fn fence(number: u64) -> String {
    format!("{FENCES}/{number:04}")
}

/// Where a fence goes once fenced off; `again` counts up while that name is taken.
pub(crate) fn fenced(number: u64, again: u32) -> String {
    match again {
        0 => format!("{FENCES}/{number:04}.fenced"),
        again => format!("{FENCES}/{number:04}.{again}.fenced"),
    }
}

/// The number of a folder in `fences/`, and whether it is still held; none if it is not one of ours.
pub(crate) fn fence_of(name: &str) -> Option<(u64, bool)> {
    let path = format!("{FENCES}/{name}");
    let Some(rest) = name.strip_suffix(".fenced") else {
        let number = name.parse().ok()?;
        return (fence(number) == path).then_some((number, true));
    };
    let (number, again) = rest.split_once('.').unwrap_or((rest, "0"));
    let (number, again) = (number.parse().ok()?, again.parse().ok()?);
    (fenced(number, again) == path).then_some((number, false))
}

/// Whether a name from a manifest stays in its folder.
pub(crate) fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_nobodys() {
        for step in [0, 100, 99_999_999, 123_456_789_012] {
            assert_eq!(step_of(&step_name(step)), Some(step));
        }
        assert_eq!(step_name(100), "step-00000100");
        for foreign in ["step-100", "step-", "step-+0000100", "step-00000100.bak", "steps", "", "step-0000010x"] {
            assert_eq!(step_of(foreign), None, "{foreign}");
        }
        assert!(is_weights_file(&weights_file(12)) && !is_weights_file(&optimizer_file(12)));
        assert_eq!(fence_of("0007"), Some((7, true)));
        assert_eq!(fence_of("0007.fenced"), Some((7, false)));
        assert_eq!(fence_of("12345.3.fenced"), Some((12345, false)));
        for foreign in
            ["lost+found", "7", "+0007", "old.fenced", "7.fenced", "0007.0.fenced", "0007.x.fenced", "0007.bak"]
        {
            assert_eq!(fence_of(foreign), None, "{foreign}");
        }
        assert_eq!((damaged_of("step-00000100"), damaged_of("step-00000100.2")), (Some(100), Some(100)));
        for foreign in ["step-100", "step-00000100.bak", "step-00000100.1", "step-00000100.02", "step-00000100.2.3"] {
            assert_eq!(damaged_of(foreign), None, "{foreign}");
        }
        assert!(is_plain("config.json") && !is_plain("../config.json") && !is_plain("..") && !is_plain("a/b"));
    }
}
