//! Defines the owner of a fence: the job whose group holds the fence, which is the right to change the checkpoints. The
//! name of the holder's folder contains the job's name and UID, so that another group can read the owner as soon as the
//! fence is held. A fence has no owner if an earlier version of Stagecoach, or a command instead of a job, acquired it.

/// The maximum number of characters of a UID in a folder's name. The limit leaves room for the job's name.
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
    /// Returns the owner with a job's name and UID. Every character other than an ASCII letter, a digit and `-` becomes
    /// `_`.
    pub fn new(job: &str, uid: &str) -> FenceOwner {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        FenceOwner { job: job.chars().map(plain).collect(), uid: uid.chars().map(plain).take(MAX_UID).collect() }
    }

    /// Returns a new name for a holder's folder of this job.
    pub(crate) fn new_holder(&self) -> String {
        format!("{},{},{}", stagecoach_files::random_hex(), self.job, self.uid)
    }

    /// Parses the owner from the name of a holder's folder. Returns `None` if the name contains no owner.
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
