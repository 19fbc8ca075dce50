//! `docs/conformance.md`.

use crate::differences::{Difference, deviations};
use crate::managed::{MANAGED_DIFFERENCES, ManagedDifference};
use crate::recording::Recording;
use crate::scenario::{Chapter, Scenario};
use std::fmt::Write;

const HEAD: &str = include_str!("page.md");

/// Returns the page: every scenario with the observations on each fabric.
pub fn page(
    chapters: &[Chapter],
    simulated: &Recording,
    kernels: &[Recording],
    differences: &[Difference],
) -> String {
    let mut page = HEAD.to_owned();
    for ManagedDifference { driver, scenario, line, cause } in MANAGED_DIFFERENCES {
        let _ = writeln!(page, "| {driver} | {scenario}: `{line}` | {cause} |");
    }
    let _ = writeln!(page, "\n## Results\n");
    summary(&mut page, simulated, kernels, differences);
    let _ = writeln!(
        page,
        "\n## Allowed differences\n\n| difference | cause | where |\n| --- | --- | --- |"
    );
    for Difference { id, cause, places } in differences {
        let places: Vec<_> =
            places.iter().map(|(scenario, step)| format!("{scenario}: `{step}`")).collect();
        let _ = writeln!(page, "| {id} | {cause} | {} |", places.join("<br>"));
    }
    for chapter in chapters {
        let _ = write!(page, "\n## {}\n\n| scenario | simulated |", chapter.title);
        for kernel in kernels {
            let _ = write!(page, " {} |", short(kernel));
        }
        let _ = writeln!(page, " verdict |\n| --- | --- |{} --- |", " --- |".repeat(kernels.len()));
        for scenario in &chapter.scenarios {
            row(&mut page, scenario, simulated, kernels, differences);
        }
    }
    page
}

/// Returns the part of a title that distinguishes kernels.
fn short(kernel: &Recording) -> &str {
    kernel.title.split(',').next().unwrap_or(&kernel.title)
}

fn summary(
    page: &mut String,
    simulated: &Recording,
    kernels: &[Recording],
    differences: &[Difference],
) {
    let lines: usize = simulated.played.iter().map(|(_, lines)| lines.len()).sum();
    let count = simulated.played.len();
    let _ = writeln!(page, "{count} scenarios with {lines} observations.\n");
    let _ = writeln!(page, "| fabric | scenarios equal | with an allowed difference | other |");
    let _ = writeln!(page, "| --- | --- | --- | --- |");
    for kernel in kernels {
        let mut counts = [0usize; 3];
        for (name, lines) in &simulated.played {
            let observed = kernel.lines(name).unwrap_or_default();
            let found = deviations(name, lines, observed, differences);
            let allowed = found.iter().all(|deviation| deviation.allowed.is_some());
            counts[if found.is_empty() {
                0
            } else if allowed {
                1
            } else {
                2
            }] += 1;
        }
        let [equal, allowed, other] = counts;
        let _ = writeln!(page, "| {} | {equal} | {allowed} | {other} |", kernel.title);
    }
}

fn row(
    page: &mut String,
    scenario: &Scenario,
    simulated: &Recording,
    kernels: &[Recording],
    differences: &[Difference],
) {
    let name = &scenario.name;
    let own = simulated.lines(name).unwrap_or_default();
    let _ = write!(page, "| **{name}**<br>{} | {} |", scenario.why, cell(own));
    let mut allowed: Vec<String> = Vec::new();
    for kernel in kernels {
        let lines = kernel.lines(name).unwrap_or_default();
        let found = deviations(name, own, lines, differences);
        let differing: Vec<String> = found.iter().map(|found| found.kernel.clone()).collect();
        let text = if found.is_empty() { "the same".to_owned() } else { cell(&differing) };
        let _ = write!(page, " {text} |");
        for deviation in found {
            let id = deviation.allowed.unwrap_or_else(|| "**differs**".to_owned());
            if !allowed.contains(&id) {
                allowed.push(id);
            }
        }
    }
    let verdict = if allowed.is_empty() { "equal".to_owned() } else { allowed.join(", ") };
    let _ = writeln!(page, " {verdict} |");
}

fn cell(lines: &[String]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| format!("`{line}`")).collect();
    lines.join("<br>")
}
