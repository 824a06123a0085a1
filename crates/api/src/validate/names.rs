//! Names that become names of pods, services and folders.

use super::Problems;
use crate::contract::Mesh;

/// Longest hostname.
const HOSTNAME: usize = 63;
/// Digits of an attempt's number that a hostname leaves room for.
const ATTEMPT_DIGITS: usize = 6;

/// The job's name is a DNS-1035 label (its Service needs that), and pod `<job>-<stage>-<attempt>`, or `<job>-<replica>-<stage>-<attempt>`, fits into a hostname.
pub(super) fn check(name: &str, mesh: Mesh, problems: &mut Problems) {
    const FIELD: &str = "metadata.name";
    problems.require(is_dns_1035(name), FIELD, || {
        format!(
            "\"{}\" is not a DNS-1035 label: use lower-case letters, digits and `-`, begin with a letter, end with a letter or digit",
            name.escape_debug()
        )
    });
    let digits = |count: u32| count.saturating_sub(1).to_string().len();
    let (replica, place) = match mesh.if_replicated() {
        None => (0, "<stage>"),
        Some(mesh) => (1 + digits(mesh.data_parallel), "<replica>-<stage>"),
    };
    let longest = HOSTNAME - (2 + digits(mesh.stages) + ATTEMPT_DIGITS + replica);
    problems.require(name.len() <= longest, FIELD, || {
        format!(
            "has {} characters; with {mesh} at most {longest} fit, since pods are called <name>-{place}-<attempt> and a hostname has at most {HOSTNAME}",
            name.len()
        )
    });
}

fn is_dns_1035(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(inner) && !name.ends_with('-')
}

/// A path on the volume: relative, inside it, not empty.
pub(super) fn volume_path(path: &str, field: &str, problems: &mut Problems) {
    problems.require(!path.is_empty(), field, || "is empty: give a path relative to the volume's root".into());
    problems.require(!path.starts_with('/'), field, || {
        format!("\"{}\" is absolute: give a path relative to the volume's root", path.escape_debug())
    });
    problems.require(!path.split('/').any(|part| part == ".."), field, || {
        format!("\"{}\" leaves the volume by `..`: give a path inside it", path.escape_debug())
    });
    problems.require(!path.contains('\0'), field, || "holds a NUL character, which no path can".into());
}
