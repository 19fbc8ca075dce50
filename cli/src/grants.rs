//! Grants of segments: in the options of `serve`, and in a file that may change.

use crate::failure::Failure;
use handfast::{Access, Grant};
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Longest file of grants, in bytes.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Permissions that a file of grants must not have: writing by its group and by others.
const MODE_FORBIDDEN: u32 = 0o022;

/// The grants of each segment.
pub(crate) type BySegment = BTreeMap<String, Vec<Grant>>;

/// The access of a word.
pub(crate) fn access(word: &str) -> Option<Access> {
    match word {
        "read" => Some(Access::READ),
        "write" => Some(Access::WRITE),
        "read-write" => Some(Access::READ_WRITE),
        _ => None,
    }
}

/// Splits grants, such as `,read=decode-*,write=trainer-1`, off the end of an option.
pub(crate) fn split(mut text: &str) -> Result<(&str, Vec<Grant>), Failure> {
    let mut grants = Vec::new();
    while let Some((before, last)) = text.rsplit_once(',')
        && let Some((word, peers)) = last.split_once('=')
        && let Some(access) = access(word)
    {
        let grant = Grant::new(access, peers);
        grants.insert(0, grant.map_err(|error| Failure::Usage(format!("{last}: {error}")))?);
        text = before;
    }
    Ok((text, grants))
}

/// Such as `: read for decode-*, write for trainer-1`.
pub(crate) fn show(grants: &[Grant]) -> String {
    let mut text = String::new();
    for grant in grants {
        let _ = write!(text, "{} {grant}", if text.is_empty() { ":" } else { "," });
    }
    if text.is_empty() { ": nothing for anybody".into() } else { text }
}

/// A file of grants.
pub(crate) struct GrantsFile {
    path: PathBuf,
    /// Its text, and the grants in it, when it was without a mistake last.
    text: String,
    grants: BySegment,
    /// The failure that was reported since.
    reported: Option<String>,
}

impl GrantsFile {
    /// Reads the grants of segments with these names.
    pub(crate) fn open(path: &Path, segments: &[String]) -> Result<(Self, BySegment), String> {
        let failed = |error| in_file(path, &error);
        let text = read(path).map_err(failed)?;
        let grants = parse(&text, segments).map_err(failed)?;
        let file = Self { path: path.to_owned(), text, grants: grants.clone(), reported: None };
        Ok((file, grants))
    }

    /// Reads the file again. Returns the grants of the segments whose lines have changed since the file was
    /// without a mistake last, or a failure once; else `None`.
    pub(crate) fn read_again(&mut self, segments: &[String]) -> Option<Result<BySegment, String>> {
        let read = read(&self.path);
        if read.as_ref() == Ok(&self.text) {
            self.reported = None;
            return None;
        }
        let parsed = read.and_then(|text| Ok((parse(&text, segments)?, text)));
        let (grants, text) = match parsed {
            Ok(parsed) => parsed,
            Err(error) if self.reported.as_ref() == Some(&error) => return None,
            Err(error) => {
                self.reported = Some(error.clone());
                return Some(Err(in_file(&self.path, &error)));
            }
        };
        let mut changed = grants.clone();
        changed.retain(|segment, grants| self.grants.get(segment) != Some(&*grants));
        (self.text, self.grants, self.reported) = (text, grants, None);
        (!changed.is_empty()).then_some(Ok(changed))
    }
}

fn in_file(path: &Path, error: &dyn Display) -> String {
    format!("the grants in {} cannot be used: {error}", path.display())
}

fn read(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mode = file.metadata().map_err(|error| error.to_string())?.permissions().mode();
    if mode & MODE_FORBIDDEN != 0 {
        let mode = mode & 0o777;
        return Err(format!(
            "its permissions are {mode:03o}; make it writable by its owner alone (`chmod go-w`)"
        ));
    }
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX as u64 + 1).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    match text.len() {
        ..=FILE_BYTES_MAX => Ok(text),
        _ => Err(format!("it exceeds {FILE_BYTES_MAX} bytes")),
    }
}

