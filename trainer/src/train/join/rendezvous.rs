//! The rendezvous of an attempt's stages. A fence is a numbered folder on the volume. The holder of the newest fence
//! may commit the job's checkpoints. The leader publishes its address and the group's key in the folder of its fence.
//! Only the user who owns this folder can read it, so only processes of that user can join.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use stagecoach_api::contract::StageEnv;
use stagecoach_checkpoint::{
    CheckpointError, FenceOwner, Volume, last_published, newest_owner, newest_published, paths,
};
use stagecoach_group::{GroupSecret, NotFound, Rendezvous, answers};

/// The time within which a stage that has acquired a fence must publish that it leads.
pub(in crate::train) const PUBLISH_TIMEOUT: Duration = Duration::from_secs(10);

/// The prefix of the name of the file that the leader publishes in the folder of its fence.
const PREFIX: &str = "rendezvous,";

/// Returns the name of the file that the leader publishes. The fields of the name are separated by commas: the version
/// of the control protocol, a hash of the job's UID, the attempt, the rank, the address and the key. In the address,
/// `_` replaces `:`, because every file system accepts `_`.
pub(in crate::train) fn encode_endpoint(env: &StageEnv, at: &Rendezvous) -> String {
    let Rendezvous { address, protocol_version, secret, .. } = at;
    let (job, address) = (job_hash(env), address.replace(':', "_"));
    format!("{PREFIX}{protocol_version},{job},{},{},{address},{}", env.attempt, env.rank, secret.key_hex())
}

fn job_hash(env: &StageEnv) -> String {
    blake3::hash(env.job_uid.as_bytes()).to_hex()[..16].to_owned()
}

/// Returns the owner of the newest fence if the owner is a job with another name than `own` and the leader of that job
/// answers. A job with the same name and another UID does not count: a user has deleted that job and created it again,
/// so the group of the deleted job is about to end, and loses the fence.
///
/// # Errors
/// If the volume fails.
pub(in crate::train) fn living_other_job(
    volume: &dyn Volume,
    own: &FenceOwner,
) -> Result<Option<FenceOwner>, CheckpointError> {
    let Some(owner) = newest_owner(volume)?.filter(|owner| owner.job != own.job) else { return Ok(None) };
    let Some((epoch, Some(name))) = newest_published(volume, PREFIX)? else { return Ok(None) };
    Ok(Published::parse(epoch, &name).is_some_and(|published| answers(&published.at)).then_some(owner))
}

/// The leader of the last group of a stage's attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::train) struct LastLeader {
    /// The number of the newest fence.
    pub(in crate::train) epoch: u64,
    /// The rank of the fence's holder; `None` if the holder has not published its rank.
    pub(in crate::train) rank: Option<u32>,
}

/// Finds the newest group of a stage's attempt.
pub(in crate::train) struct RendezvousWatcher<'a> {
    volume: &'a dyn Volume,
    env: &'a StageEnv,
    /// The fence number of the last group of this stage, which has ended; `None` before the first group.
    over: Option<u64>,
    /// The rank that this stage succeeds as leader if the process of that rank ends.
    succeeds: Option<u32>,
    /// The fence number of the newest group when this stage began to search; `None` until it is known.
    first_epoch: Option<u64>,
    /// The newest fence whose holder has not published its address, and the time at which this stage first saw it.
    unpublished: Option<(u64, Instant)>,
}

