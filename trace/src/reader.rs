//! The reader of a trace.

use crate::error::{TraceCause, TraceError};
use crate::line::{LINE_BYTES_MAX, Line, MAGIC, VERSION, checksum};
use std::io::{BufRead, Read};

/// Maximum length of a trace, in bytes: twice the largest bound of a recorder.
pub const TRACE_BYTES_MAX: u64 = 2 << 30;
/// Maximum length of the first line, in bytes.
const FIRST_BYTES_MAX: usize = 128;
/// Maximum length of a reason that an error quotes, in characters: it may repeat a text of the
/// file.
const REASON_CHARACTERS_MAX: usize = 512;

/// Reads a trace line by line and verifies the checksum and the end of every line.
pub struct TraceReader<R> {
    from: R,
    line: u64,
    bytes: u64,
    program: String,
    allow_cut: bool,
    cut: bool,
    ended: bool,
}

impl<R: BufRead> TraceReader<R> {
    /// Reads the first line. With `allow_cut` an incomplete last line is omitted, and
    /// [`TraceReader::was_cut`] reports it; otherwise it is an error.
    ///
    /// # Errors
    /// [`TraceError`] if the file is not a trace of this version.
    pub fn new(from: R, allow_cut: bool) -> Result<Self, TraceError> {
        let mut reader = Self {
            from,
            line: 1,
            bytes: 0,
            program: String::new(),
            allow_cut: false,
            cut: false,
            ended: false,
        };
        let mut bytes = Vec::new();
        let mut first = (&mut reader.from).take(FIRST_BYTES_MAX as u64);
        first.read_until(b'\n', &mut bytes).map_err(|error| reader.wrong(io(&error)))?;
        if bytes.is_empty() {
            return Err(reader.wrong(TraceCause::Empty));
        }
        let words = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let rest = words.strip_prefix(MAGIC.as_bytes()).and_then(|rest| rest.strip_prefix(b" "));
        let rest = rest.ok_or_else(|| reader.wrong(TraceCause::NotATrace))?;
        let rest = str::from_utf8(rest).map_err(|_| reader.wrong(TraceCause::NotATrace))?;
        let (version, program) = rest.split_once(' ').unwrap_or((rest, ""));
        let found: Option<u32> = version.parse().ok();
        let found = found.ok_or_else(|| reader.wrong(TraceCause::NotATrace))?;
        if found != VERSION {
            return Err(reader.wrong(TraceCause::Version { found }));
        }
        if bytes.last() != Some(&b'\n') {
            return Err(reader.wrong(TraceCause::Cut));
        }
        reader.program = program.to_owned();
        reader.allow_cut = allow_cut;
        Ok(reader)
    }

    /// Returns the version of handfast that recorded the trace.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Returns the number of the last line read, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Whether the last line was incomplete and was omitted.
    pub fn was_cut(&self) -> bool {
        self.cut
    }

    /// Whether the file may end early: the caller allows it, and the end of the engine was not
    /// read.
    pub(crate) fn may_be_cut(&self) -> bool {
        self.allow_cut && !self.ended
    }

    /// Returns the next line; `None` at the end.
    ///
    /// # Errors
    /// [`TraceError`] if the line is damaged, cut off, or not of this version.
    pub fn next_line(&mut self) -> Result<Option<Line>, TraceError> {
        self.line += 1;
        let mut bytes = Vec::new();
        let mut limited = (&mut self.from).take(LINE_BYTES_MAX as u64 + 1);
        limited.read_until(b'\n', &mut bytes).map_err(|error| self.wrong(io(&error)))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if self.ended {
            return Err(self.wrong(TraceCause::Order("data follows the end entry")));
        }
        self.bytes += bytes.len() as u64;
        if self.bytes > TRACE_BYTES_MAX {
            return Err(self.wrong(TraceCause::TooLong));
        }
        if bytes.pop() != Some(b'\n') {
            return match bytes.len() {
                LINE_BYTES_MAX.. => Err(self.wrong(TraceCause::LineTooLong)),
                _ if self.allow_cut => {
                    self.cut = true;
                    Ok(None)
                }
                _ => Err(self.wrong(TraceCause::Cut)),
            };
        }
        let text = str::from_utf8(&bytes).map_err(|_| self.wrong(TraceCause::NotText))?;
        let (json, found) =
            text.rsplit_once(' ').ok_or_else(|| self.wrong(TraceCause::Checksum))?;
        if checksum(json) != found {
            return Err(self.wrong(TraceCause::Checksum));
        }
        let line = serde_json::from_str(json).map_err(|error| self.wrong(malformed(&error)))?;
        self.ended = matches!(line, Line::End { .. });
        Ok(Some(line))
    }

    /// Creates an error at the last line read.
    pub fn wrong(&self, cause: TraceCause) -> TraceError {
        TraceError { line: self.line, cause }
    }
}

fn malformed(error: &serde_json::Error) -> TraceCause {
    TraceCause::Json(error.to_string().chars().take(REASON_CHARACTERS_MAX).collect())
}

fn io(error: &std::io::Error) -> TraceCause {
    TraceCause::Io(error.to_string())
}
