//! The mounts below the node's folder: volumes and file systems of pods, and mounts of tests.

use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::UnmountFlags;

/// Unmounts all file systems below `folder`.
///
/// # Errors
/// If a mount remains. The caller must then not delete the folder, since the deletion would include the mount's
/// content.
pub(crate) fn unmount_below(folder: &Path) -> Result<()> {
    // unmount the newest mount first, since it may be on top of an older one; read the list again after each call,
    // since the kernel may have copied a mount
    loop {
        let mounts = below(folder, &std::fs::read("/proc/self/mountinfo")?);
        let Some(newest) = mounts.last() else { return Ok(()) };
        unmount(newest)?;
    }
}

/// Unmounts the file system at `path`.
///
/// # Errors
/// If no file system is mounted there.
pub(crate) fn unmount(path: &Path) -> Result<()> {
    let call = |flags| rustix::mount::unmount(path, flags);
    // if the mount is in use, the call detaches it, and the kernel removes it after its last use
    let unmounted = call(UnmountFlags::empty()).or_else(|_| call(UnmountFlags::DETACH));
    unmounted.with_context(|| format!("unmounting {}", path.display()))
}

/// Returns the mount points below `folder`, in the order in which they were mounted.
fn below(folder: &Path, mountinfo: &[u8]) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescape);
    points.filter(|point| point.starts_with(folder) && point != folder).collect()
}

/// Decodes a path of the kernel, which writes a space and some other characters as a backslash and three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((first, more)) = rest.split_first() {
        let octal = more.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        let escaped = octal.filter(|_| *first == b'\\');
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &more[3..] } else { more };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_below_the_folder_are_found() {
        let table = "\
21 1 0:19 / / rw - ext4 /dev/vda rw
30 21 0:40 / /data/node/a rw - tmpfs tmpfs rw
31 21 0:41 / /data/node-2/b rw - tmpfs tmpfs rw
32 30 0:42 / /data/node/a/with\\040space rw - tmpfs tmpfs rw
33 21 0:43 / /data/node rw - tmpfs tmpfs rw
";
        let found = below(Path::new("/data/node"), table.as_bytes());
        assert_eq!(found, [Path::new("/data/node/a"), Path::new("/data/node/a/with space")]);
    }
}
