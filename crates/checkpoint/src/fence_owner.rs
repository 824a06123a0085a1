//! The owner of a fence. The name of the holder's folder contains the job's name and UID, so that the owner is known as
//! soon as the fence is held. A fence of an earlier version or of a command has no owner.

/// Maximum number of characters of a UID in a folder's name, so that the name also has room for the job's name.
const MAX_UID: usize = 64;

/// The job whose group holds a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FenceOwner {
    /// The job's name.
    pub job: String,
    /// The job's UID.
    pub uid: String,
}

impl FenceOwner {
    /// A job with a name and a UID. Characters that may have a meaning in a path become `_`.
    pub fn new(job: &str, uid: &str) -> FenceOwner {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        FenceOwner { job: job.chars().map(plain).collect(), uid: uid.chars().map(plain).take(MAX_UID).collect() }
    }

    /// A new name for a holder's folder of this owner.
    pub(crate) fn new_holder(&self) -> String {
        format!("{},{},{}", stagecoach_files::random_hex(), self.job, self.uid)
    }

    /// The owner in a holder's name; `None` if the name has no owner.
    pub(crate) fn of_holder(name: &str) -> Option<FenceOwner> {
        match name.split(',').collect::<Vec<_>>()[..] {
            [_, job, uid] => Some(FenceOwner::new(job, uid)),
            _ => None,
        }
    }
}

impl std::fmt::Display for FenceOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the job {} (UID {})", self.job, self.uid)
    }
}
