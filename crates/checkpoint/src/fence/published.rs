//! Finding the name that the newest group has published.

use super::{fences, list_or_none};
use crate::error::CheckpointError;
use crate::paths::{self, FENCES_DIR};
use crate::volume::{DirEntry, Volume};

/// The number of the newest held fence, and the name with `prefix` that its group has published, if any; `None` if no
/// fence is held. Every call lists the folders again, so that network file systems ask their server.
///
/// # Errors
/// If the volume fails.
pub fn newest_published(volume: &dyn Volume, prefix: &str) -> Result<Option<(u64, Option<String>)>, CheckpointError> {
    let Some((newest, _)) = fences(volume)?.into_iter().filter(|(_, held)| *held).max() else { return Ok(None) };
    Ok(Some((newest, published_in(volume, &paths::fence_path(newest), prefix)?)))
}

/// The newest fence whose group has published a name with `prefix`: its number and that name. A fenced-off fence counts
/// as well, as long as its folder exists.
///
/// # Errors
/// If the volume fails.
pub fn last_published(volume: &dyn Volume, prefix: &str) -> Result<Option<(u64, String)>, CheckpointError> {
    let number = |entry: DirEntry| Some((paths::parse_fence_dir_name(&entry.name)?.0, entry.name));
    let mut folders: Vec<(u64, String)> = list_or_none(volume, FENCES_DIR)?.into_iter().filter_map(number).collect();
    folders.sort_unstable();
    for (number, folder) in folders.into_iter().rev() {
        if let Some(name) = published_in(volume, &format!("{FENCES_DIR}/{folder}"), prefix)? {
            return Ok(Some((number, name)));
        }
    }
    Ok(None)
}

/// The name with `prefix` in the folder of a fence; `None` if the fence has since been fenced off or removed.
fn published_in(volume: &dyn Volume, folder: &str, prefix: &str) -> Result<Option<String>, CheckpointError> {
    let mut names = list_or_none(volume, folder)?.into_iter().map(|entry| entry.name);
    Ok(names.find(|name| name.starts_with(prefix)))
}
