//! The page that links each rule to its code and to what fails without it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A row of the page: a rule, functions, variants, stories.
struct Row {
    rule: String,
    functions: Vec<String>,
    variants: Vec<String>,
    stories: Vec<String>,
}

/// Every rule has one row with code and with a variant or a story, every row has a rule, and every name
/// exists.
#[test]
fn rules_have_code_and_something_that_fails() {
    let found = orphans(&read("docs/handshake.md"), &read("docs/rules.md"));
    assert!(found.is_empty(), "docs/rules.md: {found:#?}");
}

/// The check finds a rule without a row, a row without a rule, and names that are gone.
#[test]
fn orphans_of_rules_are_found() {
    let rules = "## Rules\n- H1 **One.** \n- H2 **Two.** \n## Other\n- H9 **No rule.**\n";
    let head = "| rule | code | variants | stories |\n| --- | --- | --- | --- |\n";
    let sound = "| H1 | `core/src/node/machine.rs:send_ready` | SO-1 | |\n";
    let found = |rows: &str| orphans(rules, &format!("{head}{sound}{rows}"));
    let second = |code: &str, variants: &str, stories: &str| {
        found(&format!("| H2 | {code} | {variants} | {stories} |\n"))
    };
    let code = "`core/src/node/machine.rs:send_ready`";
    assert_eq!(second(code, "SO-1", ""), [""; 0]);
    assert_eq!(found(""), ["H2 has no row"]);
    assert_eq!(second(code, "", ""), ["nothing fails without H2"]);
    assert_eq!(second("", "SO-1", ""), ["no code keeps H2"]);
    assert_eq!(second(code, "SO-99", ""), ["H2 names SO-99, which is no variant"]);
    let gone = "`core/src/node/machine.rs:send_nothing`";
    let missing = "H2 names core/src/node/machine.rs:send_nothing, which does not exist";
    assert_eq!(second(gone, "SO-1", ""), [missing]);
    assert_eq!(second(code, "", gone), [missing]);
    let other = format!("| H2 | {code} | SO-1 | |\n| H3 | {code} | SO-1 | |\n");
    assert_eq!(found(&other), ["H3 is no rule"]);
}

fn orphans(rules: &str, page: &str) -> Vec<String> {
    let rules = names(rules);
    let rows = rows(page);
    let known = read("sim-tests/variants.tsv");
    let variants: BTreeSet<&str> =
        known.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
    let mut found = Vec::new();
    for rule in &rules {
        match rows.iter().filter(|row| row.rule == *rule).count() {
            0 => found.push(format!("{rule} has no row")),
            1 => {}
            count => found.push(format!("{rule} has {count} rows")),
        }
    }
    for Row { rule, functions, variants: named, stories } in &rows {
        if !rules.contains(rule) {
            found.push(format!("{rule} is no rule"));
        }
        if functions.is_empty() {
            found.push(format!("no code keeps {rule}"));
        }
        if named.is_empty() && stories.is_empty() {
            found.push(format!("nothing fails without {rule}"));
        }
        for id in named.iter().filter(|id| !variants.contains(id.as_str())) {
            found.push(format!("{rule} names {id}, which is no variant"));
        }
        for name in functions.iter().chain(stories).filter(|name| !exists(name)) {
            found.push(format!("{rule} names {name}, which does not exist"));
        }
    }
    found
}

/// The bold names of the list below the heading *Rules*.
fn names(page: &str) -> Vec<String> {
    let lines = page.lines().skip_while(|line| *line != "## Rules").skip(1);
    let lines = lines.take_while(|line| !line.starts_with("## "));
    let items = lines.filter_map(|line| line.strip_prefix("- "));
    let name = |item: &str| match item.strip_prefix("**") {
        Some(bold) => bold.split('.').next().map(str::to_owned),
        None => item.split(' ').next().map(str::to_owned),
    };
    items.filter_map(name).collect()
}

fn rows(page: &str) -> Vec<Row> {
    let lines = page.lines().filter(|line| line.starts_with("| ")).skip(2);
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let listed = |at: usize| {
            let names = cells.get(at).into_iter().flat_map(|cell| cell.split(", "));
            let names = names.map(|name| name.trim_matches('`').to_owned());
            names.filter(|name| !name.is_empty()).collect()
        };
        Row {
            rule: cells.get(1).copied().unwrap_or_default().to_owned(),
            functions: listed(2),
            variants: listed(3),
            stories: listed(4),
        }
    };
    lines.map(row).collect()
}

/// Whether a file of the repository has a function of that name.
fn exists(name: &str) -> bool {
    let Some((file, function)) = name.split_once(':') else { return false };
    let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
    text.contains(&format!("fn {function}("))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
