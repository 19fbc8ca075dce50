//! `handfast sim`: the protocol of this program in a simulated world.

mod case;
mod explore;
mod lines;
mod pool;
pub(crate) mod show;
mod sweep;
mod trace;
mod variants;

use crate::failure::Outcome;
use clap::{Args, Subcommand};

/// Explore, replay and draw what can happen between nodes, in a simulated world
///
/// The protocol is a state machine without I/O. Here the machine that ships is run in a world in
/// which messages cross, are lost or doubled, operations fail, nodes crash and restart. Whatever
/// breaks is one line, which replays, shrinks and draws itself.
#[derive(Args)]
#[command(after_long_help = EPILOGUE)]
pub(crate) struct Sim {
    #[command(subcommand)]
    command: Command,
}

const EPILOGUE: &str = concat!(
    "\
Try it:
  handfast sim explore                 every interleaving of a crossing open
  handfast sim sweep --minutes 1       random schedules with up to 12 faults
  handfast sim replay 'hf2:…'          what a printed line leads to
  handfast sim minimize 'hf2:…'        the same in as few events as can be found
  handfast sim timeline 'hf2:…'        its events, one line each
  handfast sim replay run.trace        what `serve --record run.trace` wrote

docs/simulation.md in the sources says what is simulated, what each oracle
means, and how to read a timeline.

",
    include_str!("sim/exit_codes.txt")
);

#[derive(Subcommand)]
enum Command {
    Explore(explore::Explore),
    Sweep(sweep::Sweep),
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
        Command::Replay(arguments) => lines::replay(arguments),
        Command::Minimize(arguments) => lines::minimize(arguments),
        Command::Timeline(arguments) => lines::timeline(arguments),
        Command::Redact(arguments) => trace::redact_file(&arguments),
        Command::Variants(arguments) => variants::run(arguments),
    }
}
