//! Transfers from one node to a peer, judged as they end.

use crate::ledger::{Content, PAGE_BYTES, Page, Phase, Place, Story};
use crate::plan::Draw;
use handfast::{Cause, Engine, Error, Memory, Remote, Segment};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Deadlines of transfers, in milliseconds.
const DEADLINES_MS: [u64; 3] = [300, 800, 2_000];
/// Time past its deadline in which a transfer must end.
const LATE_MS: u64 = 20;
/// Maximum duration of a call without a deadline.
const CALL_MS: u64 = 10_000;
/// Maximum duration of a transfer after its cancellation.
const CANCEL_MS: u64 = 20;
/// Maximum duration of a transfer that no fault disturbs: ten messages there and back of each slice.
const UNDISTURBED_MS: u64 = 1_000;

pub(crate) struct Worker {
    pub(crate) story: Arc<Story>,
    pub(crate) me: usize,
    pub(crate) peer: usize,
    /// The run of this process.
    pub(crate) run: u64,
    pub(crate) address: String,
    pub(crate) engine: Engine,
    pub(crate) draw: Mutex<Draw>,
}

impl Worker {
    fn pair(&self) -> (usize, usize) {
        (self.me, self.peer)
    }

    fn is_over(&self) -> bool {
        self.story.phase() == Phase::Quiet || self.story.is_closing(self.me)
    }

    fn between(&self, first: u64, last: u64) -> u64 {
        self.draw.lock().unwrap().between(first, last)
    }

    pub(crate) async fn run(self) {
        let mut segment = None;
        while !self.is_over() {
            if segment.is_none() {
                segment = self.open().await;
            }
            if let Some(segment) = &segment
                && !(self.story.phase() == Phase::Settling && self.story.is_settled(self.pair()))
            {
                self.transfer(segment).await;
            }
            sleep(Duration::from_millis(self.between(1, self.story.plan.pace_max_ms))).await;
        }
    }

    async fn open(&self) -> Option<Segment> {
        let began = self.story.now();
        let opening = self.engine.open(&*self.address);
        let opened = self.bounded("open", CALL_MS, opening).await?;
        if opened.is_err()
            && self.knows_names(began)
            && self.story.is_clean(self.pair(), began, self.story.now())
        {
            self.violate("O8", "an undisturbed open fails");
        }
        opened.ok()
    }

    /// One to three transfers at once, of different pages.
    async fn transfer(&self, segment: &Segment) {
        if self.story.phase() == Phase::Settling {
            let page = self.between(0, PAGE_BYTES.len() as u64 - 1) as usize;
            if self.write(segment, page).await && self.read(segment, page).await {
                self.story.settle(self.pair());
            }
            return;
        }
        let first = self.between(0, PAGE_BYTES.len() as u64 - 1) as usize;
        let count = self.between(1, 3) as usize;
        let one = async |number: usize| {
            if number < count {
                let page = (first + number) % PAGE_BYTES.len();
                match self.between(0, 19) {
                    0 | 1 => self.cancel(segment, page).await,
                    2 => self.warm().await,
                    3..=7 => drop(self.read(segment, page).await),
                    _ => drop(self.write(segment, page).await),
                };
            }
        };
        tokio::join!(one(0), one(1), one(2));
    }

