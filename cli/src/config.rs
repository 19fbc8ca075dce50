//! `handfast config`.

use crate::failure::Outcome;
use crate::lanes::warn;
use crate::output;
use clap::Args;
use handfast_environment::{Environment, Setting, Unknown, WithoutEffect};
use serde::Serialize;
use std::fmt::Write;

/// Show the environment variables that have an effect, and their values
///
/// Variables of the Mooncake Transfer Engine, and of etcdctl for an etcd. An option on the command
/// line precedes its variable; a value out of range is an error that names the range. Mooncake's
/// variables without an effect here are listed with the reason.
#[derive(Args)]
pub(crate) struct Config {
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    settings: Vec<Setting>,
    without_effect: Vec<WithoutEffect>,
    unknown: &'a [Unknown],
}

pub(crate) fn run(arguments: &Config) -> Outcome {
    let environment = Environment::read()?;
    warn(environment.warnings_of_bindings());
    let (settings, unknown) = (environment.settings(), &environment.unknown);
    let without_effect = environment.without_effect();
    if arguments.json {
        return output::say_json(&Report { settings, without_effect, unknown });
    }
    let mut text = String::new();
    for Setting { name, value, source, accepts, what } in settings {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} = {value} ({source}; {accepts})\n    {what}");
    }
    text += "of no effect here:\n";
    for WithoutEffect { name, set, why } in without_effect {
        let _ = writeln!(text, "{name}{}\n    {why}", if set { " (set)" } else { "" });
    }
    for unknown in unknown {
        let _ = writeln!(text, "{unknown}");
    }
    output::say(format_args!("{}", text.trim_end()))
}
