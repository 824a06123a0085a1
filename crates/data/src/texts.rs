//! Finds texts that a job without `data.paths` could train on.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glob::Pattern;

use crate::config::DocumentFormat;
use crate::corpus::{Contents, CorpusFile, FieldBytes, Format, with_compression};
use crate::error::DataError;
use crate::source::{LocalFiles, Source};

/// The largest depth of nested folders in which files are searched.
const MAX_DEPTH: usize = 32;

/// The form of the records of a corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RecordForm {
    /// A document in a field of text, or a whole file.
    #[default]
    Text,
    /// A conversation in the field of this name. The messages in this field have more bytes than any field of text.
    Conversation(String),
    /// A text in the field `prompt`, and the answer to it in the field `completion`.
    PromptAndCompletion,
}

/// The texts below a folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Texts {
    /// The `data.paths` that match the found files and no other files.
    pub patterns: Vec<String>,
    /// The field or column that holds the text: the field of text with the most bytes. `None` if all files are plain
    /// text, or if training reads the records as conversations.
    pub field: Option<String>,
    /// The text fields besides `field`, each with its share of the files' text, between 0 and 1. The largest share is
    /// first.
    pub other_fields: Vec<(String, f64)>,
    /// The number of files.
    pub files: usize,
    /// The number of bytes of the texts that training reads. The bytes in a field are estimated from a sample.
    pub bytes: u64,
    /// The form of the records. If `field` is set, training reads only that field.
    pub form: RecordForm,
    /// A sentence about each file that looks like a text but can't be trained on.
    pub skipped: Vec<String>,
}

struct FoundTexts {
    folder: PathBuf,
    name: String,
    extension: String,
    /// The number of bytes of plain text.
    bytes: u64,
    /// Fields that may hold the text, each with an estimate of its bytes; `None` for plain text.
    fields: Option<BTreeMap<String, u64>>,
    /// Fields that hold conversations, each with an estimate of the bytes of its messages.
    conversations: BTreeMap<String, u64>,
}

struct Search {
    source: Arc<LocalFiles>,
    found: Vec<FoundTexts>,
    skipped: Vec<String>,
    /// The extensions of files that a pattern must not match. For these extensions, each pattern names a single file.
    left_out: BTreeSet<String>,
    /// Whether the search skipped a folder in which a pattern with `**` would find files.
    has_left_out_folder: bool,
}

/// Finds the texts below `folder`, in files of the formats that hold text. `folder` is a path relative to
/// `volume_root`, and may be empty. The search skips hidden files, links to folders, and folders for which
/// `is_excluded` returns true. If `conversations` is true, records may also be conversations, in the field `messages`
/// or in `prompt` and `completion`.
///
/// # Errors
/// Fails if a folder can't be listed.
pub fn find_texts(
    volume_root: &Path,
    folder: &Path,
    conversations: bool,
    is_excluded: &dyn Fn(&Path) -> bool,
) -> Result<Texts, DataError> {
    let mut search = Search {
        source: Arc::new(LocalFiles::below(volume_root)?),
        found: Vec::new(),
        skipped: Vec::new(),
        left_out: BTreeSet::new(),
        has_left_out_folder: false,
    };
    search.visit(folder, is_excluded, 0)?;
    Ok(search.into_texts(folder, conversations))
}

impl Search {
    fn visit(&mut self, folder: &Path, is_excluded: &dyn Fn(&Path) -> bool, depth: usize) -> Result<(), DataError> {
        let path = self.source.real_root().join(folder);
        let mut entries = fs::read_dir(&path)
            .and_then(Iterator::collect::<Result<Vec<fs::DirEntry>, _>>)
            .map_err(DataError::io("list", &path))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let Ok(name) = entry.file_name().into_string() else {
                if Format::of(&path).is_some() {
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
                true => self.visit(&folder.join(&name), is_excluded, depth + 1)?,
                false => self.add(folder, name, &path),
            }
        }
        Ok(())
    }

    fn add(&mut self, folder: &Path, name: String, path: &Path) {
        let Some((format, compression)) = Format::of(path).filter(|(format, _)| format.is_text()) else { return };
        let source: Arc<dyn Source> = self.source.clone();
        let file =
            match self.source.file(path).and_then(|file| CorpusFile::new(&source, file, DocumentFormat::Text, "")) {
                Ok(file) => file,
                Err(DataError::LeavesVolume { .. }) => return self.leave_out(path, "is a link out of the workspace"),
                Err(DataError::DanglingLink { .. }) => {
                    return self.leave_out(path, "is a link to a file that does not exist");
                }
                Err(error) => return self.leave_out_for(path, &error),
            };
        let text = match file.format.contents {
            Contents::PlainText => file.text_bytes().map(|bytes| (bytes, None, BTreeMap::new())),
            Contents::Fields(find_fields) => {
                find_fields(&file).map(|FieldBytes { texts, conversations }| (0, Some(texts), conversations))
            }
            Contents::TokenIds => return,
        };
        match text {
            Ok((bytes, fields, conversations)) => {
                let (folder, extension) = (folder.to_owned(), with_compression(format.extension, compression));
                self.found.push(FoundTexts { folder, name, extension, bytes, fields, conversations });
            }
            Err(error) => self.leave_out_for(path, &error),
        }
    }

    fn leave_out(&mut self, path: &Path, problem: &str) {
        self.leave_out_for(path, &DataError::Invalid { problem: format!("{} {problem}", path.display()) });
    }

