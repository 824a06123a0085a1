//! Small files that are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes `path` aside, makes it durable and renames it into place: readers see the old content or the new, also after
/// a crash.
///
/// # Errors
/// If the folder can't be written; then the old content is still there.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    let aside = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&aside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&aside, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&aside);
    })
}
