//! `handfast get`.

use crate::Outcome;
use crate::arguments::Get;
use crate::copy::{CHUNK_BYTES, Report, Window, client, verify, with_retries};
use crate::failure::Failure;
use crate::progress::Progress;
use handfast::{Engine, Segment};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::NamedTempFile;

/// Permissions of a new file before the process's mask, as `open` would give it.
const NEW_FILE_MODE: u32 = 0o666;

struct Copied {
    segment: Segment,
    bytes: u64,
    sum: u32,
    took: Duration,
}

pub(crate) async fn run(arguments: Get) -> Outcome {
    let arguments = Get { file: final_path(&arguments.file)?, ..arguments };
    let engine = client().await?;
    let copied = with_retries(&arguments.copy, || once(&engine, &arguments)).await;
    engine.close().await;
    let Copied { segment, bytes, sum, took } = copied?;
    let report = Report {
        operation: "get",
        segment: format!("{}/{}", segment.address(), segment.name()),
        offset: arguments.node.offset,
        bytes,
        milliseconds: took.as_millis() as u64,
        crc32c: format!("{sum:#010x}"),
        verified: !arguments.copy.no_verify,
    };
    report.print(took, arguments.copy.json)
}

/// Where the file will be: a symbolic link is followed, and only a regular file is replaced. A
/// device or a pipe must not be renamed over.
fn final_path(path: &Path) -> Result<PathBuf, Failure> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(path.to_owned()),
        Err(error) => return Err(Failure::file(path, "reading", error)),
    };
    if !metadata.is_file() {
        let what = "is not a regular file; name one to make or replace".to_owned();
        return Err(Failure::FileState { path: path.to_owned(), what });
    }
    std::fs::canonicalize(path).map_err(|error| Failure::file(path, "resolving", error))
}

async fn once(engine: &Engine, arguments: &Get) -> Result<Copied, Failure> {
    let segment = engine.open(&arguments.node.segment).await?;
    let offset = arguments.node.offset;
    let bytes = arguments.node.length.unwrap_or(segment.bytes().saturating_sub(offset));
    let partial = partial_file(&arguments.file)?;
    let file = Arc::new(partial.reopen().map_err(|error| writing(&arguments.file, error))?);
    let mut progress = Progress::start("get", bytes, arguments.copy.json);
    let mut window = Window::new(arguments.copy.timeout);
    let (mut asked, mut kept, mut sum) = (0, 0, 0);
    // An empty range still has to lie inside the segment.
    let mut first = true;
    while first || kept < bytes {
        while (first || asked < bytes) && !window.is_full() {
            first = false;
            let memory = window.memory()?;
            let length = CHUNK_BYTES.min((bytes - asked) as usize);
            let span = memory.span(0, length).map_err(handfast::Error::from)?;
            let batch = segment.read(&span, offset.saturating_add(asked));
            window.submit(batch, memory, length).await?;
            asked += length as u64;
        }
        let Some((memory, length)) = window.next().await? else { break };
        let mut chunk = vec![0; length];
        memory.copy_out(0, &mut chunk).map_err(handfast::Error::from)?;
        window.recycle(memory);
        sum = crc32c::crc32c_append(sum, &chunk);
        write(&arguments.file, file.clone(), kept, chunk).await?;
        kept += length as u64;
        progress.add(length as u64);
    }
    let took = progress.finish();
    verify(&segment, offset, bytes, sum, &arguments.copy).await?;
    partial.persist(&arguments.file).map_err(|error| writing(&arguments.file, error.error))?;
    Ok(Copied { segment, bytes, sum, took })
}

/// A file beside the final one, removed unless it is renamed.
fn partial_file(path: &Path) -> Result<NamedTempFile, Failure> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let made = tempfile::Builder::new()
        .prefix(".handfast-")
        .suffix(".part")
        .permissions(std::fs::Permissions::from_mode(NEW_FILE_MODE))
        .tempfile_in(directory.unwrap_or(Path::new(".")));
    made.map_err(|error| Failure::file(path, "making the file", error))
}

fn writing(path: &Path, error: std::io::Error) -> Failure {
    Failure::file(path, "writing", error)
}

/// Writes a chunk off the runtime's threads.
async fn write(path: &Path, file: Arc<File>, offset: u64, chunk: Vec<u8>) -> Result<(), Failure> {
    let written = tokio::task::spawn_blocking(move || file.write_all_at(&chunk, offset));
    let result = written.await.unwrap_or_else(|error| Err(error.into()));
    result.map_err(|error| writing(path, error))
}
