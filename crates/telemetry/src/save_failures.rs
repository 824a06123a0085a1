//! Messages about failed saves. The 1st, 10th and 100th failure and so on have a message, and so does the first
//! successful save after failures.

use super::SaveRecord;

/// The consecutive failed saves.
#[derive(Clone, Debug, Default)]
pub(super) struct SaveFailures {
    count: u64,
    first_step: u64,
}

impl SaveFailures {
    /// Records a failed save. Returns a message for the first failure, the 10th, the 100th and so on.
    pub(super) fn failed(&mut self, save: &SaveRecord) -> Option<String> {
        self.count += 1;
        if self.count == 1 {
            self.first_step = save.step;
            return Some(format_save_failure(save));
        }
        let (step, why) = (save.step, save.error.as_deref().unwrap_or_default());
        let is_described = 10_u64.pow(self.count.ilog10()) == self.count;
        let Self { count, first_step } = *self;
        is_described.then(|| format!("{count} checkpoints in a row failed, of steps {first_step} to {step}: {why}"))
    }

    /// Records a successful save. Returns a message with the number of consecutive failures before this save, if there
    /// were any.
    pub(super) fn saved(&mut self) -> Option<String> {
        match std::mem::take(self).count {
            0 => None,
            1 => Some("the previous save failed".to_owned()),
            count => Some(format!("the {count} saves before it failed")),
        }
    }
}

/// Returns one sentence about a failed save.
pub(crate) fn format_save_failure(save: &SaveRecord) -> String {
    let why = save.error.as_deref().unwrap_or("no reason was reported");
    format!(
        "the checkpoint of step {} failed: {why}; older checkpoints are kept, and the next checkpoint is saved on \
         schedule",
        save.step
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_reported_once_then_counted_then_over() {
        let mut failures = SaveFailures::default();
        let save = |step| SaveRecord { step, error: Some("no space left".into()), ..SaveRecord::default() };
        assert_eq!(failures.saved(), None);
        let described: Vec<String> = (2..=1001).filter_map(|step| failures.failed(&save(step))).collect();
        assert_eq!(described.len(), 4, "{described:?}");
        assert!(described[0].starts_with("the checkpoint of step 2 failed: no space left"), "{described:?}");
        assert_eq!(described[2], "100 checkpoints in a row failed, of steps 2 to 101: no space left");
        assert_eq!(failures.saved().unwrap(), "the 1000 saves before it failed");
        assert_eq!(failures.saved(), None);
        assert!(failures.failed(&save(1004)).unwrap().starts_with("the checkpoint of step 1004 failed"));
        assert_eq!(failures.saved().unwrap(), "the previous save failed");
    }
}
