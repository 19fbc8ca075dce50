//! `handfast get`.

use crate::copy::{self, CHUNK_BYTES, Copied, Copy, Window, open, verify};
use crate::failure::{Failure, Outcome};
use crate::place::Place;
use crate::progress::CopyProgress;
use crate::{files, help};
use clap::Args;
use handfast::{Engine, Segment};
use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use tokio::io::AsyncWriteExt;

/// Copy a node's memory into a file, and verify it
///
/// The file appears under its name only once it is complete and verified. An existing file is then
/// replaced, and its permissions are kept.
#[derive(Args)]
#[command(after_long_help = help::GET)]
pub(crate) struct Get {
    /// Source: `HOST:PORT[/SEGMENT][:OFFSET[,LENGTH]]` (default length: to the segment's end)
    pub(crate) node: Place,
    /// File to create or replace
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) copy: Copy,
}

/// Permissions of a new file before the process's mask, as with `open`.
const NEW_FILE_MODE: u32 = 0o666;
/// The permission bits that a replaced file keeps.
const KEPT_MODE: u32 = 0o777;

pub(crate) async fn run(mut arguments: Get) -> Outcome {
    arguments.copy.heed_environment()?;
    let target = Target::find(&arguments.file)?;
    let Get { node, copy, .. } = &arguments;
    let once = async |engine: &Engine| once(engine, &arguments, &target).await;
    copy::run("get", node, copy, once).await
}

async fn once(engine: &Engine, arguments: &Get, target: &Target) -> Result<Copied, Failure> {
    let Place { offset, length, .. } = arguments.node;
    // An empty range past the end is refused as well, since it would replace the file by an empty
    // one.
    let range =
        |segment: &Segment| length.unwrap_or_else(|| segment.bytes().saturating_sub(offset).max(1));
    let (segment, bytes) = open(engine, &arguments.node, &arguments.copy, range).await?;
    let partial = target.partial_file()?;
    let written = |error| writing(&arguments.file, error);
    let mut file = tokio::fs::File::from_std(partial.reopen().map_err(written)?);
    let mut progress = CopyProgress::start("get", bytes, arguments.copy.json);
    let mut window = Window::new(engine, arguments.copy.timeout);
    let (mut asked, mut kept, mut sum) = (0, 0, 0);
    while kept < bytes {
        while asked < bytes && !window.is_full() {
            let memory = window.memory().await?;
            let length = (CHUNK_BYTES as u64).min(bytes - asked) as usize;
            let span = memory.span(0, length)?;
            let batch = segment.read(&span, offset.saturating_add(asked));
            window.submit(batch, memory, length).await?;
            asked += length as u64;
        }
        let Some((memory, length)) = window.next().await? else { break };
        let mut chunk = vec![0; length];
        memory.copy_out(0, &mut chunk)?;
        window.recycle(memory);
        sum = crc32c::crc32c_append(sum, &chunk);
        file.write_all(&chunk).await.map_err(written)?;
        kept += length as u64;
        progress.add(length as u64);
    }
    file.flush().await.map_err(written)?;
    let took = progress.finish();
    verify(&segment, offset, bytes, sum, &arguments.copy).await?;
    partial.persist(&target.path).map_err(|error| writing(&arguments.file, error.error))?;
    Ok(Copied { segment, bytes, sum, took })
}

/// The file to create or replace.
struct Target {
    path: PathBuf,
    /// Permissions of the existing file.
    permissions: Option<Permissions>,
}

impl Target {
    /// Follows links, and refuses targets that a rename would destroy.
    fn find(path: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::file(path, "looking for it", error);
        match std::fs::metadata(path) {
            Ok(known) => {
                files::check(path, &known)?;
                let mode = known.permissions().mode() & KEPT_MODE;
                let permissions = Some(Permissions::from_mode(mode));
                Ok(Self { path: path.canonicalize().map_err(failed)?, permissions })
            }
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
            Err(_) if path.is_symlink() => {
                Err(Failure::state(path, "is a dangling link; name a file"))
            }
            Err(_) if path.as_os_str().as_bytes().ends_with(b"/") => {
                Err(Failure::state(path, "is a directory; name a file in it"))
            }
            Err(_) => Ok(Self { path: path.to_owned(), permissions: None }),
        }
    }

    /// Creates a file in the same folder, removed unless it is renamed.
    fn partial_file(&self) -> Result<NamedTempFile, Failure> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = parent.unwrap_or(Path::new("."));
        let made = tempfile::Builder::new()
            .prefix(".handfast-")
            .suffix(".part")
            .permissions(Permissions::from_mode(NEW_FILE_MODE))
            .tempfile_in(directory);
        // The system's error names the temporary file, which users do not know.
        let made = made.map_err(|error| match error.kind() {
            ErrorKind::NotFound => Failure::state(directory, "does not exist; create it first"),
            kind => Failure::file(directory, "creating a file in it", kind.into()),
        })?;
        if let Some(permissions) = &self.permissions {
            let set = made.as_file().set_permissions(permissions.clone());
            set.map_err(|error| writing(&self.path, error))?;
        }
        Ok(made)
    }
}

fn writing(path: &Path, error: std::io::Error) -> Failure {
    Failure::file(path, "writing", error)
}
