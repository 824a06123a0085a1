//! The files that earlier runs created in a job's folder. `JobFolder::remove` removes them by name, so that it never
//! removes a file of the user.

use std::fmt;
use std::fs;
use std::io::ErrorKind;

use stagecoach_checkpoint::VolumeContents;
use stagecoach_files::{is_cache_key, target_of_temporary_file};

use super::{
    FolderError, INITIAL_MODEL, JobFolder, LAUNCHER_STATE, LOCK, LOGS, LOSS_CURVE, METRICS, PLOTS, REMOTE_FILES,
    REMOTE_MODELS, RESOLVED_JOB, RESULT, SPEEDS, TERMINATION, WINDOWS,
};

/// The files directly in the job's folder, in the order of their removal. The result is removed first, so that the job
/// counts as unfinished if the removal is interrupted.
const FILES: [&str; 8] =
    [RESULT, METRICS, LAUNCHER_STATE, RESOLVED_JOB, SPEEDS, REMOTE_FILES, REMOTE_MODELS, INITIAL_MODEL];

/// Everything that earlier runs of a job created, except the lock file, because this process holds the lock.
#[derive(Debug)]
pub struct RunArtifacts {
    /// The file names of each folder. The empty folder name denotes the job's folder.
    files: Vec<(&'static str, Vec<String>)>,
    /// The names of the folders with the windows (consecutive tokenised parts) of streamed corpora.
    windows: Vec<String>,
    contents: VolumeContents,
}

impl JobFolder {
    /// Finds the artifacts of earlier runs.
    ///
    /// # Errors
    /// Returns an error if the volume fails.
    pub fn artifacts(&self) -> Result<RunArtifacts, FolderError> {
        let files = ["", LOGS, PLOTS, TERMINATION].map(|folder| Ok((folder, self.job_files(folder)?)));
        let files = files.into_iter().collect::<Result<_, FolderError>>()?;
        Ok(RunArtifacts { files, windows: self.window_folders()?, contents: VolumeContents::find(&self.volume())? })
    }

    /// Removes the artifacts, and the folders that become empty.
    ///
    /// # Errors
    /// Returns an error if the volume fails.
    pub fn remove(&self, artifacts: &RunArtifacts) -> Result<(), FolderError> {
        for (folder, names) in &artifacts.files {
            self.remove_files(folder, names)?;
            if !folder.is_empty() {
                // the call fails, and the folder stays, if the folder still holds files or is a symbolic link
                let _ = fs::remove_dir(self.root.join(folder));
            }
        }
        let windows = self.root.join(WINDOWS);
        for path in artifacts.windows.iter().map(|name| windows.join(name)) {
            fs::remove_dir_all(&path).map_err(FolderError::storage("remove", &path))?;
        }
        let _ = fs::remove_dir(windows);
        Ok(artifacts.contents.remove(&self.volume())?)
    }

    pub(super) fn remove_logs_and_result(&self) -> Result<(), FolderError> {
        let mut result = self.job_files("")?;
        result.retain(|name| name == RESULT);
        self.remove_files("", &result)?;
        [LOGS, TERMINATION].into_iter().try_for_each(|folder| self.remove_files(folder, &self.job_files(folder)?))
    }

    fn remove_files(&self, folder: &str, names: &[String]) -> Result<(), FolderError> {
        for path in names.iter().map(|name| self.root.join(folder).join(name)) {
            fs::remove_file(&path).map_err(FolderError::storage("remove", &path))?;
        }
        Ok(())
    }

    /// Returns the names of the window folders that jobs create. The name of a window folder is the key of a token
    /// cache.
    fn window_folders(&self) -> Result<Vec<String>, FolderError> {
        let names = self.entries(WINDOWS)?.into_iter().filter(|(_, is_folder)| *is_folder).map(|(name, _)| name);
        Ok(names.filter(|name| is_cache_key(name)).collect())
    }

    /// Returns the names of the files that jobs create in a folder, or no names if the folder doesn't exist.
    fn job_files(&self, folder: &str) -> Result<Vec<String>, FolderError> {
        let files = self.entries(folder)?.into_iter().filter(|(_, is_folder)| !is_folder).map(|(name, _)| name);
        let mut names: Vec<String> = files.filter(|name| is_job_file(folder, name) && name != LOCK).collect();
        names.sort_by_key(|name| (FILES.iter().position(|file| file == name), name.clone()));
        Ok(names)
    }

    /// Returns each name in a folder, and whether it names a folder. Returns no names if the folder doesn't exist.
    /// Skips names that are not UTF-8.
    fn entries(&self, folder: &str) -> Result<Vec<(String, bool)>, FolderError> {
        let path = self.root.join(folder);
        let entries = match fs::read_dir(&path) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            listed => listed.map_err(FolderError::storage("list", &path))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(FolderError::storage("list", &path))?;
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            names.extend(entry.file_name().into_string().ok().map(|name| (name, is_folder)));
        }
        Ok(names)
    }
}

/// Whether jobs create a file of this name in this folder.
pub(super) fn is_job_file(folder: &str, name: &str) -> bool {
    let name = target_of_temporary_file(name).unwrap_or(name);
    let is_process_file = |extension: &str| {
        let numbered = ["stage-", "spare-"].iter().find_map(|prefix| name.strip_prefix(prefix));
        let number = numbered.and_then(|rest| rest.strip_suffix(extension));
        number.is_some_and(|number| number.parse::<u32>().is_ok_and(|parsed| parsed.to_string() == number))
    };
    match folder {
        "" => name == LOCK || FILES.contains(&name),
        LOGS => is_process_file(".log"),
        TERMINATION => is_process_file(".json"),
        PLOTS => name == LOSS_CURVE,
        _ => false,
    }
}

impl RunArtifacts {
    /// Returns the number of bytes that a job can write once the artifacts are removed, or `None` if the volume does
    /// not report its free space.
    pub fn available_bytes_without(&self, folder: &JobFolder) -> Option<u64> {
        self.contents.available_bytes_without(&folder.volume())
    }

    /// Whether there are no artifacts.
    pub fn is_empty(&self) -> bool {
        self.contents == VolumeContents::default()
            && self.windows.is_empty()
            && self.files.iter().all(|(_, names)| names.is_empty())
    }
}

/// Lists the artifacts for the user.
impl fmt::Display for RunArtifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VolumeContents { checkpoints, damaged, fences, .. } = &self.contents;
        let mut parts = Vec::new();
        match checkpoints.as_slice() {
            [] => {}
            [step] => parts.push(format!("1 checkpoint (of step {step})")),
            [newest, ..] => parts.push(format!("{} checkpoints (up to step {newest})", checkpoints.len())),
        }
        match damaged.len() {
            0 => {}
            1 => parts.push("1 damaged checkpoint".into()),
            more => parts.push(format!("{more} damaged checkpoints")),
        }
        for (folder, names) in &self.files {
            match (*folder, names.is_empty()) {
                ("", _) => parts.extend(names.iter().cloned()),
                (folder, false) => parts.push(folder.into()),
                (_, true) => {}
            }
        }
        parts.extend((!self.windows.is_empty()).then(|| WINDOWS.into()));
        parts.extend((!fences.is_empty()).then(|| "fences".into()));
        f.write_str(&parts.join(", "))
    }
}
