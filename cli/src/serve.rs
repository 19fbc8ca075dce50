//! `handfast serve`.

use crate::arguments::Serve;
use crate::failure::Failure;
use crate::{Outcome, size};
use handfast::{Access, Engine, Memory, Registration};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

/// Served when nothing else is asked for.
const DEFAULT_MEMORY: &str = "memory=64M";

pub(crate) async fn run(arguments: Serve) -> Outcome {
    let mut builder = Engine::builder().listen(&arguments.listen);
    if let Some(advertise) = &arguments.advertise {
        builder = builder.advertise(advertise);
    }
    if let Some(name) = &arguments.name {
        builder = builder.name(name);
    }
    let engine = builder.start().await?;
    let served = register_all(&engine, &arguments)?;
    println!("serving at {} as {}", engine.address(), engine.name());
    for (registration, source) in &served {
        let bytes = size::show(registration.span().len() as u64);
        println!("segment {} of {bytes}{source}", registration.name());
    }
    println!("ready");
    wait_for_end(arguments.until_stdin_ends).await?;
    engine.close().await;
    for (registration, _) in &served {
        let span = registration.span();
        span.memory().sync_file(span.offset(), span.len()).map_err(handfast::Error::from)?;
    }
    Ok(())
}

fn register_all(
    engine: &Engine,
    arguments: &Serve,
) -> Result<Vec<(Registration, String)>, Failure> {
    let access = if arguments.read_only { Access::READ } else { Access::READ_WRITE };
    let mut served = Vec::new();
    let default = [DEFAULT_MEMORY.to_owned()];
    let nothing = arguments.memory.is_empty() && arguments.file.is_empty();
    for text in if nothing { &default[..] } else { &arguments.memory } {
        let (name, bytes) = text.split_once('=').unwrap_or(("memory", text));
        let bytes = size::parse_positive(bytes).map_err(Failure::Usage)?;
        let memory = Memory::zeroed(usize::try_from(bytes).unwrap_or(usize::MAX));
        let memory = memory.map_err(handfast::Error::from)?;
        served.push((engine.register(name, memory.whole(), access)?, String::new()));
    }
    for text in &arguments.file {
        let (name, path) = named_path(text)?;
        let memory = map(&path, !arguments.read_only)?;
        let source = format!(", the file {}", path.display());
        served.push((engine.register(&name, memory.whole(), access)?, source));
    }
    Ok(served)
}

fn named_path(text: &str) -> Result<(String, PathBuf), Failure> {
    if let Some((name, path)) = text.split_once('=') {
        return Ok((name.to_owned(), path.into()));
    }
    let name = Path::new(text).file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::Usage(format!("'{text}' needs a name: NAME=PATH")))?;
    Ok((name.to_owned(), text.into()))
}

fn map(path: &Path, writable: bool) -> Result<Memory, Failure> {
    let opened = OpenOptions::new().read(true).write(writable).open(path);
    let file = opened.map_err(|error| Failure::file(path, "opening", error))?;
    let metadata = file.metadata().map_err(|error| Failure::file(path, "reading", error))?;
    if !metadata.is_file() || metadata.len() == 0 {
        let what = "is not a regular file with at least one byte".to_owned();
        return Err(Failure::FileState { path: path.to_owned(), what });
    }
    let bytes = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    Ok(Memory::map_file(&file, writable, bytes).map_err(handfast::Error::from)?)
}

async fn wait_for_end(until_stdin_ends: bool) -> Outcome {
    let failed = |error| Failure::System { what: "waiting for a signal", error };
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let stdin_ends = async {
        if !until_stdin_ends {
            std::future::pending::<()>().await;
        }
        let mut rest = Vec::new();
        // The end and an error both mean that whoever started us is gone.
        let _ = tokio::io::stdin().read_to_end(&mut rest).await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = stdin_ends => {}
    }
    Ok(())
}
