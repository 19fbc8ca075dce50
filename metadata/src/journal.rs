//! A table of texts in a file: every change is on disk before it is acknowledged.
//!
//! The file has one line of JSON per change. When it is opened, and when most of its lines are
//! obsolete, it is compacted into a new file that replaces it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// Obsolete lines that are kept whatever the size of the table.
const PAST_LINES_MIN: usize = 1_024;

/// The error of a file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A system call failed.
    #[error("{call} of {path} failed: {error}")]
    Io {
        /// The call.
        call: &'static str,
        /// The file.
        path: PathBuf,
        /// Its error.
        error: io::Error,
    },
    /// A line before the last is malformed: the file is damaged, or not a journal.
    #[error("line {line} of {path} is no entry: {error}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The error of the parser.
        error: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Change {
    key: String,
    /// `None` for a removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

/// The file behind a table.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    lines: usize,
}

impl Journal {
    /// Opens or creates the file and reads the table from it.
    pub(crate) fn open(path: &Path) -> Result<(Self, BTreeMap<String, String>), JournalError> {
        let failed = |call, error| JournalError::Io { call, path: path.to_owned(), error };
        let table = match File::open(path) {
            Ok(file) => read(path, file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(failed("open", error)),
        };
        let written = TableLines::of(&table).and_then(|lines| write_anew(path, &lines));
        let file = written.map_err(|error| failed("write", error))?;
        Ok((Self { path: path.to_owned(), file, lines: table.len() }, table))
    }

    /// Whether the file must be compacted before the next change: most lines are obsolete, for a table of
    /// `entries`, or the last change was not written whole.
    pub(crate) fn is_overgrown(&self, entries: usize) -> bool {
        self.lines >= 2 * entries + PAST_LINES_MIN
    }

    /// Replaces the file by one with the table, and waits for the disk.
    pub(crate) fn compact(&mut self, table: &TableLines) -> io::Result<()> {
        self.file = write_anew(&self.path, table)?;
        self.lines = table.lines;
        Ok(())
    }

    /// Writes a change, and waits for the disk.
    pub(crate) fn append(&mut self, key: &str, value: Option<&str>) -> io::Result<()> {
        let change = Change { key: key.to_owned(), value: value.map(str::to_owned) };
        // A failure may leave half a line, so the next change compacts the file first.
        let lines = std::mem::replace(&mut self.lines, usize::MAX);
        self.file.write_all(&line(&change)?)?;
        self.file.sync_data()?;
        self.lines = lines + 1;
        Ok(())
    }
}

/// The table of a file.
pub(crate) struct TableLines {
    content: Vec<u8>,
    lines: usize,
}

impl TableLines {
    pub(crate) fn of(table: &BTreeMap<String, String>) -> io::Result<Self> {
        let mut content = Vec::new();
        for (key, value) in table {
            content.extend(line(&Change { key: key.clone(), value: Some(value.clone()) })?);
        }
        Ok(Self { content, lines: table.len() })
    }
}

fn line(change: &Change) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(change)?;
    line.push(b'\n');
    Ok(line)
}

fn read(path: &Path, file: File) -> Result<BTreeMap<String, String>, JournalError> {
    let mut reader = BufReader::new(file);
    let (mut table, mut number, mut text) = (BTreeMap::new(), 0, Vec::new());
    loop {
        text.clear();
        number += 1;
        let error = |error| JournalError::Io { call: "read", path: path.to_owned(), error };
        if reader.read_until(b'\n', &mut text).map_err(error)? == 0 {
            return Ok(table);
        }
        let whole = text.ends_with(b"\n");
        match serde_json::from_slice::<Change>(&text) {
            Ok(Change { key, value: Some(value) }) => drop(table.insert(key, value)),
            Ok(Change { key, value: None }) => drop(table.remove(&key)),
            // The process or the machine stopped during the last line, which was not acknowledged.
            Err(_) if !whole => return Ok(table),
            Err(error) => {
                let (path, error) = (path.to_owned(), error.to_string());
                return Err(JournalError::Damaged { path, line: number, error });
            }
        }
    }
}

/// Writes the table to a new file, renames it to `path` and returns it open for appending.
fn write_anew(path: &Path, table: &TableLines) -> io::Result<File> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&fresh)?;
    file.write_all(&table.content)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_changes_survive_a_restart_and_a_torn_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table");
        let (mut journal, mut table) = Journal::open(&path).unwrap();
        for (key, value) in [("a", Some("1")), ("b", Some("2")), ("a", None), ("b", Some("3\n"))] {
            match value {
                Some(value) => drop(table.insert(key.into(), value.into())),
                None => drop(table.remove(key)),
            }
            journal.append(key, value).unwrap();
        }
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"key\":\"c").unwrap();
        let (_, again) = Journal::open(&path).unwrap();
        assert_eq!(again, table);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1, "it was compacted");
    }

    #[test]
    fn a_file_of_something_else_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter");
        fs::write(&path, "Dear Sir,\nyours\n").unwrap();
        let refused = Journal::open(&path).err().unwrap();
        assert!(matches!(refused, JournalError::Damaged { line: 1, .. }), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "Dear Sir,\nyours\n");
    }

    #[test]
    fn changes_of_the_past_are_forgotten_when_they_are_many() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table");
        let (mut journal, mut table) = Journal::open(&path).unwrap();
        table.insert("key".into(), "1".into());
        journal.append("key", Some("1")).unwrap();
        journal.append("key", Some("1")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
        journal.lines = 1 + PAST_LINES_MIN;
        assert!(!journal.is_overgrown(table.len()));
        journal.lines = 2 + PAST_LINES_MIN;
        assert!(journal.is_overgrown(table.len()));
        journal.compact(&TableLines::of(&table).unwrap()).unwrap();
        assert_eq!((journal.lines, fs::read_to_string(&path).unwrap().lines().count()), (1, 1));
        journal.append("key", Some("1")).unwrap();
        assert_eq!(journal.lines, 2);
        let (_, again) = Journal::open(&path).unwrap();
        assert_eq!(again, table);
    }
}
