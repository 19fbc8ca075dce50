//! Links between the pages of the repository.

use super::output_of;
use crate::report::{Outcome, as_skipped, of_findings};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Checks that every relative link of every tracked Markdown file leads to a tracked file or folder,
/// and every fragment to a heading.
pub(crate) fn check(root: &Path) -> Outcome {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z"]);
    let listing = output_of(git, &[0]).map_err(as_skipped)?;
    // Pages below `src` are templates: their links are valid at the place of the output.
    let is_page = |file: &str| file.ends_with(".md") && !file.contains("/src/");
    let text = |file: &str| fs::read_to_string(root.join(file)).ok().filter(|_| is_page(file));
    let files = listing.split('\0').filter(|file| !file.is_empty());
    let files: BTreeMap<PathBuf, String> =
        files.map(|file| (PathBuf::from(file), text(file).unwrap_or_default())).collect();
    let findings: Vec<_> = files
        .iter()
        .flat_map(|(file, text)| links_of(text).map(move |(line, link)| (file, line, link)))
        .filter_map(|(file, line, link)| {
            let fault = fault_of(&files, file, link)?;
            Some(format!("{}:{line}: {link}: {fault}", file.display()))
        })
        .collect();
    let links: usize = files.values().map(|text| links_of(text).count()).sum();
    of_findings(&findings, format!("links: {links}"))
}

/// Returns the reason why `link` of `file` is broken, if it is.
fn fault_of(files: &BTreeMap<PathBuf, String>, file: &Path, link: &str) -> Option<&'static str> {
    let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() {
        file.to_owned()
    } else {
        let Some(target) = normalized(&file.parent().unwrap_or(Path::new("")).join(path)) else {
            return Some("outside of the repository");
        };
        target
    };
    let is_folder = || files.keys().any(|file| file.starts_with(&target));
    match files.get(&target) {
        None if is_folder() && fragment.is_empty() => None,
        None => Some("no such file"),
        Some(_) if fragment.is_empty() => None,
        Some(text) if anchors_of(text).contains(fragment) => None,
        Some(_) => Some("no such heading"),
    }
}

/// Returns the links of a page to other pages, with their lines; links in code do not count.
fn links_of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text)
        .flat_map(|(number, line)| {
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            targets.map(move |(target, _)| (number, target))
        })
        .filter(|(_, target)| !target.contains("://") && !target.starts_with("mailto:"))
}

/// Returns the lines outside of fenced code, counted from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// Returns the fragments of a page's headings, as the common hosts of repositories generate them.
fn anchors_of(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let Some(heading) = line.strip_prefix('#').map(|line| line.trim_start_matches('#')) else {
            continue;
        };
        let kept = |c: char| c.is_alphanumeric() || "-_ ".contains(c);
        let slug: String = heading.trim().to_lowercase().chars().filter(|c| kept(*c)).collect();
        let slug = slug.replace(' ', "-");
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        let free =
            std::iter::once(slug.clone()).chain(numbered).find(|slug| !anchors.contains(slug));
        anchors.extend(free);
    }
    anchors
}

/// Returns `path` without `.` and `..`; `None` if it leaves the repository.
fn normalized(path: &Path) -> Option<PathBuf> {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name),
            Component::CurDir => {}
            Component::ParentDir if parts.pop() => {}
            _ => return None,
        }
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> BTreeMap<PathBuf, String> {
        let page = "# The map\n\n## Who ends what?\n\n## Who ends what?\n";
        BTreeMap::from([
            (PathBuf::from("README.md"), String::new()),
            (PathBuf::from("docs/map.md"), page.to_owned()),
            (PathBuf::from("core/src/lib.rs"), String::new()),
        ])
    }

    #[test]
    fn link_to_file_folder_and_heading_passes() {
        for link in ["map.md", "../core", "../README.md", "map.md#the-map", "#who-ends-what-1"] {
            assert_eq!(fault_of(&files(), Path::new("docs/map.md"), link), None, "{link}");
        }
    }

    #[test]
    fn broken_link_is_found_with_its_fault() {
        let faults = [
            ("maps.md", "no such file"),
            ("map.md#no", "no such heading"),
            ("#who-ends-what-2", "no such heading"),
            ("../../x", "outside of the repository"),
            ("../core#x", "no such file"),
        ];
        for (link, fault) in faults {
            assert_eq!(fault_of(&files(), Path::new("docs/map.md"), link), Some(fault), "{link}");
        }
    }

    #[test]
    fn link_in_code_or_to_another_host_is_none() {
        let text = "[a](x.md) and [b](https://c.d/e)\n```\n[c](y.md)\n```\n[d](z.md#q)\n";
        assert_eq!(links_of(text).collect::<Vec<_>>(), [(1, "x.md"), (5, "z.md#q")]);
    }
}
