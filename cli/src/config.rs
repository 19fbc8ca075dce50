//! `handfast config`.

use crate::environment::{Environment, Setting};
use crate::{Outcome, output};
use clap::Args;
use serde::Serialize;
use std::fmt::Write;

/// Show which variables of the environment are honoured, and what they say
///
/// They are those of the Mooncake Transfer Engine. An option on the command line goes before its
/// variable; a value out of range is an error that says the range.
#[derive(Args)]
pub(crate) struct Config {
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    settings: Vec<Setting>,
    without_effect: &'a [String],
    unknown: &'a [String],
}

pub(crate) fn run(arguments: &Config) -> Outcome {
    let environment = Environment::read()?;
    let Environment { without_effect, unknown, .. } = &environment;
    let settings = environment.settings();
    if arguments.json {
        return output::say_json(&Report { settings, without_effect, unknown });
    }
    let mut text = String::new();
    for Setting { name, value, source, accepts, what } in settings {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} = {value} ({source}; {accepts})\n    {what}");
    }
    for (names, what) in [(without_effect, "set, of no effect here"), (unknown, "set, not known")] {
        if !names.is_empty() {
            let _ = writeln!(text, "{what}: {}", names.join(", "));
        }
    }
    output::say(format_args!("{}", text.trim_end()))
}
