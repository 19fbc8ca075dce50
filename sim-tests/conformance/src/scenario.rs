//! Scenarios as text.

/// A scenario for both fabrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Its name, unique among all.
    pub name: String,
    /// Its purpose, for people.
    pub why: String,
    /// Its steps, one per line.
    pub steps: Vec<String>,
}

/// Scenarios on one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chapter {
    /// Its subject.
    pub title: String,
    /// Its scenarios.
    pub scenarios: Vec<Scenario>,
}

/// An invalid line of a file of scenarios.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {cause}: '{text}'")]
pub struct Malformed {
    /// Its number, counted from 1.
    pub line: usize,
    /// The defect.
    pub cause: &'static str,
    /// Its text.
    pub text: String,
}

/// Returns every chapter, in the order of the page.
///
/// # Panics
/// Panics if a built-in file is malformed.
pub fn chapters() -> Vec<Chapter> {
    let files = [
        include_str!("../scenarios/1-states.txt"),
        include_str!("../scenarios/2-attributes.txt"),
        include_str!("../scenarios/3-posting.txt"),
        include_str!("../scenarios/4-statuses.txt"),
        include_str!("../scenarios/5-losing-work.txt"),
        include_str!("../scenarios/6-retries.txt"),
        include_str!("../scenarios/7-sequence-numbers.txt"),
        include_str!("../scenarios/8-disturbances.txt"),
    ];
    let read = |text| chapter(text).unwrap_or_else(|error| panic!("{error}"));
    files.into_iter().map(read).collect()
}

/// Parses a file: `chapter TITLE`, then scenarios of `scenario NAME`, one or more lines `why:
/// WORDS` and steps. Empty lines separate scenarios, and lines that begin with `#` are comments.
///
/// # Errors
/// The first invalid line.
pub fn chapter(text: &str) -> Result<Chapter, Malformed> {
    let mut chapter = Chapter { title: String::new(), scenarios: Vec::new() };
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let malformed = |cause| Malformed { line: index + 1, cause, text: line.to_owned() };
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(title) = line.strip_prefix("chapter ") {
            title.clone_into(&mut chapter.title);
        } else if let Some(name) = line.strip_prefix("scenario ") {
            if chapter.scenarios.iter().any(|scenario| scenario.name == name) {
                return Err(malformed("a name twice"));
            }
            let (why, steps) = (String::new(), Vec::new());
            chapter.scenarios.push(Scenario { name: name.to_owned(), why, steps });
        } else {
            let scenario = chapter.scenarios.last_mut().ok_or(malformed("before a scenario"))?;
            match line.strip_prefix("why: ") {
                Some(_) if !scenario.steps.is_empty() => return Err(malformed("after a step")),
                Some(why) if scenario.why.is_empty() => why.clone_into(&mut scenario.why),
                Some(why) => scenario.why = format!("{} {why}", scenario.why),
                None => scenario.steps.push(line.to_owned()),
            }
        }
    }
    Ok(chapter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chapter_has_a_title_and_scenarios_of_reasons_and_steps() {
        let text = "chapter Of one thing\n# a remark\n\nscenario first\nwhy: because\nwhy: of it\n\
                    A create\nscenario second\nwhy: so\nconnect\nA state\n";
        let chapter = chapter(text).unwrap();
        assert_eq!(chapter.title, "Of one thing");
        assert_eq!(chapter.scenarios[0].why, "because of it");
        assert_eq!(chapter.scenarios[1].steps, ["connect", "A state"]);
    }

    #[test]
    fn what_is_out_of_place_is_named_with_its_line() {
        let wrong = |text: &str| chapter(text).unwrap_err().to_string();
        assert_eq!(wrong("A create\n"), "line 1: before a scenario: 'A create'");
        assert!(wrong("scenario a\nA create\nwhy: x\n").starts_with("line 3: after a step"));
        assert!(wrong("scenario a\nscenario a\n").starts_with("line 2: a name twice"));
    }
}
