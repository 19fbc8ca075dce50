//! Two nodes of this process against each other.

use super::bytes::Target;
use super::node::Node;
use super::report::Report;
use super::{Smoke, devices, manager};
use crate::copy::is_passing;
use crate::failure::{Failure, Outcome};
use handfast::rdma::RdmaOptions;
use handfast::{Event, Incarnation, Segment};
use std::time::Duration;
use tokio::sync::broadcast::Receiver;

const HANDSHAKE: &str = "handshake";
const BYTES: &str = "bytes";
const REESTABLISH: &str = "reestablish";
const RESET: &str = "reset";
const RESTART: &str = "restart";
/// Names of the nodes.
const NAMES: [&str; 2] = ["smoke-first", "smoke-second"];
/// Control channels use TCP on the loopback interface; lanes run between the devices.
const LISTEN: &str = "127.0.0.1:0";
/// Pause between attempts to reach a restarted node; the timeout of the step bounds their number.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn run(arguments: &Smoke, report: &mut Report) -> Outcome {
    let found = devices::all(&arguments.base);
    let options = devices::choose(arguments, &found);
    report.devices(found.clone())?;
    let Some([first, second]) = report.step("devices", start(&options)).await? else {
        let rest = [manager::NAME, HANDSHAKE, BYTES, REESTABLISH, RESET, RESTART];
        return report.skip(&rest, "there is no device to use");
    };
    let used = of_nodes(arguments, [&first, &second]);
    manager::run(report, &found, used, arguments.timeout).await?;
    let Some(segments) = report.step(HANDSHAKE, handshake(&first, &second)).await? else {
        queue_pairs(arguments, report, [&first, &second]).await?;
        close(&first, &second).await;
        return report.skip(&[BYTES, RESTART], "the handshake failed");
    };
    report.step(BYTES, bytes(&segments, arguments.timeout)).await?;
    let [there, _] = segments;
    queue_pairs(arguments, report, [&first, &second]).await?;
    let again = restart(&first, second, &there, &options[1], arguments.timeout);
    if let Some(second) = report.step(RESTART, again).await? {
        second.engine.close().await;
    }
    first.engine.close().await;
    Ok(())
}

/// The devices of two nodes, for steps below the engine.
fn of_nodes(arguments: &Smoke, nodes: [&Node; 2]) -> [RdmaOptions; 2] {
    [0, 1].map(|n| {
        arguments.base.clone().with(|it| {
            it.devices = nodes[n].engine.devices().map(str::to_owned).collect();
            it.address = arguments.gid.get(n).or(arguments.gid.first()).copied();
        })
    })
}

/// Runs the steps below the engine, on the same devices.
#[cfg(feature = "verbs")]
async fn queue_pairs(arguments: &Smoke, report: &mut Report, nodes: [&Node; 2]) -> Outcome {
    use super::blocking;
    use super::queue_pairs::Pair;
    let timeout = arguments.timeout;
    let options = of_nodes(arguments, nodes);
    let again = blocking(move || {
        let mut pair = Pair::open(&options, timeout)?;
        let words = pair.establish_again()?;
        Ok((pair, words))
    });
    let Some(mut pair) = report.step(REESTABLISH, again).await? else {
        return report.skip(&[RESET], "queue pairs could not be established again");
    };
    report.record(RESET, blocking(move || pair.reset())).await
}

/// Unreachable: a program without verbs has no devices, so no step gets here.
#[cfg(not(feature = "verbs"))]
async fn queue_pairs(_: &Smoke, report: &mut Report, _: [&Node; 2]) -> Outcome {
    report.skip(&[REESTABLISH, RESET], "the program has no RDMA")
}

async fn close(first: &Node, second: &Node) {
    tokio::join!(first.engine.close(), second.engine.close());
}

async fn start(options: &[RdmaOptions; 2]) -> Result<([Node; 2], String), Failure> {
    let first = Node::start(NAMES[0], LISTEN, &options[0]).await?;
    let second = Node::start(NAMES[1], LISTEN, &options[1]).await?;
    let words = match (first.device(), second.device()) {
        (one, other) if one == other => format!("{one} to itself"),
        (one, other) => format!("{one} and {other}"),
    };
    Ok(([first, second], words))
}

/// Each node opens to the other at the same time.
async fn handshake(first: &Node, second: &Node) -> Result<([Segment; 2], String), Failure> {
    let (there, back) = tokio::join!(first.warm(second), second.warm(first));
    there.and(back)?;
    let (there, back) = tokio::try_join!(first.open(second), second.open(first))?;
    Ok(([there, back], "both ways at the same time".to_owned()))
}

async fn bytes(segments: &[Segment; 2], timeout: Duration) -> Result<((), String), Failure> {
    let [there, back] = segments;
    let (one, other) = (Target::whole(there), Target::whole(back));
    let (words, _) = tokio::try_join!(one.exchange(1, timeout), other.exchange(101, timeout))?;
    Ok(((), format!("both ways at once, {words}")))
}

/// Stops the second node, starts another with its name and port, and moves bytes to it over the
/// segment opened before.
async fn restart(
    first: &Node,
    second: Node,
    segment: &Segment,
    options: &RdmaOptions,
    timeout: Duration,
) -> Result<(Node, String), Failure> {
    let mut events = first.engine.events();
    let (old, address) = (second.engine.incarnation(), second.engine.address().to_owned());
    second.engine.close().await;
    drop(second);
    let second = Node::start(NAMES[1], &address, options).await?;
    let mut failed = Vec::new();
    let words = loop {
        match Target::whole(segment).exchange(51, timeout).await {
            Ok(words) => break words,
            Err(failure) if is_passing(&failure) => failed.push(failure.to_string()),
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(PAUSE).await;
    };
    noticed(&mut events, old, second.engine.incarnation()).await?;
    let before = match failed.first() {
        None => String::new(),
        Some(first) => format!("; {} attempts failed before, the first: {first}", failed.len()),
    };
    Ok((second, format!("the restart was noticed; {words}{before}")))
}

/// Waits until the restart of the peer is noticed.
async fn noticed(
    events: &mut Receiver<Event>,
    was: Incarnation,
    is: Incarnation,
) -> Result<(), Failure> {
    use tokio::sync::broadcast::error::RecvError;
    loop {
        match events.recv().await {
            Ok(Event::PeerRestarted { old, new, .. }) if (old, new) == (was, is) => return Ok(()),
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => {
                return Err(Failure::Device("the restart was not noticed".to_owned()));
            }
        }
    }
}
