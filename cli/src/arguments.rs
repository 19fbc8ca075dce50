//! The command line.

use crate::bench::{Bench, BenchPeers};
use crate::config::Config;
use crate::doctor::Doctor;
use crate::explain::Explain;
use crate::lanes::LaneOptions;
use crate::metadata::Metadata;
use crate::place::Place;
use crate::record::RecordArguments;
use crate::sim::Sim;
use crate::size;
use crate::smoke::Smoke;
use crate::top::Top;
use crate::topology::Topology;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

const EPILOGUE: &str = concat!(
    "\
Try it:
  handfast serve --memory 64M &
  handfast put FILE 127.0.0.1:7411
  handfast get 127.0.0.1:7411:0,1M COPY

'handfast COMMAND --help' shows the options and examples of a command.

",
    include_str!("exit_codes.txt")
);

const SERVE_EPILOGUE: &str = concat!(
    "\
Examples:
  handfast serve                64 MiB named 'memory', this machine only
  handfast serve --memory cache=2G --memory log=64M
  handfast serve --file weights.bin --read-only
  handfast serve --listen 0.0.0.0:7411 --advertise 10.0.0.7
  handfast serve --listen 10.0.0.7:7411 --transport auto

It prints the address, the segments and then 'ready' on standard output. SIGINT
(Ctrl-C) or SIGTERM ends it with exit code 0; served files are then on disk
with all that was put into them. Memory is gone with the process.

",
    include_str!("exit_codes.txt")
);

const PUT_EPILOGUE: &str = concat!(
    "\
Examples:
  handfast put FILE 127.0.0.1:7411
  handfast put FILE 10.0.0.7:7411/cache:64M --timeout 2s --retries 10

",
    include_str!("places.txt"),
    "\n",
    include_str!("exit_codes.txt")
);

const GET_EPILOGUE: &str = concat!(
    "\
Examples:
  handfast get 127.0.0.1:7411 COPY
  handfast get 10.0.0.7:7411/cache:64M,1M PART --json

",
    include_str!("places.txt"),
    "\n",
    include_str!("exit_codes.txt")
);

/// Moves bytes between the memory of processes with one-sided reads and writes.
///
/// One process serves memory, or files, as named segments; others put bytes into them and get
/// bytes out of them. The serving program's own code takes no part.
#[derive(Parser)]
#[command(name = "handfast", version, max_term_width = 100, after_long_help = EPILOGUE)]
pub(crate) struct Arguments {
    /// Tell what happens on standard error: -v in brief, -vv every step, -vvv everything
    #[arg(short, long, action = clap::ArgAction::Count, global = true, display_order = 900)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Serve(Serve),
    Put(Put),
    Get(Get),
    Bench(Bench),
    Smoke(Smoke),
    Config(Config),
    Metadata(Metadata),
    Doctor(Doctor),
    Explain(Explain),
    Sim(Sim),
    Topology(Topology),
    Top(Top),
    /// Be the peers of `bench --peers`
    #[command(hide = true)]
    BenchPeers(BenchPeers),
    /// Take raw streams for `bench --limit`
    #[command(hide = true)]
    RawSink {
        #[arg(long, value_delimiter = ',')]
        cores: Vec<usize>,
    },
}

/// Serve memory, or files mapped into memory, until interrupted
///
/// Whoever reaches the address may read and write what is served: serve beyond this machine only
/// on a network you trust.
#[derive(Args)]
#[command(after_long_help = SERVE_EPILOGUE)]
pub(crate) struct Serve {
    /// Address to listen at; port 0 takes any free one
    #[arg(long, default_value = "127.0.0.1:7411", value_name = "HOST:PORT")]
    pub(crate) listen: String,
    /// Host, or HOST:PORT, under which peers reach this node; needed when listening at all
    /// addresses, such as 0.0.0.0 [default: the address listened at]
    #[arg(long, value_name = "HOST")]
    pub(crate) advertise: Option<String>,
    /// Name of this node; no two live nodes may share one [default: the advertised address]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Serve that much zeroed memory as segment NAME [default: memory=64M, if no file is served]
    #[arg(long, value_name = "[NAME=]SIZE")]
    pub(crate) memory: Vec<String>,
    /// Serve a file, mapped into memory, as segment NAME [default name: the file's name]
    #[arg(long, value_name = "[NAME=]PATH")]
    pub(crate) file: Vec<String>,
    /// Let peers get only, not put
    #[arg(long)]
    pub(crate) read_only: bool,
    #[command(flatten)]
    pub(crate) lanes: LaneOptions,
    #[command(flatten)]
    pub(crate) record: RecordArguments,
    /// Tell over HTTP what happens, /metrics for Prometheus and /state in JSON, to whoever reaches
    /// this address
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics: Option<String>,
    /// Run on these processors only, such as 0 or 0,1
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// End when standard input does, so that no server outlives the script that started it
    #[arg(long, hide = true)]
    pub(crate) until_stdin_ends: bool,
}

/// Copy a file into a node's memory, and verify it there
///
/// The whole file is copied. That it fits is checked before the first byte moves.
#[derive(Args)]
#[command(after_long_help = PUT_EPILOGUE)]
pub(crate) struct Put {
    /// File to copy; a regular one
    pub(crate) file: PathBuf,
    /// Where to: `HOST:PORT[/SEGMENT][:OFFSET]`
    pub(crate) node: Place,
    #[command(flatten)]
    pub(crate) copy: Copy,
}

/// Copy a node's memory into a file, and verify it
///
/// The file appears under its name only when it is whole and verified. One that is there is
/// replaced then, and keeps its permissions.
#[derive(Args)]
#[command(after_long_help = GET_EPILOGUE)]
pub(crate) struct Get {
    /// Where from: `HOST:PORT[/SEGMENT][:OFFSET[,LENGTH]]` (default length: to the segment's end)
    pub(crate) node: Place,
    /// File to make or replace
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) copy: Copy,
}

/// What both directions of copying take.
#[derive(Args)]
pub(crate) struct Copy {
    /// Give each request up after that long, such as 250ms or 10s [default: MC_TRANSFER_TIMEOUT,
    /// or wait for a transfer while the node lives, and 5s for other answers]
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Start again, from the first byte, that often when the node is lost, silent or has
    /// restarted; the pauses between grow from 100 ms to 3.2 s
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub(crate) retries: u32,
    #[command(flatten)]
    pub(crate) lanes: LaneOptions,
    #[command(flatten)]
    pub(crate) record: RecordArguments,
    /// Do not compare checksums at the end
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Print the result as one line of JSON, and no progress
    #[arg(long)]
    pub(crate) json: bool,
}
