//! Small files that are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

const PARTIAL: &str = ".partial";

/// The file that one of this name was to become, left by a process that died while it wrote; none if it is no such name.
pub fn partial_of(name: &str) -> Option<&str> {
    let (target, pid) = name.strip_suffix(PARTIAL)?.rsplit_once('.')?;
    pid.bytes().all(|byte| byte.is_ascii_digit()).then_some(target).filter(|_| !pid.is_empty())
}

/// Writes `path` aside, makes it durable and renames it into place: readers see the old content or the new, also after
/// a crash.
///
/// # Errors
/// If the folder can't be written; then the old content is still there.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}{PARTIAL}", std::process::id()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_file_tells_what_it_was_to_become() {
        assert_eq!(partial_of("state.json.17.partial"), Some("state.json"));
        for other in ["state.json", "state.json.partial", "state.json.x.partial", "state.json..partial", ".partial"] {
            assert_eq!(partial_of(other), None, "{other}");
        }
    }
}
