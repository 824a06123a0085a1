//! Reads the cache that `huggingface_hub` fills. A repository has a folder `datasets--OWNER--NAME` or
//! `models--OWNER--NAME` with the files `refs/REVISION` and `snapshots/COMMIT/PATH`.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
use crate::error::HubError;
use crate::file::HubFile;
use crate::repo::Repo;

/// A read-only view of the cache.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) root: PathBuf,
}

impl Cache {
    /// Returns the commit to which a client last resolved a revision; `None` if the cache has no record of the
    /// revision.
    pub(crate) fn commit(&self, repo: &Repo, revision: &str) -> Result<Option<String>, HubError> {
        if !is_inside(revision) {
            return Ok(None);
        }
        let path = self.root.join(repo.cache_folder()).join("refs").join(revision);
        match fs::read_to_string(&path) {
            Ok(commit) => Ok(Some(commit.trim().to_owned())),
            Err(error) if is_missing(&error) => Ok(self.snapshot(repo, revision).is_dir().then(|| revision.to_owned())),
            Err(error) => Err(HubError::file("read", &path, &error)),
        }
    }

    /// Returns the path of a file in the cache; `None` if the cache lacks the file or has the file with another size.
    pub(crate) fn file(&self, repo: &Repo, commit: &str, file: &HubFile) -> Option<PathBuf> {
        let path = self.snapshot(repo, commit).join(&file.path);
        let is_same =
            is_inside(&file.path) && fs::metadata(&path).is_ok_and(|it| it.is_file() && it.len() == file.size);
        is_same.then_some(path)
    }

    /// Returns the cached files of a commit, as paths within the repository; `None` if the cache does not have the
    /// commit.
    pub(crate) fn paths(&self, repo: &Repo, commit: &str) -> Result<Option<Vec<String>>, HubError> {
        let root = self.snapshot(repo, commit);
        if !root.is_dir() {
            return Ok(None);
        }
        let (mut folders, mut paths) = (vec![root.clone()], Vec::new());
        while let Some(folder) = folders.pop() {
            let failed = |error: io::Error| HubError::file("list", &folder, &error);
            for entry in fs::read_dir(&folder).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                if entry.file_type().map_err(failed)?.is_dir() {
                    folders.push(entry.path());
                } else if let Some(path) = entry.path().strip_prefix(&root).ok().and_then(Path::to_str) {
                    paths.push(path.to_owned());
                }
            }
        }
        paths.sort();
        Ok(Some(paths))
    }

    /// Returns the file at a path from [`Cache::paths`]. If the file is a link, its digest is the name of the blob to
    /// which it links. Otherwise this function reads the file to compute its SHA-256.
    pub(crate) fn describe(&self, repo: &Repo, commit: &str, path: &str) -> Result<HubFile, HubError> {
        let real = self.snapshot(repo, commit).join(path);
        let failed = |error: io::Error| HubError::file("read", &real, &error);
        let size = fs::metadata(&real).map_err(failed)?.len();
        let blob = fs::read_link(&real).ok();
        let digest = match blob.as_ref().and_then(|blob| Digest::from_hex(blob.file_name()?.to_str()?)) {
            Some(digest) => digest,
            None => sha256(&real).map_err(failed)?,
        };
        Ok(HubFile { path: path.to_owned(), size, digest })
    }

    fn snapshot(&self, repo: &Repo, commit: &str) -> PathBuf {
        self.root.join(repo.cache_folder()).join("snapshots").join(commit)
    }
}

fn sha256(path: &Path) -> io::Result<Digest> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(Digest::Sha256(format!("{:x}", hasher.finalize())))
}

/// Whether a path stays within the folder to which it is joined.
fn is_inside(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|component| matches!(component, Component::Normal(_)))
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory)
}
