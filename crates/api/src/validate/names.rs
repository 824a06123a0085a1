//! Checks the job's name, the job's folder, and paths on the volume. The names of pods, Services and folders are made
//! from the job's name.

use super::Problems;
use crate::job::{DATA_SET, PipelineJob, PipelineJobSpec, SOURCE_SCHEMES, TOKEN_CACHE, list_of_schemes};

/// The largest length of a hostname.
const HOSTNAME: usize = 63;
/// The number of digits of an attempt's number for which a hostname must have room.
const ATTEMPT_DIGITS: usize = 6;

/// Checks that the job's name is a DNS-1035 label, as its Service needs, and that the names of its pods fit into a
/// hostname: `<job>-<stage>-<attempt>`, `<job>-<replica>-<stage>-<attempt>` and `<job>-spare-<number>-<attempt>`.
pub(super) fn check(name: &str, spec: &PipelineJobSpec, problems: &mut Problems) {
    const FIELD: &str = "metadata.name";
    problems.require(is_dns_1035(name), FIELD, || {
        format!(
            "\"{}\" is not a DNS-1035 label: use lower-case letters, digits and `-`, begin with a letter, end with a \
             letter or digit",
            name.escape_debug()
        )
    });
    let digits = |count: u32| count.saturating_sub(1).to_string().len();
    let mesh = spec.mesh();
    let stage = match mesh.if_replicated() {
        None => (digits(mesh.stages), "<stage>", ""),
        Some(mesh) => (digits(mesh.data_parallel) + 1 + digits(mesh.stages), "<replica>-<stage>", ""),
    };
    let spare = (spec.spares > 0).then(|| ("spare-".len() + digits(spec.spares), "spare-<number>", " and spares"));
    let (characters, place, spares) = spare.filter(|spare| spare.0 > stage.0).unwrap_or(stage);
    let longest = HOSTNAME - (2 + characters + ATTEMPT_DIGITS);
    problems.require(name.len() <= longest, FIELD, || {
        format!(
            "has {} characters; with {mesh}{spares} at most {longest} fit, since pods are called \
             <name>-{place}-<attempt> and a hostname has at most {HOSTNAME}",
            name.len()
        )
    });
}

/// Checks that the folder of a job with the built-in trainer is not the volume's root, and overlaps with neither the
/// token cache nor the corpus.
pub(super) fn check_folder(job: &PipelineJob, problems: &mut Problems) {
    let Some(data) = &job.spec.data else { return };
    let (path, folder) = (job.folder(), parts(job.folder()));
    if folder.contains(&"..") {
        return; // another check reports such a path
    }
    let field = if job.spec.storage.path.is_some() { "spec.storage.path" } else { "metadata.name" };
    let path = path.escape_debug();
    problems.require(!folder.is_empty() || job.folder().is_empty(), field, || {
        format!("\"{path}\" is the volume's root: give the job a folder of its own, such as \"{}\"", job.metadata.name)
    });
    problems.require(folder.first() != Some(&TOKEN_CACHE), field, || {
        format!(
            "\"{path}\" is the token cache's, which all jobs share: give the job another folder by spec.storage.path"
        )
    });
    for (at, pattern) in data.patterns().into_iter().filter(|(_, pattern)| !pattern.contains("://")) {
        problems.require(folder.is_empty() || !overlap(&folder, &parts(pattern)), field, || {
            format!(
                "\"{path}\" is where {at}, \"{}\", looks for text: give the job another folder by spec.storage.path",
                pattern.escape_debug()
            )
        });
    }
}

/// Whether `pattern` searches for the corpus inside `folder`, or searches recursively in a directory that contains
/// `folder`. A pattern that searches the whole volume (`**/*.txt`) would overlap with every folder. Such a pattern does
/// not count, because the user has chosen to search every folder.
fn overlap(folder: &[&str], pattern: &[&str]) -> bool {
    let fixed = pattern.iter().take_while(|part| !part.contains(['*', '?', '['])).count();
    let (fixed, searched) = pattern.split_at(fixed);
    fixed.starts_with(folder) || !fixed.is_empty() && folder.starts_with(fixed) && searched.contains(&"**")
}

/// Returns the components of a path, without empty components and `.`.
fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !["", "."].contains(part)).collect()
}

/// Whether a name is a DNS label of RFC 1035, which begins with a letter.
fn is_dns_1035(name: &str) -> bool {
    is_dns_label(name) && name.starts_with(|first: char| first.is_ascii_lowercase())
}

/// Whether a name is a DNS label of RFC 1123, which may begin with a digit.
pub(super) fn is_dns_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

/// Checks a path on the volume, which must be relative and must not leave the volume.
pub(super) fn volume_path(path: &str, field: &str, problems: &mut Problems) {
    relative_path(path, field, problems);
    problems.require(!path.contains("://"), field, || {
        format!("\"{}\" is a URI: give a path relative to the volume's root", path.escape_debug())
    });
}

/// Checks a path on the volume, or a URI of a source.
pub(super) fn source_path(path: &str, field: &str, problems: &mut Problems) {
    relative_path(path, field, problems);
    let is_known = |scheme| SOURCE_SCHEMES.contains(&scheme);
    problems.require(path.split_once("://").is_none_or(|(scheme, _)| is_known(scheme)), field, || {
        format!("\"{}\" is a URI of another scheme than {}", path.escape_debug(), list_of_schemes())
    });
}

/// Checks a path on the volume, or the URI of a model.
pub(super) fn model_path(path: &str, field: &str, problems: &mut Problems) {
    relative_path(path, field, problems);
    problems.require(!path.contains("://") || path.starts_with("hf://"), field, || {
        format!("\"{}\" is a URI of another scheme than hf://", path.escape_debug())
    });
    problems.require(!path.starts_with("hf://datasets/"), field, || format!("\"{}\" {DATA_SET}", path.escape_debug()));
}

fn relative_path(path: &str, field: &str, problems: &mut Problems) {
    problems.require(!path.starts_with('/'), field, || {
        format!("\"{}\" is absolute: give a path relative to the volume's root", path.escape_debug())
    });
    problems.require(!path.split('/').any(|part| part == ".."), field, || {
        format!("\"{}\" leaves the volume by `..`: give a path inside it", path.escape_debug())
    });
    problems.require(!path.contains('\0'), field, || "contains a NUL character, which a path can't contain".into());
}
