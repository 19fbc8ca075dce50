//! `handfast sim variants`.

use crate::help;
use clap::Args;

/// Check that each broken variant of the rules is found
///
/// Each variant is the shipping machine with one rule broken. It is explored until an oracle
/// breaks, and run with random schedules. The shipping rules must hold in the same world. The
/// variants are patches in the sources and not part of this program: in a checkout it runs `cargo
/// xtask variants`, which builds a program with them.
#[derive(Args)]
#[command(after_long_help = help::SIM_VARIANTS)]
pub(crate) struct Variants {
    /// Ids of variants, such as SO-1 [default: all]
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

#[cfg(not(feature = "variants"))]
pub(super) use build::run;

/// A program without the variants has cargo build one with them.
#[cfg(not(feature = "variants"))]
mod build {
    use super::Variants;
    use crate::failure::{Failure, Outcome};
    use std::env;
    use std::os::unix::process::CommandExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// Folder of the patches in a checkout.
    const PATCHES: &str = "sim-tests/variants";

    pub(crate) fn run(arguments: Variants) -> Outcome {
        let here = env::current_dir().unwrap_or_default();
        let Some(root) = checkout(&here) else {
            return Err(Failure::Usage(format!(
                "the variants are patches in the sources, and {} is not in a checkout of them: run \
                 it in one, or `cargo xtask variants` there",
                here.display()
            )));
        };
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root).args(["xtask", "variants"]).args(arguments.ids);
        let error = cargo.args(arguments.json.then_some("--json")).exec();
        Err(Failure::System { what: "running cargo xtask variants", error })
    }

    /// Returns the root of the checkout that contains a folder.
    fn checkout(folder: &Path) -> Option<PathBuf> {
        let mut folders = folder.ancestors();
        let is_root = |folder: &&Path| {
            folder.join("xtask/Cargo.toml").is_file() && folder.join(PATCHES).is_dir()
        };
        folders.find(is_root).map(Path::to_owned)
    }
}

#[cfg(feature = "variants")]
pub(super) fn run(arguments: Variants) -> crate::failure::Outcome {
    table::run(&arguments.ids, arguments.json)
}

#[cfg(feature = "variants")]
mod table {
    use super::super::show::{columns, grouped};
    use crate::failure::Failure;
    use crate::failure::Outcome;
    use crate::output;
    use handfast_sim::Case;
    use handfast_sim::mutant_search::{self, VariantSearch, searches};
    use handfast_sim::variants::{CANARY, find};
    use serde::Serialize;

    fn named(id: &str) -> Result<VariantSearch, Failure> {
        let other = || searches().into_iter().find(|search| search.id().eq_ignore_ascii_case(id));
        find(id).map(VariantSearch::Handshake).or_else(other).ok_or_else(|| {
            Failure::Usage(format!("there is no variant '{id}'; without one all are listed"))
        })
    }

    /// The line that replays the shortest schedule; variants of one machine have none.
    fn line(search: VariantSearch) -> Option<String> {
        let VariantSearch::Handshake(entry) = search else { return None };
        let (found, _) = mutant_search::explore(entry).ok()?;
        found.line(&Case::of_variant(entry)).ok().map(|line| line.to_string())
    }

    #[derive(Serialize)]
    struct Row {
        id: &'static str,
        found: bool,
        breaks: Option<&'static str>,
        states: Option<usize>,
        shortest_events: Option<usize>,
        random_schedules: Option<u64>,
        oracle: Option<String>,
        line: Option<String>,
        escaped: Option<String>,
    }

    impl Row {
        fn of(search: VariantSearch, json: bool) -> Self {
            let hunted = search.run();
            let caught = hunted.as_ref().ok();
            Self {
                id: search.id(),
                found: caught.is_some(),
                breaks: caught.map(|caught| caught.breaks),
                states: caught.map(|caught| caught.states),
                shortest_events: caught.map(|caught| caught.events),
                random_schedules: caught.map(|caught| caught.schedules),
                oracle: caught.map(|caught| caught.oracle.clone()),
                line: if json { line(search) } else { None },
                escaped: hunted.as_ref().err().map(ToString::to_string),
            }
        }

        fn text(&self, narrow: bool) -> String {
            let number = |number: Option<u64>| number.map_or("-".to_owned(), grouped);
            let states = number(self.states.map(|states| states as u64));
            let events = number(self.shortest_events.map(|events| events as u64));
            let random = number(self.random_schedules);
            let ending = self.oracle.as_ref().or(self.escaped.as_ref());
            let ending = ending.map(String::as_str).unwrap_or_default();
            let id = self.id;
            if narrow {
                return format!(
                    "{id}: {ending}\n  {states} states, {events} events\n  {random} schedules"
                );
            }
            format!("{id:<10} {states:>9} {events:>9} {random:>9}  {ending}")
        }
    }

    /// Minimum columns of the table.
    const WIDE: usize = 62;

    pub(super) fn run(ids: &[String], json: bool) -> Outcome {
        let chosen: Vec<VariantSearch> = match ids {
            [] => searches(),
            ids => ids.iter().map(|id| named(id)).collect::<Result<_, _>>()?,
        };
        if let Err(escape) = mutant_search::mutant_search(&CANARY) {
            return Err(Failure::NotFoundOut(format!("{}: {escape}", CANARY.id)));
        }
        let narrow = columns().is_some_and(|columns| columns < WIDE);
        if !json && !narrow {
            let [id, states, events, random] = ["variant", "states", "shortest", "random"];
            output::say(format_args!("{id:<10} {states:>9} {events:>9} {random:>9}  oracle"))?;
        }
        let mut rows = Vec::new();
        for search in chosen {
            let row = Row::of(search, json);
            if !json {
                output::say(format_args!("{}", row.text(narrow)))?;
            }
            rows.push(row);
        }
        let missed: Vec<&str> = rows.iter().filter(|row| !row.found).map(|row| row.id).collect();
        if json {
            output::say_json(&rows)?;
        } else {
            output::say(format_args!("{} of {} found", rows.len() - missed.len(), rows.len()))?;
        }
        if missed.is_empty() { Ok(()) } else { Err(Failure::NotFoundOut(missed.join(", "))) }
    }
}
