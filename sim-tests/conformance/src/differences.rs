//! Known differences of the fabrics, and the comparison line by line.

use crate::recording::Recording;

/// Maximum number of known differences.
pub const DIFFERENCES_MAX: usize = 10;

/// A known difference with a cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub id: String,
    /// The cause, for people.
    pub cause: String,
    /// The scenarios and steps whose observations differ.
    pub places: Vec<(String, String)>,
}

/// A step whose observations differ, or that only one side has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deviation {
    /// The scenario.
    pub scenario: String,
    /// The simulated line.
    pub simulated: String,
    /// The kernel's line.
    pub kernel: String,
    /// The known difference that permits it.
    pub allowed: Option<String>,
}

/// Returns the known differences.
///
/// # Panics
/// Panics if their file is malformed.
pub fn differences() -> Vec<Difference> {
    parse(include_str!("../differences.txt")).unwrap_or_else(|error| panic!("{error}"))
}

/// Reads `difference ID`, lines of `cause: WORDS` and of `at: SCENARIO / STEP`.
fn parse(text: &str) -> Result<Vec<Difference>, String> {
    let mut all: Vec<Difference> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(id) = line.strip_prefix("difference ") {
            all.push(Difference { id: id.to_owned(), ..Difference::default() });
            continue;
        }
        let current = all.last_mut().ok_or_else(|| format!("before a difference: '{line}'"))?;
        if let Some(cause) = line.strip_prefix("cause: ") {
            current.cause = format!("{} {cause}", current.cause).trim().to_owned();
        } else if let Some(place) = line.strip_prefix("at: ") {
            let (scenario, step) =
                place.split_once(" / ").ok_or_else(|| format!("no step: '{line}'"))?;
            current.places.push((scenario.to_owned(), step.to_owned()));
        } else {
            return Err(format!("not understood: '{line}'"));
        }
    }
    Ok(all)
}

/// Returns the step of a line, without the observation.
fn step(line: &str) -> &str {
    line.split_once(" -> ").map_or(line, |(step, _)| step)
}

/// Returns every step of a scenario whose observations differ.
pub fn deviations(
    scenario: &str,
    simulated: &[String],
    kernel: &[String],
    differences: &[Difference],
) -> Vec<Deviation> {
    let count = simulated.len().max(kernel.len());
    let line = |lines: &[String], place: usize| lines.get(place).cloned().unwrap_or_default();
    let pairs = (0..count).map(|place| (line(simulated, place), line(kernel, place)));
    let differing = pairs.filter(|(one, other)| one != other);
    let deviation = |(simulated, kernel): (String, String)| {
        let at = |place: &&(String, String)| {
            place.0 == scenario && [&simulated, &kernel].iter().all(|line| step(line) == place.1)
        };
        let allows = |difference: &&Difference| difference.places.iter().any(|place| at(&place));
        let allowed = differences.iter().find(allows).map(|difference| difference.id.clone());
        Deviation { scenario: scenario.to_owned(), simulated, kernel, allowed }
    };
    differing.map(deviation).collect()
}

/// Returns the findings: unknown differences, missing scenarios, and known differences that no
/// kernel shows.
pub fn findings(
    simulated: &Recording,
    kernels: &[Recording],
    differences: &[Difference],
) -> Vec<String> {
    let mut findings = Vec::new();
    let mut seen: Vec<(String, String)> = Vec::new();
    for kernel in kernels {
        for (name, lines) in &simulated.played {
            let Some(observed) = kernel.lines(name) else {
                findings.push(format!("{name}: not recorded of {}", kernel.title));
                continue;
            };
            for deviation in deviations(name, lines, observed, differences) {
                seen.push((name.clone(), step(&deviation.kernel).to_owned()));
                if deviation.allowed.is_none() {
                    let Deviation { simulated, kernel: other, .. } = deviation;
                    let title = &kernel.title;
                    findings.push(format!("{name}\n  simulated: {simulated}\n  {title}: {other}"));
                }
            }
        }
        let strange = kernel.played.iter().filter(|(name, _)| simulated.lines(name).is_none());
        findings.extend(strange.map(|(name, _)| format!("{name}: of {} alone", kernel.title)));
    }
    for difference in differences {
        let unused = difference.places.iter().filter(|place| !seen.contains(place));
        findings.extend(unused.map(|(scenario, step)| {
            format!(
                "the difference {} is allowed and not there: {scenario} / {step}",
                difference.id
            )
        }));
        if difference.places.is_empty() || difference.cause.is_empty() {
            findings.push(format!("the difference {} has no place or no cause", difference.id));
        }
    }
    if differences.len() > DIFFERENCES_MAX {
        findings.push(format!("{} differences are allowed", differences.len()));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(title: &str, observed: &str) -> Recording {
        let lines = vec!["A create -> 0".to_owned(), format!("A state -> {observed}")];
        Recording { title: title.to_owned(), played: vec![("one".to_owned(), lines)] }
    }

    const ALLOWED: &str = "difference slow\ncause: it is\ncause: slow\nat: one / A state\n";

    /// An unlisted difference is found, and a listed one must occur.
    #[test]
    fn unlisted_difference_is_found() {
        let simulated = recording("simulated", "RTS");
        let (equal, other) = (recording("6.1", "RTS"), recording("6.1", "ERR"));
        let allowed = parse(ALLOWED).unwrap();
        let findings =
            |kernels: &[Recording], allowed: &[Difference]| findings(&simulated, kernels, allowed);
        assert_eq!(findings(std::slice::from_ref(&equal), &[]), [""; 0]);
        assert!(findings(std::slice::from_ref(&other), &[])[0].contains("6.1: A state -> ERR"));
        assert_eq!(findings(std::slice::from_ref(&other), &allowed), [""; 0]);
        assert_eq!(findings(&[equal.clone(), other], &allowed), [""; 0]);
        assert!(findings(&[equal], &allowed)[0].contains("slow is allowed and not there"));
    }

    #[test]
    fn scenarios_of_one_side_alone_are_found() {
        let simulated = recording("simulated", "RTS");
        let none = Recording { title: "6.1".to_owned(), played: Vec::new() };
        assert_eq!(findings(&simulated, std::slice::from_ref(&none), &[]).len(), 1);
        assert_eq!(findings(&none, &[simulated], &[]), ["one: of simulated alone"]);
    }

    #[test]
    fn the_list_has_causes_and_places_and_nothing_else() {
        let allowed = parse(ALLOWED).unwrap();
        assert_eq!(allowed[0].cause, "it is slow");
        assert_eq!(allowed[0].places, [("one".to_owned(), "A state".to_owned())]);
        assert!(parse("cause: x\n").is_err());
        assert!(parse("difference a\nwhere: x\n").is_err());
        assert!(parse("difference a\nat: nowhere\n").is_err());
    }
}
