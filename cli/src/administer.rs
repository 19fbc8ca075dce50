//! `handfast grants`.

use crate::failure::{Failure, Outcome};
use crate::grants::{access, show};
use crate::lanes::LaneOptions;
use crate::{help, output, size};
use clap::{Args, Subcommand};
use handfast::auth::{GrantsRequest, SegmentGrants};
use handfast::{Engine, Grant, SegmentAddr};
use serde_json::json;
use std::time::Duration;

/// List and change the grants of the segments of a running node
///
/// The node accepts these commands from its administrators alone: peers whose names
/// `serve --administrators` covers, and that prove their name. A change is in force when the command ends.
/// It lasts as long as the node runs, or until the lines of the segment in a file of `serve --grants`
/// change.
#[derive(Args)]
#[command(after_long_help = help::GRANTS)]
pub(crate) struct Administer {
    #[command(subcommand)]
    change: Change,
}

#[derive(Subcommand)]
enum Change {
    /// Print the grants of a segment, or of all
    List {
        /// The node, and one of its segments: `HOST:PORT[/SEGMENT]`
        node: SegmentAddr,
        #[command(flatten)]
        options: Options,
    },
    /// Add a grant
    Add(OfGrant),
    /// Take what a grant allows from its pattern of names
    Revoke(OfGrant),
}

#[derive(Args)]
struct OfGrant {
    /// The segment: `HOST:PORT/SEGMENT`
    segment: SegmentAddr,
    /// read, write or read-write
    access: String,
    /// Names of peers, with * for any characters
    peers: String,
    #[command(flatten)]
    options: Options,
}

#[derive(Args)]
struct Options {
    /// Name of this command as a node, which its key or certificate allows and `--administrators` of the
    /// node covers [default: of its certificate, or random]
    #[arg(long)]
    name: Option<String>,
    /// Time limit, such as 250ms or 10s
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration, default_value = "10s")]
    timeout: Duration,
    #[command(flatten)]
    lanes: LaneOptions,
    /// Print the grants as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(Administer { change }: Administer) -> Outcome {
    let (address, request, options) = match change {
        Change::List { node, options } => {
            let segment = node.segment().map(str::to_owned);
            (node, GrantsRequest::List { segment }, options)
        }
        Change::Add(of) => {
            let (segment, grant) = of.grant()?;
            (of.segment, GrantsRequest::Add { segment, grant }, of.options)
        }
        Change::Revoke(of) => {
            let (segment, grant) = of.grant()?;
            (of.segment, GrantsRequest::Revoke { segment, grant }, of.options)
        }
    };
    let mut builder = options.lanes.apply(Engine::builder())?;
    if let Some(name) = &options.name {
        builder = builder.name(name);
    }
    let engine = builder.start().await?;
    let asked = tokio::time::timeout(options.timeout, engine.administer(address.node(), request));
    let answered = asked.await.map_err(|_| Failure::Overdue {
        doing: "asking for grants at",
        node: address.node().to_owned(),
        timeout: options.timeout,
    });
    engine.close().await;
    report(&answered??, options.json)
}

impl OfGrant {
    fn grant(&self) -> Result<(String, Grant), Failure> {
        let usage = |text: String| Failure::Usage(text);
        let segment = self.segment.segment();
        let segment = segment.ok_or_else(|| usage("name a segment: HOST:PORT/SEGMENT".into()))?;
        let access = access(&self.access)
            .ok_or_else(|| usage(format!("'{}' is not read, write or read-write", self.access)))?;
        let grant = Grant::new(access, &self.peers).map_err(|error| usage(error.to_string()))?;
        Ok((segment.to_owned(), grant))
    }
}

fn report(segments: &SegmentGrants, is_json: bool) -> Outcome {
    if is_json {
        let of =
            |grant: &Grant| json!({ "access": grant.access().to_string(), "peers": grant.peers() });
        let all = segments
            .iter()
            .map(|(name, grants)| (name.clone(), grants.iter().map(of).collect::<Vec<_>>()));
        return output::say_json(&all.collect::<std::collections::BTreeMap<_, _>>());
    }
    let lines = segments.iter().map(|(name, grants)| format!("{name}{}", show(grants)));
    output::say(format_args!("{}", lines.collect::<Vec<_>>().join("\n")))
}
