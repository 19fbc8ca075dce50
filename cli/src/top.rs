//! `handfast top`: the traffic of a node by peer, updated continuously.

mod ask;
mod table;

use crate::failure::Outcome;
use crate::terminal::{self, Window};
use crate::{help, output, size};
use clap::Args;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Show the traffic of a node, peer by peer
///
/// Polls a node that serves with --metrics.
#[derive(Args)]
#[command(after_long_help = help::TOP)]
pub(crate) struct Top {
    /// Address given to the node with --metrics
    #[arg(value_name = "HOST:PORT")]
    node: String,
    /// Time between two tables
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = size::parse_duration)]
    interval: Duration,
    /// Number of tables [default: 1; unlimited in a terminal]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
}

pub(crate) fn run(arguments: &Top) -> Outcome {
    let is_terminal = std::io::stdout().is_terminal();
    let rounds = arguments.rounds.or((!is_terminal).then_some(1));
    let mut before = ask::state(&arguments.node)?;
    let mut since = Instant::now();
    let mut shown = 0;
    while rounds.is_none_or(|rounds| shown < rounds) {
        std::thread::sleep(arguments.interval);
        let now = ask::state(&arguments.node)?;
        let elapsed = since.elapsed();
        since = Instant::now();
        let elsewhere = || Window { columns: terminal::style(None).columns, rows: usize::MAX };
        let window = Window::of(std::io::stdout()).unwrap_or_else(elsewhere);
        let table = table::draw(&before, &now, elapsed, window);
        if is_terminal {
            // Moves the cursor home and clears the rest of each line, which flickers less than
            // clearing the screen.
            let table = table.replace('\n', "\x1b[K\n");
            output::say_whole(format_args!("\x1b[H{table}\x1b[J"))?;
        } else {
            output::say(format_args!("{table}"))?;
        }
        before = now;
        shown += 1;
    }
    Ok(())
}
