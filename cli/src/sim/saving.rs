//! Explorations in files.

use crate::failure::Failure;
use crate::runtime::{self, Stop};
use handfast_sim::{Case, Exploration, Line, Saved};
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::NamedTempFile;

pub(super) fn open(file: &Path) -> Result<Saved<BufReader<File>>, Failure> {
    let opened = File::open(file).map_err(|error| Failure::file(file, "opening", error))?;
    Ok(Saved::open(BufReader::new(opened))?)
}

/// The world of a saved exploration, which it has as a replay line without events.
pub(super) fn case(saved: &Saved<BufReader<File>>) -> Result<Case, Failure> {
    Ok(saved.about().parse::<Line>()?.case)
}

/// Writes to a temporary file of the same folder, which replaces the file at the end.
pub(super) fn save(exploration: &Exploration<'_>, case: &Case, file: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::file(file, "writing", error);
    let about = Line::of_events(*case, &[], 0)?.to_string();
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.map_or_else(|| PathBuf::from("."), Path::to_owned);
    let mut temporary = NamedTempFile::new_in(folder).map_err(failed)?;
    exploration.save(&about, BufWriter::new(&mut temporary)).map_err(failed)?;
    temporary.persist(file).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Listens to the signals that ask the program to stop, which no longer end it.
pub(super) fn listen() -> Result<Arc<AtomicBool>, Failure> {
    let stopped = Arc::new(AtomicBool::new(false));
    let runtime = runtime::build()?;
    let entered = runtime.enter();
    let mut stop = Stop::listen()?;
    drop(entered);
    let flag = stopped.clone();
    std::thread::spawn(move || {
        runtime.block_on(stop.wait());
        flag.store(true, Ordering::Relaxed);
    });
    Ok(stopped)
}

pub(super) fn is_stopped(stopped: &Arc<AtomicBool>) -> bool {
    stopped.load(Ordering::Relaxed)
}
