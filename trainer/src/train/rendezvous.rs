//! Where the stages of an attempt meet. Stage 0 publishes its address and the group's key in its fence: who may read the job's
//! folder may join, and nobody else.

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::StageEnv;
use stagecoach_checkpoint::{Fence, Volume, newest_published, paths};
use stagecoach_group::{GroupSecret, Rendezvous};

use crate::fatal::Fatal;

/// Its name in the fence's folder.
const FILE: &str = "rendezvous.json";

/// More bytes than it ever has.
const MAX_FILE_BYTES: usize = 16 << 10;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RendezvousFile {
    job_uid: String,
    attempt: u64,
    address: String,
    protocol_version: u32,
    key: String,
}

/// Publishes where stage 0 of `env`'s attempt is.
///
/// # Errors
/// If a newer group has begun, or the volume fails.
pub(super) fn publish(volume: &dyn Volume, fence: &Fence, env: &StageEnv, at: &Rendezvous) -> Result<(), Fatal> {
    let file = RendezvousFile {
        job_uid: env.job_uid.clone(),
        attempt: env.attempt,
        address: at.address.clone(),
        protocol_version: at.protocol_version,
        key: at.secret.key_hex(),
    };
    let bytes = serde_json::to_vec(&file).map_err(|e| Fatal::invalid(format!("could not encode {FILE}: {e}")))?;
    Ok(fence.publish(volume, FILE, &bytes)?)
}

/// Finds stage 0 of `env`'s attempt.
///
/// # Errors
/// Why it is not there yet.
pub(super) fn find(volume: &dyn Volume, env: &StageEnv) -> Result<Rendezvous, String> {
    let folder = volume.display(paths::FENCES_DIR);
    let folder = folder.display();
    let (epoch, bytes) = newest_published(volume, FILE, MAX_FILE_BYTES)
        .map_err(|e| format!("could not read {FILE} in {folder}: {e}"))?
        .ok_or_else(|| format!("no group has begun in {folder}"))?;
    let file: RendezvousFile = serde_json::from_slice(&bytes)
        .map_err(|e| format!("{FILE} of group {epoch} in {folder} can't be read: {e}"))?;
    let RendezvousFile { job_uid, attempt, address, protocol_version, key } = file;
    if job_uid != env.job_uid {
        return Err(format!("the newest group in {folder} belongs to job {job_uid}, this stage to {}", env.job_uid));
    }
    // a newer attempt says so itself
    if attempt < env.attempt {
        return Err(format!(
            "attempt {attempt} is still the newest in {folder}, and this stage belongs to {}",
            env.attempt
        ));
    }
    let secret = GroupSecret::from_key_hex(epoch, &key)
        .ok_or_else(|| format!("{FILE} of group {epoch} in {folder} has no key"))?;
    Ok(Rendezvous { address, protocol_version, secret })
}