    /// Returns true if the write succeeded.
    async fn write(&self, segment: &Segment, page: usize) -> bool {
        let (story, place) = (&*self.story, Place { writer: self.me, owner: self.peer, page });
        let Some(before) = self.prepare(segment, place).await else { return false };
        let (owner_run, stamp) = (story.run_of(self.peer), story.next_stamp());
        let known = |content, owner_run| Page { content, owner_run, writer_run: self.run };
        story.set_page(place, known(Content::Unsure, owner_run));
        let bytes = crate::ledger::pattern(stamp, place.bytes());
        let block = Memory::zeroed(place.bytes()).unwrap();
        block.copy_in(0, &bytes).unwrap();
        let deadline = DEADLINES_MS[self.between(0, 2) as usize];
        let writing = segment.write(&block.whole(), place.offset() as u64);
        let writing = async { writing.timeout(Duration::from_millis(deadline)).await.map(drop) };
        let what = format!("write {stamp} of page {page}");
        let ended = self.bounded_transfer(&what, deadline, writing).await;
        let Some(ended) = ended else { return false };
        self.check_holders(&what, &block);
        let (run, there) = (story.run_of(self.peer), story.peek(place));
        let is_same_run = run == owner_run;
        let stays_unsure = before == Content::Unsure && story.is_legacy(self.peer);
        let content = match (&ended, ended.as_ref().err().and_then(Error::remote)) {
            _ if stays_unsure => Content::Unsure,
            (Ok(()), _) if there.as_ref() == Some(&bytes) => Content::Stamp(stamp),
            (Ok(()), _) => {
                if is_same_run {
                    self.violate("O3", &format!("{what} succeeds without its bytes"));
                }
                Content::Unsure
            }
            (Err(_), None | Some(Remote::Untouched)) if is_same_run => {
                let expected = before.expected(place.bytes());
                if expected.is_some() && there != expected {
                    self.violate("O7", &format!("{what} is untouched, and its bytes are there"));
                }
                before
            }
            (Err(_), Some(Remote::Fenced)) if is_same_run => {
                there.map_or(Content::Unsure, Content::Fenced)
            }
            (Err(_), _) => Content::Unsure,
        };
        story.set_page(place, known(content, run));
        ended.is_ok()
    }

    /// Checks a page, and fences it if an earlier write of this run may still land. `None`: it cannot
    /// be written yet.
    async fn prepare(&self, segment: &Segment, place: Place) -> Option<Content> {
        let story = &*self.story;
        let page = story.page(place);
        let there = story.peek(place)?;
        if page.content == Content::Unsure {
            // A Mooncake node does not report when an earlier write can land no more.
            if page.writer_run != self.run || story.is_legacy(self.peer) {
                return Some(Content::Unsure);
            }
            self.bounded("fence", CALL_MS, segment.fence()).await?.ok()?;
            return story.peek(place).map(Content::Fenced);
        }
        let is_same_run = page.owner_run == story.run_of(self.peer);
        let content = if is_same_run { page.content } else { Content::Zeros };
        if content.expected(place.bytes()).is_some_and(|expected| expected != there) {
            self.violate("O7", &format!("page {} has changed since its write", place.page));
        }
        Some(content)
    }

    /// Returns true if the read succeeded.
    async fn read(&self, segment: &Segment, page: usize) -> bool {
        let (story, place) = (&*self.story, Place { writer: self.me, owner: self.peer, page });
        let (before, run) = (story.page(place), story.run_of(self.peer));
        let block = Memory::zeroed(place.bytes()).unwrap();
        let deadline = DEADLINES_MS[self.between(0, 2) as usize];
        let reading = segment.read(&block.whole(), place.offset() as u64);
        let reading = async { reading.timeout(Duration::from_millis(deadline)).await.map(drop) };
        let what = format!("read of page {page}");
        let Some(ended) = self.bounded_transfer(&what, deadline, reading).await else {
            return false;
        };
        self.check_holders(&what, &block);
        let is_same_run = run == story.run_of(self.peer) && before.owner_run == run;
        let expected = before.content.expected(place.bytes());
        let mut bytes = vec![0; place.bytes()];
        block.copy_out(0, &mut bytes).unwrap();
        if ended.is_ok() && is_same_run && expected.is_some_and(|expected| expected != bytes) {
            self.violate("O3", &format!("{what} succeeds with other bytes"));
        }
        ended.is_ok()
    }

    /// Has a lane to the peer before a transfer needs it.
    async fn warm(&self) {
        if self.story.is_legacy(self.peer) {
            return;
        }
        let began = self.story.now();
        let (node, _) = self.address.split_once('/').unwrap_or((&self.address, ""));
        let warming = async { Ok(self.engine.warm(&[node]).await) };
        let Some(Ok(failures)) = self.bounded("warm", CALL_MS, warming).await else { return };
        let is_clean = self.story.is_clean(self.pair(), began, self.story.now());
        if !failures.is_empty() && is_clean && !self.is_over() && self.knows_names(began) {
            self.violate("O8", &format!("an undisturbed warm fails: {failures:?}"));
        }
    }

