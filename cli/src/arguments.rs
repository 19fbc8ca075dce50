//! The command line.

use crate::administer::Administer;
use crate::bench::{Bench, BenchPeers};
use crate::config::Config;
use crate::doctor::Doctor;
use crate::explain::Explain;
#[cfg(target_os = "linux")]
use crate::fabric::Fabric;
use crate::get::Get;
use crate::help;
use crate::metadata::Metadata;
use crate::put::Put;
use crate::serve::Serve;
use crate::sim::Sim;
use crate::smoke::Smoke;
use crate::top::Top;
use crate::topology::Topology;
use clap::{Parser, Subcommand};

/// Moves bytes between the memory of processes with one-sided reads and writes.
///
/// One process serves memory, or files, as named segments; others put bytes into them and get bytes
/// from them. The code of the serving process takes no part.
#[derive(Parser)]
#[command(name = "handfast", version, max_term_width = 100, after_long_help = help::HANDFAST)]
pub(crate) struct Arguments {
    /// Log to standard error: -v in brief, -vv every step, -vvv everything
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
    Grants(Administer),
    Bench(Bench),
    Smoke(Smoke),
    Config(Config),
    Metadata(Metadata),
    Doctor(Doctor),
    Explain(Explain),
    #[cfg(target_os = "linux")]
    Fabric(Fabric),
    Sim(Sim),
    Topology(Topology),
    Top(Top),
    /// Serve as the peers of `bench --peers`
    #[command(hide = true)]
    BenchPeers(BenchPeers),
    /// Receive raw streams for `bench --limit`
    #[command(hide = true)]
    RawSink {
        #[arg(long, value_delimiter = ',')]
        cores: Vec<usize>,
    },
}
