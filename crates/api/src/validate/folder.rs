//! Checks that the folder of a job of the built-in trainer is apart from the token cache and the corpus.

use super::Problems;
use crate::job::{PipelineJob, TOKEN_CACHE};

pub(super) fn check(job: &PipelineJob, problems: &mut Problems) {
    let Some(data) = &job.spec.data else { return };
    let (path, folder) = (job.folder(), parts(job.folder()));
    if folder.contains(&"..") {
        return; // reported already
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

/// Whether the corpus lies in the folder, or the folder in a part of the corpus that the pattern searches to any depth.
/// A pattern that searches the whole volume (`**/*.txt`) overlaps with every folder. Such a pattern is the user's
/// choice and does not count.
fn overlap(folder: &[&str], pattern: &[&str]) -> bool {
    let fixed = pattern.iter().take_while(|part| !part.contains(['*', '?', '['])).count();
    let (fixed, searched) = pattern.split_at(fixed);
    fixed.starts_with(folder) || !fixed.is_empty() && folder.starts_with(fixed) && searched.contains(&"**")
}

/// The names in a path.
fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !["", "."].contains(part)).collect()
}
