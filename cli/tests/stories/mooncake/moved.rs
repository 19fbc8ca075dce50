//! A node that is killed within transfers and comes back at another port under its name in a store:
//! who holds a segment of it finds it again, whether or not the store can be watched.

use super::servers::Metadata;
use crate::helpers::{Folder, PATIENCE, Server, until};
use handfast::metadata::MetadataOptions;
use handfast::{Cause, Engine, Error, Memory, Segment};
use handfast_metadata::{Credentials, Source};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const OWNER: &str = "owner:1";
const BYTES: usize = 64 << 10;
/// From the moment that the store names the new run to the end of the first transfer to it.
const FOUND_WITHIN: Duration = Duration::from_secs(10);
/// No transfer may take longer than that to say that the node is away.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// Moves of the node.
const MOVES: u64 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segment_follows_its_node_through_unwatched_store() {
    let folder = Folder::new();
    let store = Metadata::start("127.0.0.1:0", &folder.name("table"));
    follow(&store.url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segment_follows_its_node_through_released_store() {
    for version in super::releases() {
        let Some(release) = super::Release::find(version) else {
            return crate::helpers::skipped(super::ABSENT);
        };
        follow(&release.metadata_server("127.0.0.1").url).await;
    }
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_follows_its_node_through_an_etcd() {
    let Some(release) = super::Release::find(super::RELEASE) else {
        return crate::helpers::skipped(super::ABSENT);
    };
    let folder = Folder::new();
    follow(&release.etcd_server("127.0.0.1", &folder).url).await;
}

/// Writes go on without an end while the node is killed and comes back elsewhere, again and again.
async fn follow(url: &str) {
    let source: Source = url.parse().unwrap();
    let store = source.open(Credentials::default()).unwrap().expect("a store");
    let mut server = serve(url);
    let user = Engine::builder().metadata(MetadataOptions::new(store)).start().await.unwrap();
    let segment = user.open(&format!("{OWNER}/memory")).await.unwrap();
    let writer = Arc::new(Writer { segment, written: AtomicU64::new(0), moves: AtomicU64::new(0) });
    let writing = tokio::spawn({
        let writer = writer.clone();
        async move { writer.run().await }
    });
    for moves in 1..=MOVES {
        writer.until_more(PATIENCE);
        let before = server.address.clone();
        drop(server);
        server = serve(url);
        assert_ne!(server.address, before, "the story is of another port");
        writer.until_more(FOUND_WITHIN);
        writer.moves.store(moves, Ordering::Release);
    }
    writing.await.unwrap();
    let last = u8::try_from(writer.written.load(Ordering::Acquire) % 251).unwrap();
    let copy = Memory::zeroed(BYTES).unwrap();
    writer.segment.read(&copy.whole(), 0).await.unwrap();
    let mut there = vec![0; BYTES];
    copy.copy_out(0, &mut there).unwrap();
    assert!(there == [last; BYTES], "what was written last is there");
    user.close().await;
}

fn serve(url: &str) -> Server {
    Server::start(&["--memory", "1M", "--name", OWNER, "--metadata", url])
}

struct Writer {
    segment: Segment,
    written: AtomicU64,
    moves: AtomicU64,
}

impl Writer {
    async fn run(&self) {
        let block = Memory::zeroed(BYTES).unwrap();
        while self.moves.load(Ordering::Acquire) < MOVES {
            let next = self.written.load(Ordering::Acquire) + 1;
            block.copy_in(0, &[u8::try_from(next % 251).unwrap(); BYTES]).unwrap();
            let began = Instant::now();
            let ended = self.segment.write(&block.whole(), 0).await;
            assert!(began.elapsed() < TOLD_WITHIN, "{:?}: {ended:?}", began.elapsed());
            match ended {
                Ok(_) => self.written.store(next, Ordering::Release),
                Err(error) => {
                    assert!(is_of_a_node_that_is_away(&error), "{error}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// Waits for a write that began after this.
    #[track_caller]
    fn until_more(&self, limit: Duration) {
        let (began, before) = (Instant::now(), self.written.load(Ordering::Acquire));
        until("writes go on", || self.written.load(Ordering::Acquire) > before + 1);
        let took = began.elapsed();
        println!("found again after {took:?}");
        assert!(took < limit, "it took {took:?}");
    }
}

/// The next transfer may succeed.
fn is_of_a_node_that_is_away(error: &Error) -> bool {
    matches!(
        error.cause(),
        Cause::PeerLost(_)
            | Cause::PeerRestarted
            | Cause::NotPublished { .. }
            | Cause::Refused
            | Cause::Broken(_)
            | Cause::Handshake(_)
    )
}