impl<'a> RendezvousWatcher<'a> {
    /// Creates a watcher that finds a newer group than `over`, the last group of this stage. `succeeds` is the rank
    /// that this stage succeeds as leader if the process of that rank ends.
    pub(in crate::train) fn new(
        volume: &'a dyn Volume,
        env: &'a StageEnv,
        over: Option<u64>,
        succeeds: Option<u32>,
    ) -> RendezvousWatcher<'a> {
        RendezvousWatcher { volume, env, over, succeeds, first_epoch: over, unpublished: None }
    }

    /// Finds the leader of the last group of this attempt. Returns `None` if there was no group.
    ///
    /// # Errors
    /// If the leader can't be determined, or a newer attempt has begun.
    pub(in crate::train) fn last_leader(&self) -> Result<Option<LastLeader>, NotFound> {
        let Some((epoch, name)) = newest(self.volume)? else { return Ok(None) };
        let Some(name) = name else { return Ok(Some(LastLeader { epoch, rank: None })) };
        let Some(Published { job, attempt, rank, .. }) = Published::parse(epoch, &name) else { return Ok(None) };
        match attempt.cmp(&self.env.attempt) {
            _ if job != job_hash(self.env) => Ok(None),
            Ordering::Less => Ok(None),
            Ordering::Equal => Ok(Some(LastLeader { epoch, rank: Some(rank) })),
            Ordering::Greater => Err(NotFound::Superseded(format!("attempt {attempt}"))),
        }
    }

    /// Returns the rank of the leader before the newest fence was acquired, if the volume still records this leader and
    /// the leader belongs to this attempt.
    pub(in crate::train) fn leader_before(&self) -> Option<u32> {
        let (epoch, name) = last_published(self.volume, PREFIX).ok().flatten()?;
        let Published { job, attempt, rank, .. } = Published::parse(epoch, &name)?;
        (job == job_hash(self.env) && attempt == self.env.attempt).then_some(rank)
    }

    /// Whether this stage leads because the holder of fence `epoch` has not published its address in time. Only the
    /// successor of the last leader leads in this case.
    fn is_leaderless(&mut self, epoch: u64, now: Instant) -> bool {
        let is_newer = self.over.is_none_or(|over| epoch > over);
        let is_late = self.is_publication_late(epoch, now);
        self.succeeds.is_some() && is_newer && is_late
    }

    /// Whether [`PUBLISH_TIMEOUT`] has passed since this stage first saw that the holder of fence `epoch` has not
    /// published its address. The holder has then ended.
    pub(in crate::train) fn is_publication_late(&mut self, epoch: u64, now: Instant) -> bool {
        let (_, since) = *match &mut self.unpublished {
            Some(unpublished) if unpublished.0 == epoch => unpublished,
            other => other.insert((epoch, now)),
        };
        now.saturating_duration_since(since) >= PUBLISH_TIMEOUT
    }

    /// Finds the leader of the next group.
    ///
    /// # Errors
    /// If there is no leader yet. The kind of the error shows whether a leader may still appear.
    pub(in crate::train) fn find(&mut self) -> Result<Rendezvous, NotFound> {
        let RendezvousWatcher { volume, env, over, succeeds, .. } = *self;
        let folder = volume.display(paths::FENCES_DIR);
        let yet = |reason: String| NotFound::NotReady(format!("{reason} in {}", folder.display()));
        let newest = newest(volume)?;
        if let Some((epoch, None)) = newest
            && self.is_leaderless(epoch, Instant::now())
        {
            return Err(NotFound::Leaderless(epoch));
        }
        let (epoch, name) = newest
            .and_then(|(epoch, name)| Some((epoch, name?)))
            .ok_or_else(|| yet("no group has begun".to_owned()))?;
        if over.is_some_and(|over| epoch <= over) {
            return Err(yet(format!("group {epoch} is over, and no other has begun")));
        }
        let is_newer = epoch > *self.first_epoch.get_or_insert(epoch);
        let published = Published::parse(epoch, &name);
        let Published { job, attempt, rank, at } =
            published.ok_or_else(|| yet(format!("group {epoch} is of another version")))?;
        match attempt.cmp(&env.attempt) {
            // a group that existed before this stage may belong to an older job of this name
            _ if job != job_hash(env) && is_newer => Err(NotFound::Superseded("another job of this name".to_owned())),
            _ if job != job_hash(env) => Err(yet("the newest group is of another job of this name".to_owned())),
            Ordering::Less => {
                Err(yet(format!("attempt {attempt} is still the newest, and this is attempt {}", env.attempt)))
            }
            Ordering::Greater => Err(NotFound::Superseded(format!("attempt {attempt}"))),
            Ordering::Equal => Ok(Rendezvous { succeeds_leader: succeeds == Some(rank), ..at }),
        }
    }
}

