//! Atomic writes of small files.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

const PARTIAL_SUFFIX: &str = ".partial";

/// Target of a temporary file, which a process that was killed during a write leaves; `None` if `name` is not one.
pub fn partial_file_target(name: &str) -> Option<&str> {
    let (target, pid) = name.strip_suffix(PARTIAL_SUFFIX)?.rsplit_once('.')?;
    pid.bytes().all(|byte| byte.is_ascii_digit()).then_some(target).filter(|_| !pid.is_empty())
}

/// Writes to a temporary file, syncs it and renames it to `path`: readers see the old content or the new, also after a
/// crash.
///
/// # Errors
/// If the folder can't be written; the old content is then unchanged.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}{PARTIAL_SUFFIX}", std::process::id()));
    let partial = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&partial);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_of_a_partial_file() {
        assert_eq!(partial_file_target("state.json.17.partial"), Some("state.json"));
        for other in ["state.json", "state.json.partial", "state.json.x.partial", "state.json..partial", ".partial"] {
            assert_eq!(partial_file_target(other), None, "{other}");
        }
    }
}
