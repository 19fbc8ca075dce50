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

/// Compares figures with `sim-tests/snapshots/NAME.txt`, whose lines are a name, a colon and numbers. A
/// number that is larger than there fails, also with `UPDATE_SNAPSHOTS=1`, which writes those that fell.
///
/// # Panics
/// A figure has risen, or the texts differ; the message has both.
pub fn assert_budget(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("snapshots/{name}.txt"));
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let risen = risen(&kept, text);
    assert!(risen.is_empty(), "{}: a budget may only fall: {risen:#?}", path.display());
    assert_snapshot(name, text);
}

/// Lines with a number that is larger than that of the same line before.
fn risen(kept: &str, now: &str) -> Vec<String> {
    let split = |line: &str| {
        let (name, figures) = line.split_once(": ")?;
        let figures = figures.split(", ").map(|figure| figure.parse::<u64>().ok());
        Some((name.to_owned(), figures.collect::<Option<Vec<u64>>>()?))
    };
    let before: Vec<(String, Vec<u64>)> = kept.lines().filter_map(split).collect();
    let has_risen = |line: &&str| {
        let Some((name, figures)) = split(line) else { return false };
        let earlier = before.iter().find(|(known, _)| *known == name);
        earlier.is_some_and(|(_, earlier)| figures.iter().zip(earlier).any(|(now, was)| now > was))
    };
    now.lines().filter(has_risen).map(str::to_owned).collect()
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

#[cfg(test)]
mod tests {
    use super::risen;

    #[test]
    fn figure_that_rises_is_found() {
        let kept = "incident: calls, failures\nnone, 0: 7, 2\nloss, 0: 9, 3\n";
        let found = |now: &str| risen(kept, now);
        assert_eq!(found(kept), [""; 0]);
        assert_eq!(found("none, 0: 6, 2\nloss, 0: 9, 0\nnew, 0: 99, 99\n"), [""; 0]);
        assert_eq!(found("none, 0: 6, 3\nloss, 0: 10, 3\n"), ["none, 0: 6, 3", "loss, 0: 10, 3"]);
    }
}
