//! `handfast metadata`: a store in which nodes find each other.

use crate::failure::Outcome;
use crate::output;
use crate::runtime::Stop;
use clap::Args;
use handfast_metadata::{HttpServer, ServerLimits};
use std::path::PathBuf;
use tracing::info;

/// Serve the metadata store of a fleet over HTTP until interrupted
///
/// Nodes of handfast and of Mooncake publish their names, addresses and memory there. Every host
/// that reaches the store may read and change the entries: serve it on a trusted network. The
/// printed URL is the value of `--metadata`, and of Mooncake's metadata server.
#[derive(Args)]
pub(crate) struct Metadata {
    /// Address to listen on; port 0 selects a free one
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "HOST:PORT")]
    listen: String,
    /// Also keep the table in this file: acknowledged changes survive a crash [default: in memory
    /// only; live nodes publish again within ten seconds, Mooncake's do not]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// End with standard input, so that no server outlives the script that started it
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

pub(crate) async fn run(arguments: Metadata) -> Outcome {
    let mut stop = Stop::listen()?;
    let limits = ServerLimits::default();
    let server = HttpServer::bind(&arguments.listen, arguments.file.as_deref(), limits).await?;
    let (address, entries) = (server.address(), server.entries());
    if !address.ip().is_loopback() {
        output::note(format_args!(
            "warning: every host that reaches {address} can read and change the entries of the fleet; no client \
             is authenticated and nothing is encrypted"
        ));
    }
    let kept =
        arguments.file.as_ref().map(|file| format!(", {entries} entries in {}", file.display()));
    let kept = kept.unwrap_or_default();
    output::say(format_args!("metadata at http://{address}/metadata{kept}\nready"))?;
    tokio::select! {
        signal = stop.wait() => info!("{signal}: closing"),
        () = crate::serve::stdin_ends(), if arguments.until_stdin_ends => {
            info!("standard input ended: closing");
        }
        () = server.run() => {}
    }
    Ok(())
}
