//! The command line.

use crate::bench::Bench;
use crate::failure::EXIT_CODES;
use crate::place::{Place, SYNTAX};
use crate::size;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// Moves bytes between the memory of processes with one-sided reads and writes.
///
/// One process serves memory, others put bytes into it and get bytes out of it; its own code takes
/// no part. Try it:
///
///   handfast serve --memory 64M &
///   handfast put FILE 127.0.0.1:7411
///   handfast get 127.0.0.1:7411:0,1M COPY
#[derive(Parser)]
#[command(name = "handfast", version, max_term_width = 100, after_long_help = EXIT_CODES)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// Tell what happens: -v connections and restarts, -vv every step, -vvv everything
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
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
pub(crate) struct Serve {
    /// Address to listen at; port 0 takes any free one
    #[arg(long, default_value = "127.0.0.1:7411", value_name = "HOST:PORT")]
    pub(crate) listen: String,
    /// Host, or HOST:PORT, under which peers reach this node [default: the address listened at]
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
    /// Let peers read only
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Run on these processors only, such as 0 or 0,1
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// End when standard input does, so that no server outlives the script that started it
    #[arg(long, hide = true)]
    pub(crate) until_stdin_ends: bool,
}

/// Copy a file into a node's memory, and verify it there
#[derive(Args)]
#[command(after_long_help = SYNTAX)]
pub(crate) struct Put {
    /// File to copy
    pub(crate) file: PathBuf,
    /// Where to: HOST:PORT[/SEGMENT][:OFFSET]
    pub(crate) node: Place,
    #[command(flatten)]
    pub(crate) copy: Copy,
}

/// Copy a node's memory into a file, and verify it
///
/// The file appears under its name only when it is whole and verified.
#[derive(Args)]
#[command(after_long_help = SYNTAX)]
pub(crate) struct Get {
    /// Where from: HOST:PORT[/SEGMENT][:OFFSET[,LENGTH]] [default length: to the segment's end]
    pub(crate) node: Place,
    /// File to make or replace
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) copy: Copy,
}

/// What both directions of copying take.
#[derive(Args)]
pub(crate) struct Copy {
    /// Give each request up after that long, such as 250ms or 10s [default: while the peer lives]
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Start again that often when the node is lost or has restarted
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub(crate) retries: u32,
    /// Do not compare checksums at the end
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}