    fn leave_out_for(&mut self, path: &Path, error: &DataError) {
        let found = Format::of(path);
        self.left_out.extend(found.map(|(format, compression)| with_compression(format.extension, compression)));
        self.skipped.push(error.to_string());
    }

    fn into_texts(mut self, folder: &Path, conversations: bool) -> Texts {
        let field = largest(texts_of(&self.found)).map(|(field, _)| field);
        let form = form(&self.found, field.as_deref());
        let is_read_whole = conversations && form.has_format();
        let field = field.filter(|_| !is_read_whole);
        let (found, others): (Vec<FoundTexts>, Vec<FoundTexts>) =
            self.found.drain(..).partition(|file| match (&file.fields, is_read_whole) {
                (_, true) => file.conversation_bytes(&form).is_some(),
                (None, false) => true,
                (Some(fields), false) => field.as_ref().is_some_and(|field| fields.contains_key(field)),
            });
        for FoundTexts { folder, name, conversations, .. } in others {
            let problem = match (&field, conversations.keys().next()) {
                (_, Some(conversation)) => format!("holds conversations in \"{conversation}\", and no text"),
                (Some(field), None) => format!("has no text in \"{field}\""),
                (None, None) => "has no field of text".into(),
            };
            self.leave_out(&folder.join(name), &problem);
        }
        let mut by_extension: BTreeMap<&str, Vec<&FoundTexts>> = BTreeMap::new();
        for file in &found {
            by_extension.entry(&file.extension).or_default().push(file);
        }
        let patterns = by_extension.iter().flat_map(|(extension, files)| self.patterns(folder, extension, files));
        let patterns = patterns.collect();
        let text_fields = by_bytes(texts_of(&found));
        let all: u64 = text_fields.iter().map(|(_, bytes)| bytes).sum();
        let others = text_fields.into_iter().filter(|(name, _)| field.as_ref() != Some(name));
        let other_fields = others.map(|(name, bytes)| (name, bytes as f64 / all.max(1) as f64)).collect();
        let bytes = |file: &FoundTexts| match is_read_whole {
            true => file.conversation_bytes(&form).unwrap_or(0),
            false => file.text_bytes(field.as_deref()),
        };
        Texts {
            patterns,
            files: found.len(),
            bytes: found.iter().fold(0, |sum, file| sum.saturating_add(bytes(file))),
            // without a field of text, only files of plain text are read
            form: if is_read_whole || field.is_some() || found.is_empty() { form } else { RecordForm::Text },
            field,
            other_fields,
            skipped: self.skipped,
        }
    }

    /// Returns the patterns that match these files of one extension and no other files.
    fn patterns(&self, folder: &Path, extension: &str, files: &[&FoundTexts]) -> Vec<String> {
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

impl RecordForm {
    /// Whether `data.format` has a value other than Text for these records.
    fn has_format(&self) -> bool {
        match self {
            RecordForm::Text => false,
            RecordForm::Conversation(field) => field == "messages",
            RecordForm::PromptAndCompletion => true,
        }
    }
}

impl FoundTexts {
    /// Returns the number of bytes of the records' conversations, or `None` if the records have another form.
    fn conversation_bytes(&self, form: &RecordForm) -> Option<u64> {
        let fields = self.fields.as_ref()?;
        match form {
            RecordForm::Text => None,
            RecordForm::Conversation(field) => self.conversations.get(field).copied(),
            RecordForm::PromptAndCompletion => Some(fields.get("prompt")?.saturating_add(*fields.get("completion")?)),
        }
    }

    fn text_bytes(&self, field: Option<&str>) -> u64 {
        let Some(fields) = &self.fields else { return self.bytes };
        field.and_then(|field| fields.get(field)).copied().unwrap_or(0)
    }
}

/// Returns the form of the records of `files`. `field` is the field of text with the most bytes.
fn form(files: &[FoundTexts], field: Option<&str>) -> RecordForm {
    let text = files.iter().fold(0, |bytes: u64, file| bytes.saturating_add(file.text_bytes(field)));
    if let Some((name, bytes)) = largest(files.iter().flat_map(|file| &file.conversations))
        && bytes > text
    {
        return RecordForm::Conversation(name);
    }
    let is_pair = |file: &FoundTexts| {
        let fields = file.fields.as_ref();
        fields.is_some_and(|fields| ["prompt", "completion"].iter().all(|name| fields.contains_key(*name)))
    };
    match !files.is_empty() && files.iter().all(is_pair) {
        true => RecordForm::PromptAndCompletion,
        false => RecordForm::Text,
    }
}

fn texts_of(files: &[FoundTexts]) -> impl Iterator<Item = (&String, &u64)> {
    files.iter().flat_map(|file| file.fields.iter().flatten())
}

/// Returns the field with the most bytes, and the number of its bytes.
fn largest<'a>(fields: impl Iterator<Item = (&'a String, &'a u64)>) -> Option<(String, u64)> {
    by_bytes(fields).into_iter().next()
}

/// Returns the fields with the sums of their bytes. The largest sum is first.
fn by_bytes<'a>(fields: impl Iterator<Item = (&'a String, &'a u64)>) -> Vec<(String, u64)> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (field, bytes) in fields {
        let sum = sums.entry(field).or_default();
        *sum = sum.saturating_add(*bytes);
    }
    let mut sums: Vec<(String, u64)> = sums.into_iter().map(|(field, bytes)| (field.to_owned(), bytes)).collect();
    sums.sort_by_key(|(_, bytes)| Reverse(*bytes));
    sums
}

#[cfg(test)]
mod tests;
