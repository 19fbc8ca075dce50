//! Outcomes of mutants, and the file that keeps them.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Outcome of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// A test of the core failed.
    KilledByCore,
    /// Only a test of the explorer's package failed.
    KilledByExplorer,
    /// Twice the tests used up what processor time or memory they may, and none had failed.
    Endless,
    /// Every test passed.
    Survived,
    /// It does not build.
    Unviable,
}

impl Fate {
    const ALL: [(Self, &'static str); 5] = [
        (Self::KilledByCore, "killed-by-core"),
        (Self::KilledByExplorer, "killed-by-sim-tests"),
        (Self::Endless, "endless"),
        (Self::Survived, "survived"),
        (Self::Unviable, "unviable"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(fate, _)| *fate == self).map_or("", |(_, name)| name)
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(fate, _)| *fate)
    }
}

pub(super) type Fates = BTreeMap<String, Fate>;

/// Number of outcomes of each kind in the sample.
pub(super) fn tally(fates: &Fates, sample: &[&str]) -> String {
    let count = |fate| sample.iter().filter(|name| fates.get(**name) == Some(&fate)).count();
    let [core, explorer] = [Fate::KilledByCore, Fate::KilledByExplorer].map(count);
    let [endless, survived, unviable] = [Fate::Endless, Fate::Survived, Fate::Unviable].map(count);
    let viable = core + explorer + endless + survived;
    let per_mille = (1000 * (viable - survived)).checked_div(viable).unwrap_or(0);
    format!(
        "{} of {} run: {core} killed by handfast-core, {explorer} by sim-tests, {endless} endless, \
         {survived} survived, {unviable} unviable; {}.{} % of the viable noticed",
        viable + unviable,
        sample.len(),
        per_mille / 10,
        per_mille % 10
    )
}

/// The outcomes in a file: the digest of the mutated code, then one outcome and name per line.
pub(super) struct Record {
    path: PathBuf,
    digest: String,
    pub(super) fates: Fates,
}

impl Record {
    pub(super) fn read(path: &Path, digest: &str) -> Result<Self> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut lines = text.lines();
        let mut fates = Fates::new();
        if lines.next() == Some(digest) {
            for line in lines {
                let (fate, name) = line.split_once(' ').context("a line of the state file")?;
                let fate = Fate::named(fate).with_context(|| format!("'{fate}' is no fate"))?;
                fates.insert(name.to_owned(), fate);
            }
        }
        Ok(Self { path: path.to_owned(), digest: digest.to_owned(), fates })
    }

    pub(super) fn write(&self) -> Result<()> {
        let mut text = format!("{}\n", self.digest);
        for (name, fate) in &self.fates {
            text.push_str(&format!("{} {name}\n", fate.name()));
        }
        fs::write(&self.path, text).with_context(|| self.path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_build_says_nothing_and_what_does_not_end_was_noticed() {
        let sampled = ["a", "b", "c", "d", "e", "f", "g"];
        let fates = sampled.iter().map(ToString::to_string).zip(Fate::ALL.map(|(fate, _)| fate));
        assert_eq!(
            tally(&fates.collect(), &sampled),
            "5 of 7 run: 1 killed by handfast-core, 1 by sim-tests, 1 endless, 1 survived, \
             1 unviable; 75.0 % of the viable noticed"
        );
    }

    #[test]
    fn a_record_goes_on_until_a_mutated_file_changes() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("fates.txt");
        let mut record = Record::read(&path, "files 1").unwrap();
        record.fates.insert("x.rs:1:2: replace < with > in f".into(), Fate::Survived);
        record.write().unwrap();
        assert_eq!(Record::read(&path, "files 1").unwrap().fates, record.fates);
        assert_eq!(Record::read(&path, "files 2").unwrap().fates, Fates::new());
    }
}
