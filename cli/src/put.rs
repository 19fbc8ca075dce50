//! `handfast put`.

use crate::copy::{self, CHUNK_BYTES, Copied, Copy, Window, open, verify};
use crate::failure::{Failure, Outcome};
use crate::place::Place;
use crate::progress::CopyProgress;
use crate::{files, help};
use clap::Args;
use handfast::{Engine, Segment};
use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

/// Copy a file into a node's memory, and verify it there
///
/// The whole file is copied. Its length is checked before the first byte moves.
#[derive(Args)]
#[command(after_long_help = help::PUT)]
pub(crate) struct Put {
    /// Regular file to copy
    pub(crate) file: PathBuf,
    /// Target: `HOST:PORT[/SEGMENT][:OFFSET]`
    pub(crate) node: Place,
    #[command(flatten)]
    pub(crate) copy: Copy,
}

pub(crate) async fn run(mut arguments: Put) -> Outcome {
    arguments.copy.heed_environment()?;
    if arguments.node.length.is_some() {
        let text = "the length of a put is the file's; give HOST:PORT[/SEGMENT][:OFFSET]";
        return Err(Failure::Usage(text.into()));
    }
    let (file, bytes) = files::open(&arguments.file, File::options().read(true))?;
    let Put { node, copy, .. } = &arguments;
    let once = async |engine: &Engine| once(engine, &arguments, &file, bytes).await;
    copy::run("put", node, copy, once).await
}

async fn once(
    engine: &Engine,
    arguments: &Put,
    file: &File,
    bytes: u64,
) -> Result<Copied, Failure> {
    let (segment, _) = open(engine, &arguments.node, &arguments.copy, |_| bytes).await?;
    let mut progress = CopyProgress::start("put", bytes, arguments.copy.json);
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
    Ok(Copied { segment, bytes, sum, took })
}

/// Writes the file into the segment and returns its checksum.
async fn write_all(
    engine: &Engine,
    segment: &Segment,
    arguments: &Put,
    file: &File,
    bytes: u64,
    mut on_moved: impl FnMut(u64),
) -> Result<u32, Failure> {
    let file =
        file.try_clone().map_err(|error| Failure::file(&arguments.file, "reading", error))?;
    let mut file = tokio::fs::File::from_std(file);
    // An earlier attempt may have stopped anywhere.
    let begun = file.rewind().await;
    begun.map_err(|error| Failure::file(&arguments.file, "reading", error))?;
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
        let mut chunk = vec![0; length];
        let read = file.read_exact(&mut chunk).await;
        read.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                let whole = done + length as u64;
                let what = format!("became shorter than {whole} bytes while it was copied");
                Failure::state(&arguments.file, &what)
            }
            _ => Failure::file(&arguments.file, "reading", error),
        })?;
        sum = crc32c::crc32c_append(sum, &chunk);
        memory.copy_in(0, &chunk)?;
        let span = memory.span(0, length)?;
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