    /// Whether every node has been published since the start and the last loss of the store.
    fn knows_names(&self, began: u64) -> bool {
        began > 1_000
            && (self.story.plan.store.is_none() || self.story.is_store_up(began, self.story.now()))
    }

    /// Cancels a read a moment after its submission, which ends it at once.
    async fn cancel(&self, segment: &Segment, page: usize) {
        let place = Place { writer: self.me, owner: self.peer, page };
        let block = Memory::zeroed(place.bytes()).unwrap();
        let submitting = segment.read(&block.whole(), place.offset() as u64).submit();
        let Some(Ok(transfer)) = self.bounded("submission", CALL_MS, submitting).await else {
            return;
        };
        sleep(Duration::from_millis(self.between(0, 30))).await;
        transfer.cancel();
        let ended = timeout(Duration::from_millis(CANCEL_MS), transfer).await;
        let text =
            format!("cancelled read of page {page}: {:?}", ended.as_ref().map(Result::is_ok));
        self.story.note(&format!("{}>{} {text}", self.me, self.peer));
        if ended.is_err() {
            self.violate("O3", &format!("{text} does not end"));
        }
        drop(ended);
        self.check_holders(&text, &block);
    }

    /// A transfer, which ends near its deadline at the latest, and well if no fault disturbs it.
    async fn bounded_transfer(
        &self,
        what: &str,
        deadline: u64,
        transfer: impl Future<Output = Result<(), Error>>,
    ) -> Option<Result<(), Error>> {
        let (began, at) = (self.story.now(), Instant::now());
        // A slow clock ends a deadline late.
        let ended = self.bounded(what, deadline * 6 / 5 + LATE_MS, transfer).await?;
        let (now, took) = (self.story.now(), at.elapsed().as_millis() as u64);
        let is_clean = self.story.is_clean(self.pair(), began, now);
        if is_clean && !self.is_over() && (ended.is_err() || took > UNDISTURBED_MS) {
            self.violate("O8", &format!("{what} is undisturbed, and took {took} ms: {ended:?}"));
        }
        Some(ended)
    }

    /// A call that must end within `limit_ms`, with a type.
    async fn bounded<T>(
        &self,
        what: &str,
        limit_ms: u64,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        let ended = timeout(Duration::from_millis(limit_ms), call).await;
        let (me, peer) = self.pair();
        match &ended {
            Err(_) => {
                self.violate("O3", &format!("{what} does not end within {limit_ms} ms"));
            }
            Ok(Ok(_)) => self.story.note(&format!("{me}>{peer} {what}")),
            Ok(Err(error)) => {
                let remote = error.remote();
                self.story
                    .note(&format!("{me}>{peer} {what}: {} {remote:?}", error.without_hint()));
                if !is_expected(error.cause()) {
                    self.violate("O3", &format!("{what} ends with {:?}", error.cause()));
                }
            }
        }
        ended.ok()
    }

    fn check_holders(&self, what: &str, block: &Memory) {
        if block.holders() != 1 {
            self.violate("O3", &format!("{what} has ended, and its memory is held"));
        }
    }

    fn violate(&self, oracle: &str, text: &str) {
        self.story.violate(oracle, &format!("{}>{} {text}", self.me, self.peer));
    }
}

/// Whether faults of a plan explain the cause.
fn is_expected(cause: &Cause) -> bool {
    matches!(
        cause,
        Cause::Refused
            | Cause::Unreachable(_)
            | Cause::Silent { .. }
            | Cause::Broken(_)
            | Cause::Store(_)
            | Cause::NotPublished { .. }
            | Cause::Handshake(_)
            | Cause::PeerLost(_)
            | Cause::PeerRestarted
            | Cause::DeadlinePassed
            | Cause::Closed
    )
}
