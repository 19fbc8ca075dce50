//! The page of all machines and the exploration of each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Folders with the machines that ship.
const FOLDERS: [&str; 2] = ["core/src", "engine/src"];

/// Names of methods that take an input or yield an output.
const METHODS: [&str; 3] = ["fn handle_", "fn on_", "fn poll_"];

/// Every machine has a row, and every row a machine and an exploration or a reason.
#[test]
fn machines_are_explored_or_excused() {
    let found = faults(&machines(), &read("docs/explored.md"));
    assert!(found.is_empty(), "docs/explored.md: {found:#?}");
}

/// The check finds machines without a row, rows of nothing, and explorations of something else.
#[test]
fn machines_without_an_exploration_are_found() {
    let node = "core/src/node/machine.rs";
    let machines = BTreeMap::from([("Node".to_owned(), BTreeSet::from([node.to_owned()]))]);
    let found = |cells: &str| faults(&machines, &format!("| m | f |\n| --- | --- |\n{cells}\n"));
    let world = "`transport-sim/src/world.rs`";
    assert_eq!(found(&format!("| Node | `{node}` | {world} | |")), [""; 0]);
    assert_eq!(found(""), ["Node of core/src/node/machine.rs has no row"]);
    let neither = format!("| Node | `{node}` | | |");
    assert_eq!(found(&neither), ["Node has neither an exploration nor a reason"]);
    let other = format!("| Node | `{node}` | `sim/src/sharing.rs` | |");
    assert_eq!(found(&other), ["sim/src/sharing.rs does not name Node"]);
    let inside = format!("| Node | `{node}` | in Fleet | |");
    assert_eq!(found(&inside), ["Node is in Fleet, which is not explored"]);
    let gone = format!("| Node | `{node}` | {world} | |\n| Gone | `{node}` | | a long reason |");
    assert_eq!(found(&gone), ["core/src/node/machine.rs has no machine Gone"]);
}

fn faults(machines: &BTreeMap<String, BTreeSet<String>>, page: &str) -> Vec<String> {
    let rows: Vec<[String; 4]> = page.lines().filter_map(row).skip(2).collect();
    let explored = |name: &str| rows.iter().any(|row| row[0] == name && row[2].contains('/'));
    let mut found = Vec::new();
    for (name, files) in machines {
        if !rows.iter().any(|row| row[0] == *name) {
            let file = files.first().map_or("", String::as_str);
            found.push(format!("{name} of {file} has no row"));
        }
    }
    for [name, file, exploration, reason] in &rows {
        let text = read_or_nothing(file);
        if !["struct", "enum"].iter().any(|kind| has_word(&text, &format!("{kind} {name}"))) {
            found.push(format!("{file} has no machine {name}"));
        }
        if let Some(outer) = exploration.strip_prefix("in ") {
            if !explored(outer) {
                found.push(format!("{name} is in {outer}, which is not explored"));
            }
        } else if !exploration.is_empty() {
            if !has_word(&read_or_nothing(exploration), name) {
                found.push(format!("{exploration} does not name {name}"));
            }
        } else if reason.is_empty() {
            found.push(format!("{name} has neither an exploration nor a reason"));
        }
    }
    found
}

fn row(line: &str) -> Option<[String; 4]> {
    let cells = line.strip_prefix("| ")?.split('|').map(|cell| cell.trim().trim_matches('`'));
    let mut cells = cells.map(str::to_owned);
    let mut next = || cells.next().unwrap_or_default();
    Some([next(), next(), next(), next()])
}

/// Types with an inherent method of a machine, and their files.
fn machines() -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for folder in FOLDERS {
        for file in sources(&root().join(folder)) {
            let path = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let mut of = None;
            for line in text.lines() {
                if line.starts_with("mod tests") {
                    break;
                }
                if let Some(rest) = line.strip_prefix("impl") {
                    of = inherent(rest);
                } else if line.starts_with('}') {
                    of = None;
                }
                if let Some(name) = of.filter(|_| METHODS.iter().any(|it| line.contains(it))) {
                    found.entry(name.to_owned()).or_default().insert(path.clone());
                }
            }
        }
    }
    found
}

/// The type of an `impl` without a trait, from what follows the word.
fn inherent(rest: &str) -> Option<&str> {
    if rest.contains(" for ") {
        return None;
    }
    let mut depth = 0usize;
    let ends = |(_, letter): &(usize, char)| {
        match letter {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *letter == ' '
    };
    let (at, _) = rest.char_indices().find(ends)?;
    let named = rest.get(at + 1..)?;
    named.split(|c: char| !c.is_alphanumeric()).next().filter(|name| !name.is_empty())
}

/// Sources without tests and models, in the order of their names.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    let of = |path: PathBuf| {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
        match name.as_deref() {
            Some("tests" | "model") | None => Vec::new(),
            Some(_) if path.is_dir() => sources(&path),
            Some(_) if path.extension().is_some_and(|end| end == "rs") => vec![path],
            Some(_) => Vec::new(),
        }
    };
    paths.into_iter().flat_map(of).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    text.split(word).skip(1).any(ends)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn read_or_nothing(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
