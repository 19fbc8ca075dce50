//! `handfast put`.

use crate::copy::{CHUNK_BYTES, Copy, Report, Window, client, open, verify, with_retries};
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::lanes::Warnings;
use crate::place::Place;
use crate::progress::Progress;
use crate::record::warn_if_incomplete;
use clap::Args;
use handfast::{Engine, Segment};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PUT_EPILOGUE: &str = concat!(
    "\
Examples:
  handfast put FILE 127.0.0.1:7411
  handfast put FILE 10.0.0.7:7411/cache:64M --timeout 2s --retries 10

",
    include_str!("places.txt"),
    "\n",
    include_str!("exit_codes.txt")
);

/// Copy a file into a node's memory, and verify it there
///
/// The whole file is copied. That it fits is checked before the first byte moves.
#[derive(Args)]
#[command(after_long_help = PUT_EPILOGUE)]
pub(crate) struct Put {
    /// File to copy; a regular one
    pub(crate) file: PathBuf,
    /// Target: `HOST:PORT[/SEGMENT][:OFFSET]`
    pub(crate) node: Place,
    #[command(flatten)]
    pub(crate) copy: Copy,
}

pub(crate) async fn run(mut arguments: Put) -> Outcome {
    arguments.copy.heed_environment()?;
    let path = &arguments.file;
    if arguments.node.length.is_some() {
        let text = "the length of a put is the file's; give HOST:PORT[/SEGMENT][:OFFSET]";
        return Err(Failure::Usage(text.into()));
    }
    let (file, bytes) = files::open(path, File::options().read(true))?;
    let file = Arc::new(file);
    let engine = client(&arguments.copy).await?;
    let mut warnings = Warnings::default();
    warnings.tell(&engine);
    let copied = with_retries(&arguments.copy, || once(&engine, &arguments, &file, bytes)).await;
    warnings.tell(&engine);
    engine.close().await;
    warn_if_incomplete(&engine);
    let (segment, sum, took) = copied?;
    let moved = (bytes, sum, took);
    let report = Report::new("put", &engine, &segment, &arguments.node, moved, &arguments.copy);
    report.print(took, arguments.copy.json)
}

async fn once(
    engine: &Engine,
    arguments: &Put,
    file: &Arc<File>,
    bytes: u64,
) -> Result<(Segment, u32, std::time::Duration), Failure> {
    let (segment, _) = open(engine, &arguments.node, &arguments.copy, |_| bytes).await?;
    let mut progress = Progress::start("put", bytes, arguments.copy.json);
    let mut written = 0;
    let on_moved = |moved: u64| {
        written += moved;
        progress.add(moved);
    };
    let sum = write_all(engine, &segment, arguments, file, bytes, on_moved).await;
    let sum = sum.map_err(|failure| match written {
        0 => failure,
        _ => Failure::HalfWay { failure: Box::new(failure), written, bytes },
    })?;
    let took = progress.finish();
    verify(&segment, arguments.node.offset, bytes, sum, &arguments.copy).await?;
    Ok((segment, sum, took))
}

/// Writes the file into the segment and returns its checksum.
async fn write_all(
    engine: &Engine,
    segment: &Segment,
    arguments: &Put,
    file: &Arc<File>,
    bytes: u64,
    mut on_moved: impl FnMut(u64),
) -> Result<u32, Failure> {
    let mut window = Window::new(engine, arguments.copy.timeout);
    let (mut sum, mut done) = (0, 0);
    while done < bytes {
        if window.is_full()
            && let Some((memory, moved)) = window.next().await?
        {
            on_moved(moved as u64);
            window.recycle(memory);
        }
        let memory = window.memory().await?;
        let length = (CHUNK_BYTES as u64).min(bytes - done) as usize;
        let chunk = read(&arguments.file, file.clone(), done, length).await?;
        sum = crc32c::crc32c_append(sum, &chunk);
        memory.copy_in(0, &chunk).map_err(handfast::Error::from)?;
        let span = memory.span(0, length).map_err(handfast::Error::from)?;
        let batch = segment.write(&span, arguments.node.offset.saturating_add(done));
        window.submit(batch, memory, length).await?;
        done += length as u64;
    }
    while let Some((memory, moved)) = window.next().await? {
        on_moved(moved as u64);
        window.recycle(memory);
    }
    Ok(sum)
}

/// Reads a chunk off the runtime's threads.
async fn read(
    path: &Path,
    file: Arc<File>,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, Failure> {
    let read = tokio::task::spawn_blocking(move || {
        let mut chunk = vec![0; length];
        file.read_exact_at(&mut chunk, offset).map(|()| chunk)
    });
    let result = read.await.unwrap_or_else(|error| Err(error.into()));
    result.map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => Failure::FileState {
            path: path.to_owned(),
            what: format!(
                "became shorter than {} bytes while it was copied",
                offset + length as u64
            ),
        },
        _ => Failure::file(path, "reading", error),
    })
}
