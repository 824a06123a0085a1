//! What earlier runs have made in a job's folder, file by file: what lies beside it is somebody else's.

use std::fmt;
use std::fs;
use std::io::ErrorKind;

use stagecoach_checkpoint::VolumeContents;
use stagecoach_files::temporary_target;

use super::{CURVE, FolderError, JOB, JobFolder, LOCK, LOGS, METRICS, PLOTS, RECORD, RESULT, TERMINATION};

/// Files of the folder itself, in the order in which they are removed: without its result, a job is not done.
const FILES: [&str; 4] = [RESULT, METRICS, RECORD, JOB];

/// All that a job makes itself, but for the lock, which is held meanwhile.
#[derive(Debug)]
pub struct Results {
    /// By the name of their folder, that of the job's own is empty: their names.
    files: Vec<(&'static str, Vec<String>)>,
    contents: VolumeContents,
}

impl JobFolder {
    /// What there is.
    ///
    /// # Errors
    /// The volume's.
    pub fn results(&self) -> Result<Results, FolderError> {
        let files = ["", LOGS, PLOTS, TERMINATION].map(|folder| Ok((folder, self.own_files(folder)?)));
        let files = files.into_iter().collect::<Result<_, FolderError>>()?;
        Ok(Results { files, contents: VolumeContents::find(&self.volume())? })
    }

    /// Removes it, and the folders that are empty then.
    ///
    /// # Errors
    /// The volume's.
    pub fn remove(&self, results: &Results) -> Result<(), FolderError> {
        for (folder, names) in &results.files {
            self.remove_files(folder, names)?;
            if !folder.is_empty() {
                // it stays if it holds anything else, or is a link
                let _ = fs::remove_dir(self.root.join(folder));
            }
        }
        Ok(results.contents.remove(&self.volume())?)
    }

    /// Removes what a run that starts training makes anew.
    pub(super) fn remove_last_run(&self) -> Result<(), FolderError> {
        let mut own = self.own_files("")?;
        own.retain(|name| name == RESULT);
        self.remove_files("", &own)?;
        [LOGS, TERMINATION].into_iter().try_for_each(|folder| self.remove_files(folder, &self.own_files(folder)?))
    }

    fn remove_files(&self, folder: &str, names: &[String]) -> Result<(), FolderError> {
        for path in names.iter().map(|name| self.root.join(folder).join(name)) {
            fs::remove_file(&path).map_err(FolderError::storage("remove", &path))?;
        }
        Ok(())
    }

    /// The names of the job's own files in one of its folders; none if there is no such folder.
    fn own_files(&self, folder: &str) -> Result<Vec<String>, FolderError> {
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
            let own = entry.file_name().into_string().ok().filter(|name| !is_folder && is_own(folder, name));
            names.extend(own.filter(|name| name != LOCK));
        }
        names.sort_by_key(|name| (FILES.iter().position(|file| file == name), name.clone()));
        Ok(names)
    }
}

/// Whether a job makes a file of this name in one of its folders.
pub(super) fn is_own(folder: &str, name: &str) -> bool {
    let name = temporary_target(name).unwrap_or(name);
    let is_a_stages = |extension: &str| {
        let stage = name.strip_prefix("stage-").and_then(|rest| rest.strip_suffix(extension));
        stage.is_some_and(|stage| stage.parse::<u32>().is_ok_and(|number| number.to_string() == stage))
    };
    match folder {
        "" => name == LOCK || FILES.contains(&name),
        LOGS => is_a_stages(".log"),
        TERMINATION => is_a_stages(".json"),
        PLOTS => name == CURVE,
        _ => false,
    }
}

impl Results {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.contents == VolumeContents::default() && self.files.iter().all(|(_, names)| names.is_empty())
    }
}

/// In a list, for people.
impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VolumeContents { checkpoints, damaged, fences } = &self.contents;
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
        parts.extend((!fences.is_empty()).then(|| "fences".into()));
        f.write_str(&parts.join(", "))
    }
}
