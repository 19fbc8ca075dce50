//! Checked-in texts that tests must reproduce.

use std::path::Path;

/// Compares `text` with `sim-tests/snapshots/NAME.txt`; `UPDATE_SNAPSHOTS=1` rewrites the file.
///
/// # Panics
/// The texts differ; the message has both.
pub fn assert_snapshot(name: &str, text: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots");
    assert_text(&folder.join(format!("{name}.txt")), text);
}

/// Compares `text` with a file of the repository, its path relative to the repository's root.
///
/// # Panics
/// The texts differ; the message has both.
pub fn assert_document(path: &str, text: &str) {
    assert_text(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path), text);
}

fn assert_text(path: &Path, text: &str) {
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        return;
    }
    let kept = std::fs::read_to_string(path).unwrap_or_else(|error| {
        panic!("{}: {error}; UPDATE_SNAPSHOTS=1 writes it", path.display())
    });
    assert!(
        kept == text,
        "{} differs; UPDATE_SNAPSHOTS=1 rewrites it\n--- kept\n{kept}\n--- now\n{text}",
        path.display()
    );
}
