//! The file of a recording: a sequence of segments, each replayable alone. The oldest ones are
//! dropped.

use crate::line::{LINE_BYTES_MAX, MAGIC, header};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Default number of bytes that a recording keeps.
pub const BYTES_DEFAULT: u64 = 16 << 20;
/// Minimum number of bytes that a recording can be configured to keep: a few segments.
pub const BYTES_MIN: u64 = 1 << 20;
/// Maximum number of bytes that a recording can be configured to keep.
pub const BYTES_MAX: u64 = 1 << 30;
/// Bytes of the entries of one segment, or twice its state if that is more, so that states are at
/// most a third of a trace.
pub const SEGMENT_BYTES: u64 = 64 << 10;
/// Divisor of the bound: the share of the newest segments, kept when old ones are dropped.
const NEWEST_SHARE: u64 = 2;
/// Divisor of the bound: the share of segments with a failure and of their neighbours.
const FAILED_SHARE: u64 = 4;
/// File mode: a trace contains tokens of lanes and addresses of peers, so only its owner can read
/// it.
const MODE: u32 = 0o600;
/// The writer named in the first line.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");
/// Extension of an earlier recording at the same path.
const EARLIER: &str = "old";
/// Extension of the new file while old segments are dropped.
const PARTIAL: &str = "part";

/// The file of a recording and its bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    /// The file. An earlier recording at the path is renamed, with the suffix `.old`; any other
    /// file is refused.
    pub path: PathBuf,
    /// Bytes to keep, from [`BYTES_MIN`] to [`BYTES_MAX`]. Past the bound old segments are dropped,
    /// those with a failure last. The file may exceed it by one segment.
    pub bytes_max: u64,
}

impl RecordOptions {
    /// Records to `path` and keeps [`BYTES_DEFAULT`].
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), bytes_max: BYTES_DEFAULT }
    }
}

/// The error that prevents or ends a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bound is out of range.
    #[error("a recording keeps {BYTES_MIN} to {BYTES_MAX} bytes, not {bytes}")]
    Bytes {
        /// The requested bound.
        bytes: u64,
    },
    /// The path is occupied by a file other than a recording, which is left unchanged.
    #[error("{path} exists and is not a recording; name another file", path = .path.display())]
    Occupied {
        /// The path.
        path: PathBuf,
    },
    /// The state of the node, which begins every segment, exceeds the maximum length of a line.
    #[error(
        "the state of the node takes {bytes} bytes, more than the {LINE_BYTES_MAX} of a recording: \
         record with smaller limits"
    )]
    State {
        /// Bytes of the state.
        bytes: usize,
    },
    /// A system call on the file failed.
    #[error("{path}: {doing} failed: {error}", path = .path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The step that failed.
        doing: &'static str,
        /// The error of the system.
        error: String,
    },
}

/// Position of a segment in the file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    bytes: u64,
    failed: bool,
}

/// The file.
#[derive(Debug)]
pub(crate) struct Ring {
    options: RecordOptions,
    file: File,
    /// Ordered by age, oldest first; never empty once the first has begun.
    segments: Vec<Segment>,
    /// Bytes of the file.
    bytes: u64,
    /// Bytes of the last segment's state.
    state_bytes: u64,
    dropped: u64,
}

impl Ring {
    pub(crate) fn create(options: RecordOptions) -> Result<Self, RecordError> {
        let bytes = options.bytes_max;
        if !(BYTES_MIN..=BYTES_MAX).contains(&bytes) {
            return Err(RecordError::Bytes { bytes });
        }
        set_earlier_aside(&options.path)?;
        let failed = |error| file_error(&options.path, "creating the recording", &error);
        let mut file = open_new(&options.path).map_err(failed)?;
        let header = header(PROGRAM);
        file.write_all(header.as_bytes()).map_err(failed)?;
        let bytes = header.len() as u64;
        Ok(Self { options, file, segments: Vec::new(), bytes, state_bytes: 0, dropped: 0 })
    }

    /// Whether the next entry should begin a segment.
    pub(crate) fn wants_segment(&self) -> bool {
        let Some(last) = self.segments.last() else { return true };
        last.bytes - self.state_bytes >= SEGMENT_BYTES.max(self.state_bytes.saturating_mul(2))
    }

    /// Begins a segment with the node's state, after dropping old ones if the file is too long.
    pub(crate) fn begin_segment(&mut self, state: &str) -> Result<(), RecordError> {
        if self.bytes > self.options.bytes_max {
            self.drop_old_segments()?;
        }
        let segment = Segment { offset: self.bytes, bytes: 0, failed: false };
        self.segments.push(segment);
        self.state_bytes = state.len() as u64;
        self.append(state)
    }