/// Returns the newest fence, and the name of the file that its group has published, if there is one.
fn newest(volume: &dyn Volume) -> Result<Option<(u64, Option<String>)>, NotFound> {
    newest_published(volume, PREFIX).map_err(|error| NotFound::NotReady(error.to_string()))
}

/// The fields in the name of the file that a group publishes.
struct Published {
    /// The hash of the job, see [`job_hash`].
    job: String,
    attempt: u64,
    /// The leader's rank.
    rank: u32,
    at: Rendezvous,
}

impl Published {
    /// Parses the name that [`encode_endpoint`] wrote in fence `epoch`. Returns `None` for any other content.
    fn parse(epoch: u64, name: &str) -> Option<Published> {
        let fields: Vec<&str> = name.strip_prefix(PREFIX)?.split(',').collect();
        let [version, job, attempt, rank, address, key] = fields[..] else { return None };
        let (address, secret) = (address.replace('_', ":"), GroupSecret::from_key_hex(epoch, key)?);
        let at = Rendezvous { address, protocol_version: version.parse().ok()?, secret, succeeds_leader: false };
        Some(Published { job: job.to_owned(), attempt: attempt.parse().ok()?, rank: rank.parse().ok()?, at })
    }
}

#[cfg(test)]
mod tests {
    use stagecoach_checkpoint::{Fence, FileSystemVolume};

    use super::*;

