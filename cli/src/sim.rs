//! `handfast sim`: the protocol of this program in a simulated world.

mod case;
mod estimate;
mod explore;
mod fleet;
mod lines;
mod pool;
mod saving;
pub(crate) mod show;
mod sweep;
mod trace;
mod variants;

use crate::failure::Outcome;
use crate::help;
use clap::{Args, Subcommand};

/// Explore, replay and draw the interleavings of nodes in a simulated world
///
/// The protocol is a state machine without I/O. The shipping machine runs in a world in which
/// messages cross, get lost or are duplicated, operations fail, and nodes crash and restart. Each
/// failure is one line that can be replayed, shrunk and drawn.
#[derive(Args)]
#[command(after_long_help = help::SIM)]
pub(crate) struct Sim {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Explore(explore::Explore),
    Sweep(sweep::Sweep),
    Fleet(fleet::Fleet),
    Replay(lines::Replay),
    Minimize(lines::Minimize),
    Timeline(lines::Timeline),
    Redact(trace::Redact),
    #[command(visible_alias = "mutants")]
    Variants(variants::Variants),
}

pub(crate) fn run(arguments: Sim) -> Outcome {
    match arguments.command {
        Command::Explore(arguments) => explore::run(arguments),
        Command::Sweep(arguments) => sweep::run(arguments),
        Command::Fleet(arguments) => fleet::run(arguments),
        Command::Replay(arguments) => lines::replay(arguments),
        Command::Minimize(arguments) => lines::minimize(arguments),
        Command::Timeline(arguments) => lines::timeline(arguments),
        Command::Redact(arguments) => trace::redact_file(&arguments),
        Command::Variants(arguments) => variants::run(arguments),
    }
}
