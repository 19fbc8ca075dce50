//! Engines that record their run.

use crate::helpers::{Owner, content, pattern};
use handfast::record::RecordOptions;
use handfast::{Cause, Engine, Side, Stage};
use handfast_trace::{Edge, Ending, Replayed, Step, TraceReader, What, replay};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

const BYTES: usize = 1 << 16;

fn read(path: &Path) -> (Replayed, Vec<Edge>) {
    let mut edges = Vec::new();
    let file = BufReader::new(File::open(path).unwrap());
    let replayed = replay(TraceReader::new(file, false).unwrap(), &mut |step| {
        if let Step::Entry { entry, .. } = step
            && let What::Edge(_, _, edge) = &entry.what
        {
            edges.push(edge.clone());
        }
    });
    (replayed.unwrap_or_else(|error| panic!("{error}")), edges)
}

/// The surviving node records the peer's restart and the batch that failed with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_and_failed_batch_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("user.trace");
    let builder = Engine::builder().record(RecordOptions::new(&file));
    let user = builder.start().await.unwrap();
    let owner = Owner::start(BYTES).await;
    let address = owner.engine.address().to_owned();
    let segment = user.open(&owner.segment()).await.unwrap();
    let block = pattern(BYTES, 1).whole();
    for _ in 0..300 {
        segment.write(&block, 0).await.unwrap();
    }
    owner.engine.close().await;
    drop(owner);
    let error = segment.write(&block, 0).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::PeerLost(_) | Cause::Refused), "{error}");
    let owner = Owner::start_at(&address, BYTES).await;
    segment.write(&block, 0).await.unwrap();
    assert_eq!(content(&owner.memory, 0, BYTES), content(block.memory(), 0, BYTES));
    let before = user.recording().expect("it records");
    user.close().await;
    let after = user.recording().expect("it has recorded");
    assert_eq!((&before.failure, &after.failure), (&None, &None));
    assert!(after.entries > before.entries && after.dropped == 0, "{after:?}");

    let (replayed, edges) = read(&file);
    assert!(replayed.ended && replayed.missing == 0, "{replayed:?}");
    assert_eq!(replayed.steps + replayed.edges, after.entries);
    let submitted =
        |edge: &Edge| matches!(edge, Edge::Submitted { bytes, .. } if *bytes == BYTES as u64);
    let ended = |edge: &Edge| matches!(edge, Edge::Ended { ending: Ending::Success, .. });
    let count = |is: &dyn Fn(&Edge) -> bool| edges.iter().filter(|edge| is(edge)).count() as u64;
    let missed: u64 =
        edges.iter().map(|edge| if let Edge::Missed(n) = edge { *n } else { 0 }).sum();
    let (submitted, ended) = (count(&submitted), count(&ended));
    // The one that was lost may have failed before it was submitted.
    assert!((602..=603).contains(&(submitted + ended + missed)), "{submitted} {ended} {missed}");
    assert!(missed > 300, "all but the last edges before the restart: {missed}");
    assert!(edges.iter().any(|edge| matches!(edge, Edge::LaneDown { .. })), "{edges:?}");
    assert_eq!(count(&|edge| matches!(edge, Edge::LaneUp(_))), 2);
}

/// A recording that cannot begin is a local error with its cure.
#[tokio::test]
async fn failed_recording_start_names_the_cure() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes");
    std::fs::write(&file, "mine").unwrap();
    let started = Engine::builder().record(RecordOptions::new(&file)).start().await;
    let Err(error) = started else { panic!("it began over a file of mine") };
    assert_eq!((error.side(), error.stage()), (Side::Local, Stage::Recording));
    assert!(error.to_string().contains("name another file"), "{error}");
    let plain = Engine::builder().start().await.unwrap();
    assert_eq!(plain.recording(), None);
}
