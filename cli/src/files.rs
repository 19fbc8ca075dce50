//! Local files: only regular ones are copied, served or replaced.

use crate::failure::Failure;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Opens a regular file. Other kinds are refused without opening them, since opening a pipe would
/// wait for its other end.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<(File, u64), Failure> {
    let known = std::fs::metadata(path).map_err(|error| Failure::file(path, "opening", error))?;
    check(path, &known)?;
    let file = options.open(path).map_err(|error| Failure::file(path, "opening", error))?;
    let metadata = file.metadata().map_err(|error| Failure::file(path, "reading", error))?;
    check(path, &metadata)?;
    Ok((file, metadata.len()))
}

/// Refuses everything but a regular file.
pub(crate) fn check(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    if metadata.is_file() {
        return Ok(());
    }
    let kind = kind(metadata.file_type());
    Err(Failure::state(path, &format!("is {kind}; name a regular file")))
}

fn kind(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "not a regular file",
    }
}
