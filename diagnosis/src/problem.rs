//! The types of the catalogue.

use crate::language::Language;
use serde::{Serialize, Serializer};
use std::fmt;

/// The name of a problem, such as `NET-REFUSED`. It never changes its meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub(crate) &'static str);

impl Id {
    /// Its text.
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// Parses an id, ignoring case.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        problems().iter().map(|problem| problem.id).find(|id| id.0.eq_ignore_ascii_case(text))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The requested operation cannot work.
    Fatal,
    /// It works slowly, in part, or with some peers only.
    Degraded,
    /// It works now, and will fail or slow down later.
    Risk,
    /// It could not be determined.
    CannotTell,
    /// Informational.
    Info,
}

impl Severity {
    /// Returns the severity in one or two words.
    pub fn word(self, language: Language) -> &'static str {
        let (english, chinese) = match self {
            Self::Fatal => ("fatal", "致命"),
            Self::Degraded => ("degraded", "降级"),
            Self::Risk => ("risk", "风险"),
            Self::CannotTell => ("cannot tell", "无法判断"),
            Self::Info => ("info", "信息"),
        };
        language.pick(english, chinese)
    }
}

/// The role of a message in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It names the event itself.
    Cause,
    /// It reports a failure whose cause is in another message.
    Dispatcher,
    /// It follows from an earlier error.
    Consequence,
}

/// The side to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The side that logged the message.
    Local,
    /// Its peer.
    Remote,
    /// The combination of the two sides.
    Both,
    /// The message alone is not sufficient.
    Unknown,
}

impl Side {
    /// Returns the side in words.
    pub fn words(self, language: Language) -> &'static str {
        let (english, chinese) = match self {
            Self::Local => ("local: the side that printed this", "本端:打印该消息的一侧"),
            Self::Remote => {
                ("remote: the peer of the side that printed this", "对端:打印该消息一侧的对端")
            }
            Self::Both => ("both: the combination of the two sides", "双方:两侧的配置是否匹配"),
            Self::Unknown => ("unknown: this message is not sufficient", "未知:仅凭此消息无法判断"),
        };
        language.pick(english, chinese)
    }
}

/// A text in both languages.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// English.
    pub en: &'static str,
    /// Chinese.
    pub zh: &'static str,
}

impl Text {
    /// Returns the text in one language.
    pub fn get(self, language: Language) -> &'static str {
        language.pick(self.en, self.zh)
    }
}

/// A problem of the catalogue.
#[derive(Debug)]
pub struct Problem {
    /// Its name.
    pub id: Id,
    /// Its usual severity.
    pub severity: Severity,
    /// The role of its messages in a log.
    pub role: Role,
    /// The side that is usually at fault.
    pub side: Side,
    /// The part of the catalogue.
    pub section: Text,
    /// The file of that part, in the catalogue and in the printed form, without its extension.
    pub file: &'static str,
    /// Its title.
    pub title: Text,
    /// Its description and consequences.
    pub what: Text,
    /// Its causes.
    pub cause: Text,
    /// The remedy.
    pub remedy: Text,
    /// The remedy, or its first step, as a command. Words in braces, such as `{netdev}`, are to be
    /// filled in.
    pub command: &'static str,
    /// The check that it is solved.
    pub verify: Text,
    /// The doctor's observation, with words in braces for its values; empty if there are several.
    pub(crate) seen: Text,
    /// More specific problems, by a word for a device in the log.
    pub refine: &'static [(&'static str, Id)],
    /// Its messages: `*` is a gap, a name in braces an error number.
    pub messages: &'static [&'static str],
    /// The messages as pieces in normal form.
    pub(crate) patterns: &'static [&'static [&'static str]],
}

include!(concat!(env!("OUT_DIR"), "/problems.rs"));

/// All problems, in the order of the catalogue.
pub fn problems() -> &'static [Problem] {
    PROBLEMS
}

/// Returns the problem of an id.
pub fn problem(id: Id) -> &'static Problem {
    // Ids come only from this table, so the search never falls back to the first entry.
    problems().iter().find(|problem| problem.id == id).unwrap_or(&PROBLEMS[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_unique_and_lead_to_their_problem() {
        let mut seen = BTreeSet::new();
        for entry in problems() {
            assert!(seen.insert(entry.id), "{}", entry.id);
            assert!(
                entry
                    .id
                    .0
                    .bytes()
                    .all(|b| b == b'-' || b.is_ascii_uppercase() || b.is_ascii_digit())
            );
            assert_eq!(problem(entry.id).title.en, entry.title.en);
            assert_eq!(Id::parse(&entry.id.0.to_lowercase()), Some(entry.id));
        }
        assert_eq!(Id::parse("NO-SUCH"), None);
        assert!(seen.len() >= 110, "{}", seen.len());
    }

    #[test]
    fn every_page_says_all_there_is_to_say_in_both_languages() {
        let is_han = |c: char| ('\u{4e00}'..='\u{9fff}').contains(&c);
        for entry in problems() {
            for text in
                [entry.section, entry.title, entry.what, entry.cause, entry.remedy, entry.verify]
            {
                assert!(
                    !text.en.is_empty() && !text.en.contains(is_han),
                    "{}: {}",
                    entry.id,
                    text.en
                );
                assert!(text.zh.contains(is_han), "{}: {}", entry.id, text.zh);
            }
            assert!(!entry.messages.is_empty(), "{}", entry.id);
        }
    }

    #[test]
    fn a_page_refers_to_pages_that_exist() {
        for entry in problems() {
            for text in [entry.what, entry.cause, entry.remedy] {
                for word in [text.en, text.zh]
                    .join(" ")
                    .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
                {
                    let is_id = word.contains('-')
                        && word.starts_with(|c: char| c.is_ascii_uppercase())
                        && word
                            .bytes()
                            .all(|b| b == b'-' || b.is_ascii_uppercase() || b.is_ascii_digit());
                    let known = Id::parse(word).is_some() || word == "SR-IOV";
                    assert!(!is_id || known, "{} refers to {word}", entry.id);
                }
            }
        }
    }
}