    fn env(job_uid: &str, attempt: u64) -> StageEnv {
        let vars = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("STAGECOACH_JOB", "a"),
            ("STAGECOACH_JOB_UID", job_uid),
            ("STAGECOACH_ATTEMPT", &attempt.to_string()),
            ("MASTER_ADDR", "a"),
            ("POD_IP", "127.0.0.1"),
            ("POD_UID", "p"),
        ];
        StageEnv::from_vars(vars).unwrap()
    }

    #[test]
    fn what_is_published_is_found_by_this_attempt_until_a_newer_fence_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let volume = FileSystemVolume::new(folder.path());
        let find = |uid, attempt| RendezvousWatcher::new(&volume, &env(uid, attempt), None, None).find();
        let not_yet = |uid, attempt, expected: &str| {
            let found = find(uid, attempt);
            assert!(matches!(&found, Err(NotFound::NotReady(reason)) if reason.contains(expected)), "{found:?}");
        };
        not_yet("a", 3, "no group has begun in");
        let mut published = Vec::new();
        for (attempt, address) in [(3, "10.0.0.7:1234"), (4, "[fd00::7]:1234")] {
            let fence = Fence::acquire(&volume).unwrap();
            // the finder does not return the older group while the holder of the newest fence has published nothing
            not_yet("a", 3, "no group has begun in");
            let secret = GroupSecret::generate(fence.number()).unwrap();
            let at = Rendezvous::new(address.into(), secret);
            let name = encode_endpoint(&env("a", attempt), &at);
            assert!(name.len() < 200, "{name}");
            fence.publish(&volume, &name).unwrap();
            let found_by = |succeeds| RendezvousWatcher::new(&volume, &env("a", attempt), None, succeeds).find();
            assert_eq!((found_by(None), found_by(Some(2))), (Ok(at.clone()), Ok(at.clone())));
            assert_eq!(found_by(Some(1)), Ok(Rendezvous { succeeds_leader: true, ..at }));
            published.push((fence, name));
        }
        assert_eq!(find("a", 3), Err(NotFound::Superseded("attempt 4".to_owned())));
        let over = |epoch| RendezvousWatcher::new(&volume, &env("a", 4), Some(epoch), None).find();
        assert!(over(1).is_ok());
        assert!(matches!(over(2), Err(NotFound::NotReady(reason)) if reason.contains("group 2 is over")));
        let superseded = RendezvousWatcher::new(&volume, &env("b", 4), Some(1), None).find();
        assert_eq!(superseded, Err(NotFound::Superseded("another job of this name".to_owned())));
        not_yet("a", 5, "attempt 4 is still the newest, and this is attempt 5 in");
        not_yet("b", 4, "is of another job");
        let env = env("b", 4);
        let mut other_job = RendezvousWatcher::new(&volume, &env, None, None);
        assert!(matches!(other_job.find(), Err(NotFound::NotReady(_))));
        let (older, name) = &published[0];
        let error = older.publish(&volume, name).unwrap_err().to_string();
        assert!(error.contains("a newer group holds the right (fence 2") && !error.contains("rendezvous"), "{error}");
        Fence::acquire(&volume).unwrap().publish(&volume, "rendezvous,4,of,another,version").unwrap();
        not_yet("a", 4, "group 3 is of another version");
        // this group has begun since `other_job` searched for the first time
        Fence::acquire(&volume).unwrap().publish(&volume, &published[1].1).unwrap();
        assert_eq!(other_job.find(), Err(NotFound::Superseded("another job of this name".to_owned())));
    }

    #[test]
    fn the_last_leader_is_known_before_its_successor_publishes_its_endpoint() {
        let folder = tempfile::tempdir().unwrap();
        let volume = FileSystemVolume::new(folder.path());
        let (this, next, other) = (env("a", 3), env("a", 4), env("b", 3));
        let last_leader = |env| RendezvousWatcher::new(&volume, env, None, None).last_leader();
        assert_eq!(last_leader(&this), Ok(None));
        let publish = |env: &StageEnv| {
            let fence = Fence::acquire(&volume).unwrap();
            let secret = GroupSecret::generate(fence.number()).unwrap();
            let at = Rendezvous::new("10.0.0.7:1234".into(), secret);
            fence.publish(&volume, &encode_endpoint(env, &at)).unwrap();
        };
        publish(&this);
        assert_eq!(last_leader(&this), Ok(Some(LastLeader { epoch: 1, rank: Some(1) })));
        assert_eq!(
            (last_leader(&next), last_leader(&other)),
            (Ok(None), Ok(None)),
            "of an older attempt, of another job"
        );
        Fence::acquire(&volume).unwrap();
        assert_eq!(last_leader(&this), Ok(Some(LastLeader { epoch: 2, rank: None })));
        let before = |env| RendezvousWatcher::new(&volume, env, None, None).leader_before();
        assert_eq!((before(&this), before(&next), before(&other)), (Some(1), None, None));
        publish(&next);
        assert_eq!(last_leader(&this), Err(NotFound::Superseded("attempt 4".to_owned())));
    }

    #[test]
    fn a_successor_does_not_wait_for_ever_for_a_leader_that_has_taken_the_fence() {
        let folder = tempfile::tempdir().unwrap();
        let volume = FileSystemVolume::new(folder.path());
        let (env, now) = (env("a", 3), Instant::now());
        let late = now + PUBLISH_TIMEOUT;
        let is_leaderless = |succeeds, epochs: [u64; 2]| {
            let mut finder = RendezvousWatcher::new(&volume, &env, Some(6), succeeds);
            assert!(!finder.is_leaderless(epochs[0], now));
            finder.is_leaderless(epochs[1], late)
        };
        assert!(is_leaderless(Some(0), [7, 7]));
        assert!(!is_leaderless(None, [7, 7]), "somebody else succeeds");
        assert!(!is_leaderless(Some(0), [7, 8]), "another one has taken the next");
        assert!(!is_leaderless(Some(0), [6, 6]), "the last group");
        Fence::acquire(&volume).unwrap();
        let mut finder = RendezvousWatcher::new(&volume, &env, None, Some(0));
        assert!(matches!(finder.find(), Err(NotFound::NotReady(_))));
        finder.unpublished = now.checked_sub(PUBLISH_TIMEOUT).map(|long_ago| (1, long_ago));
        assert_eq!(finder.find(), Err(NotFound::Leaderless(1)));
    }

    #[test]
    fn no_other_user_can_read_the_key() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let volume = FileSystemVolume::new(folder.path());
        Fence::acquire(&volume).unwrap();
        let mode = std::fs::metadata(folder.path().join("fences/0001")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
