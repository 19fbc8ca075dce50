//! Observations, in both languages.

use crate::language::Language;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;

/// An observation with its values, in both languages. Its string form is the English one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    en: String,
    /// Empty if the values need no words.
    zh: String,
}

impl Observed {
    pub(crate) fn new(en: String, zh: String) -> Self {
        Self { en, zh }
    }

    /// Returns the text in one language.
    pub fn get(&self, language: Language) -> &str {
        let zh = if self.zh.is_empty() { &self.en } else { &self.zh };
        language.pick(&self.en, zh)
    }

    /// Returns the observation with a prefix in each language.
    pub(super) fn after(&self, en: &str, zh: &str) -> Self {
        let told = |before, language| format!("{before}{}", self.get(language));
        Self::new(told(en, Language::English), told(zh, Language::Chinese))
    }
}

impl From<String> for Observed {
    /// Creates an observation of values that need no words.
    fn from(values: String) -> Self {
        Self { en: values, zh: String::new() }
    }
}

impl Deref for Observed {
    type Target = str;

    fn deref(&self) -> &str {
        &self.en
    }
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.en)
    }
}

/// An [`Observed`] of two formats that name the same values.
macro_rules! said {
    ($en:literal, $zh:literal $(, $name:ident = $value:expr)* $(,)?) => {{
        $(let $name = $value;)*
        $crate::doctor::Observed::new(format!($en), format!($zh))
    }};
}
pub(crate) use said;
