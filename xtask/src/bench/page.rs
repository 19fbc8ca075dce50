//! Formats the result as a page, and in brief for the terminal.

use super::figures::Figures;
use super::targets::Target;
use anyhow::Result;
use minijinja::{Environment, Value};
use std::fmt::Write as _;

/// Returns the page of handfast and the raw limits.
pub(super) fn page(figures: &Figures, targets: &[Target]) -> Result<String> {
    render(include_str!("page.md"), figures, targets)
}

/// Returns the page of the Python package and those of other engines.
pub(super) fn python(figures: &Figures, targets: &[Target]) -> Result<String> {
    render(include_str!("python.md"), figures, targets)
}

fn render(template: &str, figures: &Figures, targets: &[Target]) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_keep_trailing_newline(true);
    environment.add_filter("size", size);
    environment.add_filter("fixed", fixed);
    Ok(environment.render_str(template, figures.with(targets))?)
}

/// Formats a number with so many digits after the point; a missing one is a dash.
fn fixed(value: Value, digits: usize) -> String {
    match f64::try_from(value) {
        Ok(value) => format!("{value:.digits$}"),
        Err(_) => "-".to_owned(),
    }
}

fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// Formats the targets for a terminal.
pub(super) fn terminal(targets: &[Target]) -> String {
    let mut text = String::new();
    for target in targets {
        let (verdict, wanted) = (target.verdict(), target.wanted());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{verdict:12} {:10} {}: {}", wanted, target.what, target.found());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::measured;
    use super::super::targets::{judge, judge_packages};
    use super::*;

    /// Counts the rows of all tables, which have one width each.
    fn rows(page: &str) -> usize {
        let mut columns = None;
        let mut rows = 0;
        for line in page.lines() {
            let here = line.starts_with('|').then(|| line.matches('|').count());
            if let (Some(before), Some(here)) = (columns, here) {
                assert_eq!(before, here, "{line}");
                rows += 1;
            }
            columns = here;
        }
        rows
    }

    #[test]
    fn page_of_python_has_engines_calls_and_targets() {
        let figures = measured();
        let page = python(&figures, &judge_packages(&figures)).unwrap();
        assert_eq!(rows(&page), (1 + 6) + (1 + 5) + (1 + 3) + (1 + 2), "{page}");
        assert!(page.contains("| mooncake | 1 MiB | 32 | 0.50 | 16.0 | 23.0 | 1.50 | 2.00 |"));
        assert!(page.contains("\nLeft out: mooncake: no library\n"), "{page}");
        assert!(page.contains("| 0 | 32 | lists | 4.00 | 2.00 | 2.00 |"), "{page}");
    }

    #[test]
    fn every_table_of_the_page_has_rows_of_one_width() {
        let figures = measured();
        let page = page(&figures, &judge(&figures)).unwrap();
        let rows = rows(&page);
        assert!(rows > 32 + 2 + 10, "{rows} rows");
        assert!(
            page.contains(
                "| read | 4 KiB | 1 | 1 | 1.80 | 2.00 | 0.90 | same | same | 0.50 | 0.50 |"
            )
        );
        assert!(page.contains(
            "| write | 16 MiB | 32 | 4 | 1.80 | 2.00 | 0.90 | 2.50 | 0.72 | 0.50 | 0.50 |"
        ));
        assert!(!page.contains("| - "), "{page}");
    }

    #[test]
    fn the_terminal_sees_one_line_a_target() {
        let targets = judge(&measured());
        let text = terminal(&targets);
        assert_eq!(text.lines().count(), targets.len());
        assert!(text.lines().all(|line| line.starts_with("met")), "{text}");
    }
}
