//! Observations as text, for storage and comparison.

use std::fmt;

/// The observations of one fabric in every scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The fabric.
    pub title: String,
    /// The names of scenarios with their observations.
    pub played: Vec<(String, Vec<String>)>,
}

impl Recording {
    /// Parses a [`Recording`]'s text.
    pub fn of_text(text: &str) -> Self {
        let mut recording = Self { title: String::new(), played: Vec::new() };
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(title) = line.strip_prefix("# ") {
                title.clone_into(&mut recording.title);
            } else if let Some(name) = line.strip_prefix("scenario ") {
                recording.played.push((name.to_owned(), Vec::new()));
            } else if let Some((_, lines)) = recording.played.last_mut() {
                lines.push(line.trim().to_owned());
            }
        }
        recording
    }

    /// Returns the observations of a scenario.
    pub fn lines(&self, scenario: &str) -> Option<&[String]> {
        let found = self.played.iter().find(|(name, _)| name == scenario);
        found.map(|(_, lines)| lines.as_slice())
    }
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {}", self.title)?;
        for (name, lines) in &self.played {
            writeln!(f, "\nscenario {name}")?;
            lines.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_comes_back_from_its_text() {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        let played = vec![
            ("one".to_owned(), lines(&["A create -> 0", "A state -> RESET"])),
            ("other".to_owned(), lines(&[])),
        ];
        let recording = Recording { title: "a fabric".to_owned(), played };
        let read = Recording::of_text(&recording.to_string());
        assert_eq!(read, recording);
        assert_eq!(read.lines("one").map(<[String]>::len), Some(2));
        assert_eq!(read.lines("third"), None);
    }
}
