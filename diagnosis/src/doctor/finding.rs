//! A problem found on a machine, with the observed values.

use super::observed::Observed;
use crate::language::Language;
use crate::page::filled;
use crate::problem::{Id, Severity, Side, problem};
use std::collections::BTreeMap;
use std::fmt;

/// A problem that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The problem.
    pub id: Id,
    /// Its severity here.
    pub severity: Severity,
    /// The side at fault.
    pub side: Side,
    /// The observation, with its values.
    pub observed: Observed,
    /// The device concerned, if any.
    pub device: Option<String>,
    /// Whether it prevents later probes.
    pub prevents: bool,
    values: BTreeMap<&'static str, String>,
    /// The remedy and the command here, if they differ from the catalogue's.
    cure: Option<(Observed, String)>,
}

impl Finding {
    /// Creates a finding with the catalogue's side and remedy.
    pub(super) fn new(id: Id, severity: Severity, observed: impl Into<Observed>) -> Self {
        let side = problem(id).side;
        let prevents = matches!(severity, Severity::Fatal | Severity::Degraded);
        let observed = observed.into();
        Self {
            id,
            severity,
            side,
            observed,
            device: None,
            prevents,
            values: BTreeMap::new(),
            cure: None,
        }
    }

    /// Creates a finding with the catalogue's observation, filled in with these values like the
    /// command.
    pub(super) fn seen(
        id: Id,
        severity: Severity,
        values: &[(&'static str, &dyn fmt::Display)],
    ) -> Self {
        let values: BTreeMap<_, _> =
            values.iter().map(|(name, value)| (*name, value.to_string())).collect();
        let text = |template| {
            filled(template, |name| {
                debug_assert!(values.contains_key(name), "{id:?} is seen without {name}");
                values.get(name).cloned()
            })
        };
        let seen = problem(id).seen;
        let observed = Observed::new(text(seen.en), text(seen.zh));
        Self { values, ..Self::new(id, severity, observed) }
    }

    pub(super) fn of_device(self, name: &str) -> Self {
        Self { device: Some(name.to_owned()), ..self }.with("device", name)
    }

    /// Sets a value of the remedy's command.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.values.insert(name, value.into());
        self
    }

    pub(super) fn at(self, side: Side) -> Self {
        Self { side, ..self }
    }

    /// Does not prevent later probes.
    pub(super) fn alone(self) -> Self {
        Self { prevents: false, ..self }
    }

    /// Prevents later probes, regardless of its severity.
    pub(super) fn preventing(self) -> Self {
        Self { prevents: true, ..self }
    }

    /// Replaces the catalogue's remedy.
    pub(super) fn cured_by(self, remedy: Observed, command: String) -> Self {
        Self { cure: Some((remedy, command)), ..self }
    }

    /// Returns the remedy in words.
    pub fn remedy(&self, language: Language) -> &str {
        let own = self.cure.as_ref().map(|(remedy, _)| remedy.get(language));
        own.unwrap_or_else(|| problem(self.id).remedy.get(language))
    }

    /// Returns the remedy as a command, with the observed values; unknown ones are in capitals.
    pub fn command(&self) -> String {
        if let Some((_, command)) = &self.cure {
            return command.clone();
        }
        filled(problem(self.id).command, |name| self.values.get(name).cloned())
    }
}

/// A [`Finding`] with the catalogue's observation of it: `seen!(ID, severity, name = value)`, or the
/// name alone of a variable with the value.
macro_rules! seen {
    (@value $name:ident) => { $name };
    (@value $name:ident $value:expr) => { $value };
    ($id:ident, $severity:expr $(, $name:ident $(= $value:expr)?)* $(,)?) => {
        $crate::doctor::Finding::seen(
            $crate::ids::$id,
            $severity,
            &[$((stringify!($name), &seen!(@value $name $($value)?))),*],
        )
    };
}
pub(super) use seen;
