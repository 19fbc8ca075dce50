//! The languages of the catalogue.

use std::str::FromStr;

/// A language of the catalogue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Language {
    /// English.
    #[default]
    English,
    /// Simplified Chinese.
    Chinese,
}

impl Language {
    /// Returns the language of the variables `LC_ALL`, `LC_MESSAGES` and `LANG`; the first one that
    /// is set and not empty applies.
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
        let value = ["LC_ALL", "LC_MESSAGES", "LANG"].iter().find_map(set);
        let is_chinese = value.is_some_and(|value| value.starts_with("zh"));
        if is_chinese { Self::Chinese } else { Self::English }
    }

    /// Returns one of two words.
    pub fn pick<'a>(self, english: &'a str, chinese: &'a str) -> &'a str {
        match self {
            Self::English => english,
            Self::Chinese => chinese,
        }
    }
}

impl FromStr for Language {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "en" => Ok(Self::English),
            "zh" => Ok(Self::Chinese),
            _ => Err("there are 'en' and 'zh'".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_decides() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs.to_vec();
            let value = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1);
            Language::of_environment(|name| value(name).map(str::to_owned))
        };
        assert_eq!(of(&[]), Language::English);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8")]), Language::Chinese);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8"), ("LC_ALL", "C")]), Language::English);
        assert_eq!(of(&[("LANG", "zh_CN"), ("LC_ALL", "")]), Language::Chinese);
        assert_eq!("zh".parse(), Ok(Language::Chinese));
        assert!("fr".parse::<Language>().is_err());
    }
}
