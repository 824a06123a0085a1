//! Finds texts that a job could train on, for one that has no `data.paths` yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use glob::Pattern;
use serde_json::Value;

use crate::corpus::{FileFormat, parquet_text_columns};
use crate::error::DataError;

/// The field that holds the text if there are several.
const USUAL_FIELD: &str = "text";

/// The most bytes of a `.jsonl` file's first line that are read.
const MAX_FIRST_LINE_BYTES: u64 = 16 << 20;

/// Folders within folders that are searched.
const MAX_DEPTH: usize = 32;

/// Texts below a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// What `data.paths` has to be, so that these files match and no others.
    pub patterns: Vec<String>,
    /// The field or column that holds the text; None if all are plain text.
    pub field: Option<String>,
    /// Number of files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// A sentence on each file that looks like a text and can't be trained on.
    pub skipped: Vec<String>,
}

struct Found {
    folder: PathBuf,
    name: String,
    extension: &'static str,
    bytes: u64,
    /// Fields that may hold the text; None of plain text.
    fields: Option<BTreeSet<String>>,
}

#[derive(Default)]
struct Search {
    found: Vec<Found>,
    skipped: Vec<String>,
    /// The extensions of files that must not be matched by a pattern over several folders.
    left_out: BTreeSet<String>,
    /// A folder was left out, which such a pattern would search.
    has_left_out_folder: bool,
}

/// The texts (`.txt`, `.jsonl`, `.parquet`) below `folder`, a path relative to `volume_root`, which may be empty. Hidden files,
/// links to folders and folders for which `is_excluded` holds are not looked at.
///
/// # Errors
/// If a folder can't be listed.
pub fn find_texts(volume_root: &Path, folder: &Path, is_excluded: &dyn Fn(&Path) -> bool) -> Result<Texts, DataError> {
    let root = fs::canonicalize(volume_root).map_err(DataError::io("open", volume_root))?;
    let mut search = Search::default();
    search.visit(&root, folder, is_excluded, 0)?;
    Ok(search.into_texts(folder))
}

impl Search {
    fn visit(
        &mut self,
        root: &Path,
        folder: &Path,
        is_excluded: &dyn Fn(&Path) -> bool,
        depth: usize,
    ) -> Result<(), DataError> {
        let path = root.join(folder);
        let mut entries = fs::read_dir(&path)
            .and_then(Iterator::collect::<Result<Vec<fs::DirEntry>, _>>)
            .map_err(DataError::io("list", &path))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let Ok(name) = entry.file_name().into_string() else {
                if FileFormat::of(&path).is_some() {
                    self.leave_out(&path, "has a name that is not UTF-8");
                }
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            match path.is_dir() {
                true if is_link || is_excluded(&path) || depth == MAX_DEPTH => self.has_left_out_folder = true,
                true => self.visit(root, &folder.join(&name), is_excluded, depth + 1)?,
                false => self.add(root, folder, name, &path),
            }
        }
        Ok(())
    }

    fn add(&mut self, root: &Path, folder: &Path, name: String, path: &Path) {
        let (extension, fields) = match FileFormat::of(path) {
            Some(FileFormat::Text) => ("txt", Ok(None)),
            Some(FileFormat::JsonLines) => ("jsonl", first_fields(path).map(Some)),
            Some(FileFormat::Parquet) => ("parquet", parquet_text_columns(path).map(Some)),
            // token ids need the tokenizer that made them
            Some(FileFormat::Ids32 | FileFormat::Ids16) | None => return,
        };
        match (fs::canonicalize(path), fs::metadata(path), fields) {
            (Ok(real), ..) if !real.starts_with(root) => self.leave_out(path, "is a link out of the workspace"),
            (Ok(_), Ok(metadata), Ok(fields)) => {
                let (folder, bytes) = (folder.to_owned(), metadata.len());
                self.found.push(Found { folder, name, extension, bytes, fields });
            }
            (_, _, Err(problem)) => self.leave_out(path, &problem),
            (Err(error), ..) | (_, Err(error), _) => self.leave_out(path, &format!("can't be read: {error}")),
        }
    }

    fn leave_out(&mut self, path: &Path, problem: &str) {
        self.left_out.extend(path.extension().map(|extension| extension.to_string_lossy().into_owned()));
        self.skipped.push(format!("{} {problem}", path.display()));
    }

    fn into_texts(mut self, folder: &Path) -> Texts {
        let field = self.field();
        let (found, others): (Vec<Found>, Vec<Found>) = self.found.drain(..).partition(|file| match &file.fields {
            None => true,
            Some(fields) => field.as_ref().is_some_and(|field| fields.contains(field)),
        });
        for Found { folder, name, .. } in others {
            let problem = match &field {
                Some(field) => format!("has no text in \"{field}\""),
                None => "has no field of text".into(),
            };
            self.leave_out(&folder.join(name), &problem);
        }
        let mut by_extension: BTreeMap<&str, Vec<&Found>> = BTreeMap::new();
        for file in &found {
            by_extension.entry(file.extension).or_default().push(file);
        }
        let patterns = by_extension.iter().flat_map(|(extension, files)| self.patterns(folder, extension, files));
        let patterns = patterns.collect();
        let needs_field = found.iter().any(|file| file.fields.is_some());
        Texts {
            patterns,
            field: field.filter(|_| needs_field),
            files: found.len(),
            bytes: found.iter().fold(0, |bytes, file| bytes.saturating_add(file.bytes)),
            skipped: self.skipped,
        }
    }