/// Takes lines of a segment, `read`, `write` or `read-write`, and patterns of names.
fn parse(text: &str, segments: &[String]) -> Result<BySegment, String> {
    let mut all: BySegment = segments.iter().map(|name| (name.clone(), Vec::new())).collect();
    for (number, line) in text.lines().enumerate() {
        let failed = |error: &dyn Display| format!("line {}: {error}", number + 1);
        let mut words = line.split_whitespace();
        let Some(segment) = words.next().filter(|word| !word.starts_with('#')) else { continue };
        let of = all.get_mut(segment);
        let of = of.ok_or_else(|| failed(&format!("no segment is named '{segment}'")))?;
        let access = words.next().and_then(access);
        let access =
            access.ok_or_else(|| failed(&"write read, write or read-write after the segment"))?;
        let before = of.len();
        for peers in words {
            of.push(Grant::new(access, peers).map_err(|error| failed(&error))?);
        }
        if of.len() == before {
            return Err(failed(
                &"it names no peers: write a node's name, with * for any characters",
            ));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};

    fn shown(grants: &[Grant]) -> String {
        show(grants)
    }

    /// Grants are at the end of an option; commas and equals signs before them stay.
    #[test]
    fn grants_end_an_option() {
        let (rest, grants) = split("cache=2G,read=decode-*,write=trainer-1").unwrap();
        assert_eq!(
            (rest, &*shown(&grants)),
            ("cache=2G", ": read for decode-*, write for trainer-1")
        );
        let (rest, grants) = split("a=/tmp/x,y=z,read-write=*").unwrap();
        assert_eq!((rest, &*shown(&grants)), ("a=/tmp/x,y=z", ": read-write for *"));
        assert_eq!(split("2G").unwrap().0, "2G");
        assert_eq!(split("2G,reed=x").unwrap(), ("2G,reed=x", Vec::new()));
        assert!(split("2G,read=").is_err() && split("2G,write=a@b").is_err());
    }

    /// Every mistake in a file has its line, and a segment without lines is for nobody.
    #[test]
    fn file_has_a_line_for_each_grant() {
        let segments = ["cache".to_owned(), "weights".to_owned()];
        let text = "# fleet\n\ncache read decode-* other\n cache\twrite trainer-1\n";
        let all = parse(text, &segments).unwrap();
        assert_eq!(
            shown(&all["cache"]),
            ": read for decode-*, read for other, write for trainer-1"
        );
        assert_eq!(shown(&all["weights"]), ": nothing for anybody");
        for (text, words) in [
            ("other read *", "line 1: no segment is named 'other'"),
            ("\ncache look *", "line 2: write read, write or read-write"),
            ("cache", "line 1: write read, write or read-write"),
            ("cache read", "names no peers"),
            ("cache read a@b", "'a@b' names no peers"),
        ] {
            let error = parse(text, &segments).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    /// A file that could not be read for a while, or had a mistake, changes nothing once it is as before;
    /// nor does a change of other segments' lines, which would undo what an administrator changed.
    #[test]
    fn grants_change_with_their_own_lines_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("grants");
        let segments = ["a".to_owned(), "b".to_owned()];
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        };
        write("a read x\nb read x\n");
        let (mut file, _) = GrantsFile::open(&path, &segments).unwrap();
        for _ in 0..2 {
            fs::remove_file(&path).unwrap();
            assert!(file.read_again(&segments).unwrap().is_err());
            assert!(file.read_again(&segments).is_none(), "it is reported once");
            write("a what");
            assert!(file.read_again(&segments).unwrap().is_err());
            write("a read x\nb read x\n");
            assert!(file.read_again(&segments).is_none(), "it is as before");
        }
        write("# a comment\na read x\nb read x y\n");
        let changed = file.read_again(&segments).unwrap().unwrap();
        assert_eq!(changed.keys().collect::<Vec<_>>(), ["b"]);
        write("a read x\nb read x y\n");
        assert!(file.read_again(&segments).is_none(), "a comment is no line of a segment");
        write("b read x y\n");
        let changed = file.read_again(&segments).unwrap().unwrap();
        assert_eq!(changed.into_iter().collect::<Vec<_>>(), [("a".to_owned(), Vec::new())]);
    }

    /// A changed file is read again once, and one that others may write is refused.
    #[test]
    fn file_is_read_again_when_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("grants");
        let segments = ["cache".to_owned()];
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        };
        write("cache read a", 0o620);
        let error = GrantsFile::open(&path, &segments).err().unwrap();
        assert!(error.contains("chmod go-w"), "{error}");
        write("cache read a", 0o644);
        let (mut file, grants) = GrantsFile::open(&path, &segments).unwrap();
        assert_eq!(grants["cache"].len(), 1);
        assert!(file.read_again(&segments).is_none());
        write("cache read a b", 0o644);
        assert_eq!(file.read_again(&segments).unwrap().unwrap()["cache"].len(), 2);
        write("cache what", 0o644);
        assert!(file.read_again(&segments).unwrap().is_err());
        assert!(file.read_again(&segments).is_none(), "a mistake is reported once");
        write(&"#".repeat(FILE_BYTES_MAX + 1), 0o644);
        let error = file.read_again(&segments).unwrap().unwrap_err();
        assert!(error.contains("exceeds"), "{error}");
        assert!(file.read_again(&segments).is_none());
    }
}
