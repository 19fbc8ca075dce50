//! Sockets in a directory: their names appear when they listen, and go with their processes.

use crate::sys::{self, Name};
use std::fs::FileType;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Maximum files of a directory looked at for sockets of ended processes, once at the start.
pub const FILES_PER_SWEEP: usize = 1_024;
/// Last ones of a socket that does not listen yet.
const UNREADY: &str = ".new";

/// First characters of the names of sockets of this host.
pub(crate) fn prefix(host: u64) -> String {
    let folded = (host >> 32) as u32 ^ host as u32;
    format!("handfast-{folded:08x}-")
}

/// Listens at a name. A file has its name from the moment in which it listens: one that refuses
/// connections belongs to no process any more.
pub(crate) fn listen(name: &Name<'_>) -> io::Result<OwnedFd> {
    let Name::File(path) = name else { return sys::listen(name) };
    let unready = PathBuf::from(format!("{}{UNREADY}", path.display()));
    let listener = sys::listen(&Name::File(&unready))?;
    match std::fs::rename(&unready, path) {
        Ok(()) => Ok(listener),
        Err(error) => {
            // The error of the name is the one to report.
            let _ = std::fs::remove_file(&unready);
            Err(error)
        }
    }
}

/// Removes the sockets of ended processes of this host from a directory, as far as this user may. Those
/// of living processes and of other hosts, and other files, stay.
pub(crate) fn sweep(directory: &Path, host: u64) {
    let prefix = prefix(host);
    let Ok(files) = directory.read_dir() else { return };
    for file in files.flatten().take(FILES_PER_SWEEP) {
        let name = file.file_name();
        let is_socket = file.file_type().is_ok_and(|kind: FileType| kind.is_socket());
        let is_named =
            name.to_str().is_some_and(|name| name.starts_with(&prefix) && !name.ends_with(UNREADY));
        if !is_socket || !is_named {
            continue;
        }
        let refused = sys::connect(&Name::File(&file.path()))
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if refused {
            // Another process may have been faster.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket without a process goes; one that listens, one that will, and other files stay.
    #[test]
    fn sweep_removes_sockets_of_ended_processes() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let named = |host, number: u64| format!("{}{number}", prefix(host));
        let living = listen(&Name::File(&at(&named(1, 1)))).unwrap();
        drop(listen(&Name::File(&at(&named(1, 2)))).unwrap());
        drop(sys::listen(&Name::File(&at(&named(1, 3)).with_extension("new"))).unwrap());
        drop(listen(&Name::File(&at(&named(2, 1)))).unwrap());
        drop(sys::listen(&Name::File(&at("other"))).unwrap());
        std::fs::write(at(&named(1, 4)), "a file").unwrap();
        sweep(directory.path(), 1);
        let left = directory.path().read_dir().unwrap().flatten().map(|file| file.file_name());
        let mut left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
        left.sort();
        let unready = format!("{}.new", named(1, 3));
        assert_eq!(left, [named(1, 1), unready, named(1, 4), named(2, 1), "other".to_owned()]);
        drop(living);
        sweep(directory.path(), 1);
        assert!(!at(&named(1, 1)).exists());
    }
}