    /// The field with most bytes of files that have it; the usual one if any has it.
    fn field(&self) -> Option<String> {
        let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
        for file in &self.found {
            for field in file.fields.iter().flatten() {
                *bytes.entry(field).or_default() += file.bytes;
            }
        }
        if bytes.contains_key(USUAL_FIELD) {
            return Some(USUAL_FIELD.to_owned());
        }
        bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(field, _)| field.to_owned())
    }

    /// The patterns that match these files of one extension and no others.
    fn patterns(&self, folder: &Path, extension: &str, files: &[&Found]) -> Vec<String> {
        let escaped = |path: &Path| Pattern::escape(&path.to_string_lossy());
        if self.left_out.contains(extension) {
            return files.iter().map(|file| escaped(&file.folder.join(&file.name))).collect();
        }
        let folders: BTreeSet<&Path> = files.iter().map(|file| file.folder.as_path()).collect();
        let in_folder = |folder: &Path, name: &str| match folder.as_os_str().is_empty() {
            true => name.to_owned(),
            false => format!("{}/{name}", escaped(folder)),
        };
        if folders.len() > 1 && !folder.as_os_str().is_empty() && !self.has_left_out_folder {
            return vec![in_folder(folder, &format!("**/*.{extension}"))];
        }
        folders.into_iter().map(|folder| in_folder(folder, &format!("*.{extension}"))).collect()
    }
}

/// The fields of text in the first object of a `.jsonl` file.
fn first_fields(path: &Path) -> Result<BTreeSet<String>, String> {
    let unreadable = |error: std::io::Error| format!("can't be read: {error}");
    let file = fs::File::open(path).map_err(unreadable)?;
    for line in BufReader::new(file.take(MAX_FIRST_LINE_BYTES)).split(b'\n') {
        let line = line.map_err(unreadable)?;
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line);
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let Ok(Value::Object(fields)) = serde_json::from_slice(line) else {
            return Err("has a first line that is no JSON object".into());
        };
        let texts = fields.into_iter().filter(|(_, value)| value.is_string());
        return Ok(texts.map(|(name, _)| name).collect());
    }
    Err("is empty".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, content: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn find(root: &Path, folder: &str) -> Texts {
        find_texts(root, Path::new(folder), &|path| path.ends_with("cache")).unwrap()
    }

    #[test]
    fn texts_are_found_by_patterns_that_match_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(find(root, ""), Texts::default());
        write(root, "corpus/a/one.txt", "one");
        write(root, "corpus/a/.hidden.txt", "hidden");
        let texts = find(root, "corpus");
        assert_eq!((texts.patterns, texts.files, texts.bytes), (vec!["corpus/a/*.txt".to_owned()], 1, 3));
        write(root, "corpus/b/two.txt", "two");
        write(root, "corpus/b/three.jsonl", "\n{\"id\": 7, \"title\": \"x\", \"text\": \"three\"}\n");
        let texts = find(root, "corpus");
        assert_eq!(texts.patterns, ["corpus/b/*.jsonl", "corpus/**/*.txt"]);
        assert_eq!((texts.field.as_deref(), texts.files, texts.skipped.len()), (Some("text"), 3, 0));
        // what can't be trained on is named, and no pattern matches it
        write(root, "corpus/b/metrics.jsonl", "{\"step\": 1}\n");
        write(root, "corpus/b/no.jsonl", "[1]\n");
        let texts = find(root, "");
        assert_eq!(texts.patterns, ["corpus/b/three.jsonl", "corpus/a/*.txt", "corpus/b/*.txt"]);
        assert_eq!(texts.skipped.len(), 2, "{:?}", texts.skipped);
        write(root, "corpus/cache/four.txt", "four");
        assert_eq!(find(root, "corpus").patterns, ["corpus/b/three.jsonl", "corpus/a/*.txt", "corpus/b/*.txt"]);
    }

    #[test]
    fn a_folder_with_characters_of_patterns_is_escaped_and_another_field_is_taken() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "[old]/x.jsonl", "{\"body\": \"three\"}\n");
        let texts = find(root.path(), "");
        assert_eq!(texts.patterns, ["[[]old[]]/*.jsonl"]);
        assert_eq!(texts.field.as_deref(), Some("body"));
        std::os::unix::fs::symlink("/etc/hostname", root.path().join("[old]/out.txt")).unwrap();
        write(root.path(), "[old]/in.txt", "in");
        let texts = find(root.path(), "");
        assert_eq!(texts.patterns, ["[[]old[]]/*.jsonl", "[[]old[]]/in.txt"]);
    }
}