    pub(crate) fn append(&mut self, lines: &str) -> Result<(), RecordError> {
        let written = self.file.write_all(lines.as_bytes());
        written.map_err(|error| file_error(&self.options.path, "recording", &error))?;
        self.bytes += lines.len() as u64;
        if let Some(last) = self.segments.last_mut() {
            last.bytes += lines.len() as u64;
        }
        Ok(())
    }

    /// Marks the current segment as failed, so that it is kept for longer.
    pub(crate) fn mark_failed(&mut self) {
        if let Some(last) = self.segments.last_mut() {
            last.failed = true;
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of segments dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Copies the kept segments into a new file and renames it over this one. A process killed
    /// meanwhile leaves one of the two.
    fn drop_old_segments(&mut self) -> Result<(), RecordError> {
        let kept = kept(&self.segments, self.options.bytes_max);
        let path = with_extension(&self.options.path, PARTIAL);
        let failed =
            |error: io::Error| file_error(&path, "dropping old segments of the recording", &error);
        // A killed process may have left a partial file.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut file = open_new(&path).map_err(failed)?;
        let header = header(PROGRAM);
        file.write_all(header.as_bytes()).map_err(failed)?;
        let mut offset = header.len() as u64;
        let mut segments = Vec::with_capacity(kept.len());
        for segment in kept {
            self.file.seek(SeekFrom::Start(segment.offset)).map_err(failed)?;
            io::copy(&mut (&self.file).take(segment.bytes), &mut file).map_err(failed)?;
            segments.push(Segment { offset, ..segment });
            offset += segment.bytes;
        }
        std::fs::rename(&path, &self.options.path).map_err(failed)?;
        self.dropped += (self.segments.len() - segments.len()) as u64;
        (self.file, self.segments, self.bytes) = (file, segments, offset);
        Ok(())
    }
}

/// Returns the segments to keep, oldest first: the newest ones, and older ones with a failure in
/// them or in a neighbour.
fn kept(segments: &[Segment], bytes_max: u64) -> Vec<Segment> {
    let mut room = bytes_max / NEWEST_SHARE;
    let mut room_failed = bytes_max / FAILED_SHARE;
    let mut kept = Vec::new();
    for (at, segment) in segments.iter().enumerate().rev() {
        let near = &segments[at.saturating_sub(1)..(at + 2).min(segments.len())];
        if segment.bytes <= room {
            room -= segment.bytes;
            kept.push(*segment);
            continue;
        }
        // The newest segments are contiguous.
        room = 0;
        if near.iter().any(|segment| segment.failed) && segment.bytes <= room_failed {
            room_failed -= segment.bytes;
            kept.push(*segment);
        }
    }
    kept.reverse();
    kept
}

fn open_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create_new(true).mode(MODE).open(path)
}

fn with_extension(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

/// Renames an earlier recording, so that a process restarted by a supervisor does not destroy it.
fn set_earlier_aside(path: &Path) -> Result<(), RecordError> {
    let occupied = || RecordError::Occupied { path: path.to_owned() };
    let failed = |error: io::Error| file_error(path, "looking for an earlier recording", &error);
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if !metadata.is_file() => return Err(occupied()),
        Ok(_) => {}
    }
    let mut begin = Vec::new();
    let opened = File::open(path).map_err(failed)?;
    opened.take(MAGIC.len() as u64).read_to_end(&mut begin).map_err(failed)?;
    if !begin.is_empty() && begin != MAGIC.as_bytes() {
        return Err(occupied());
    }
    std::fs::rename(path, with_extension(path, EARLIER)).map_err(failed)
}

fn file_error(path: &Path, doing: &'static str, error: &io::Error) -> RecordError {
    RecordError::File { path: path.to_owned(), doing, error: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::{Segment, kept};

    fn numbers(failed: &[usize], bytes_max: u64) -> Vec<u64> {
        let segment =
            |at: usize| Segment { offset: at as u64, bytes: 10, failed: failed.contains(&at) };
        let segments: Vec<_> = (0..20).map(segment).collect();
        kept(&segments, bytes_max).iter().map(|segment| segment.offset).collect()
    }

    #[test]
    fn kept_segments_are_the_newest_and_failed_neighbourhoods() {
        assert_eq!(numbers(&[], 100), [15, 16, 17, 18, 19]);
        assert_eq!(numbers(&[3], 120), [2, 3, 4, 14, 15, 16, 17, 18, 19]);
        // The window around the oldest failure is dropped first.
        assert_eq!(numbers(&[3, 9], 160), [4, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, 19]);
        assert_eq!(numbers(&[19], 100), [15, 16, 17, 18, 19]);
    }
}
