//! The keeper, with devices whose calls fail and panic.

use super::*;
use crate::data::rdma::reopening::REOPEN_STEADY;
use crate::error::Cause;
use crate::time::TokioClock;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;

const NIC: &str = "nic0";

/// The end of an attempt.
#[derive(Clone, Copy)]
enum End {
    Opens,
    /// The device is lost again before the end of the attempt.
    OpensLost,
    Fails,
    Panics,
}

/// Writes the calls down, with their times in milliseconds.
struct Scripted {
    clock: Arc<TokioClock>,
    ends: Mutex<VecDeque<End>>,
    calls: Mutex<Vec<(&'static str, u64)>>,
    is_lost: Mutex<bool>,
    errors: Mutex<Vec<String>>,
    /// Every other call panics too.
    panics: bool,
}

impl Scripted {
    fn note(&self, call: &'static str) {
        self.calls.lock().push((call, self.clock.now().0 / 1_000_000));
        assert!(!self.panics || call == "reopen", "a panic of the test");
    }
}

impl Subjects for Scripted {
    fn reopen(&self, _: &str) -> Result<(), Error> {
        self.note("reopen");
        let end = self.ends.lock().pop_front().expect("no attempt follows the last");
        *self.is_lost.lock() = matches!(end, End::OpensLost);
        match end {
            End::Opens | End::OpensLost => Ok(()),
            End::Fails => Err(Error::local(Stage::Device, Cause::Invalid("absent".to_owned()))),
            End::Panics => panic!("a panic of the test"),
        }
    }

    fn release(&self, _: &str) {
        self.note("release");
    }

    fn refresh(&self, _: &str) {
        self.note("refresh");
    }

    fn is_lost(&self, _: &str) -> bool {
        *self.is_lost.lock()
    }

    fn on_failed(&self, _: &str, error: Error) {
        self.errors.lock().push(error.to_string());
    }
}

fn start(ends: &[End], panics: bool) -> (Arc<Scripted>, Arc<Notices>, Keeper) {
    let clock = Arc::new(TokioClock::new());
    let scripted = Arc::new(Scripted {
        clock: clock.clone(),
        ends: Mutex::new(ends.iter().copied().collect()),
        calls: Mutex::default(),
        is_lost: Mutex::default(),
        errors: Mutex::default(),
        panics,
    });
    let notices = Arc::<Notices>::default();
    let keeper = Keeper::start(&scripted, Arc::clone(&notices), clock);
    (scripted, notices, keeper)
}

/// Waits for so many calls in virtual time, and some longer for others.
async fn calls(scripted: &Scripted, count: usize) -> Vec<(&'static str, u64)> {
    for _ in 0..100_000 {
        if scripted.calls.lock().len() >= count {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    std::mem::take(&mut *scripted.calls.lock())
}

/// The steps of an attempt and of everything else may panic: the device is tried again, and a later
/// loss too.
#[tokio::test(start_paused = true)]
async fn keeper_goes_on_after_panics() {
    let ends = [End::Panics, End::Fails, End::Opens, End::Opens];
    let (scripted, notices, _keeper) = start(&ends, true);
    notices.on_lost(NIC);
    let seen = calls(&scripted, 4).await;
    assert_eq!(
        seen.iter().map(|(call, _)| *call).collect::<Vec<_>>(),
        ["release", "reopen", "reopen", "reopen"]
    );
    let pauses: Vec<_> = seen.windows(2).map(|two| two[1].1 - two[0].1).collect();
    assert!(pauses.iter().zip([100, 200, 400]).all(|(pause, least)| *pause >= least), "{seen:?}");
    let errors = std::mem::take(&mut *scripted.errors.lock());
    assert!(errors.len() == 2 && errors[0].contains("panicked"), "{errors:?}");
    notices.on_changed(NIC);
    assert_eq!(calls(&scripted, 1).await[0].0, "refresh");
    notices.on_lost(NIC);
    assert_eq!(calls(&scripted, 2).await.len(), 2, "it is released and opened");
}

/// A device that is lost during the attempt that opens it is tried again, though its notice came
/// before the end of the attempt.
#[tokio::test(start_paused = true)]
async fn device_lost_during_its_attempt_is_tried_again() {
    let (scripted, notices, _keeper) = start(&[End::OpensLost, End::Opens], false);
    notices.on_lost(NIC);
    let seen: Vec<_> = calls(&scripted, 4).await.iter().map(|(call, _)| *call).collect();
    assert_eq!(seen, ["release", "reopen", "release", "reopen"]);
}

/// A whole life: the device dies, attempts fail, it is open again and dies soon, then works for long
/// and dies once more. A loss that is reported twice is one, the pauses go on after the short use and
/// begin again after the long one, and a change of addresses does not end a pause.
#[tokio::test(start_paused = true)]
async fn device_lives_through_losses_and_attempts() {
    let ends = [End::Fails, End::Fails, End::Opens, End::Fails, End::Opens, End::Opens];
    let (scripted, notices, _keeper) = start(&ends, false);
    notices.on_lost(NIC);
    notices.on_changed(NIC);
    let mut seen = taken(&scripted, 2).await;
    notices.on_lost(NIC);
    tokio::time::sleep(SETTLED).await;
    notices.on_changed(NIC);
    seen.extend(taken(&scripted, 3).await);
    // Within the time that ends a row of pauses.
    notices.on_lost(NIC);
    seen.extend(taken(&scripted, 3).await);
    tokio::time::sleep(Duration::from_nanos(REOPEN_STEADY.nanos())).await;
    notices.on_lost(NIC);
    seen.extend(taken(&scripted, 2).await);
    let steps: Vec<_> = seen.iter().map(|(call, _)| *call).collect();
    let first = ["release", "reopen", "refresh", "reopen", "reopen"];
    assert_eq!(
        steps,
        [&first[..], &["release", "reopen", "reopen"], &["release", "reopen"]].concat()
    );
    let since = |from: usize, to: usize| seen[to].1 - seen[from].1;
    let pauses = [since(0, 1), since(1, 3), since(3, 4), since(5, 6), since(6, 7), since(8, 9)];
    let near = |(pause, expected): (&u64, u64)| (expected..expected + 50).contains(pause);
    let expected = [100, 200, 400, 800, 1_600, 100];
    assert!(pauses.iter().zip(expected).all(near), "{pauses:?} and not {expected:?}");
    assert_eq!(scripted.errors.lock().len(), 3);
    assert_eq!(calls(&scripted, 0).await, [], "it is open");
}

/// Virtual time passes only while the keeper and its attempts have nothing to do.
const SETTLED: Duration = Duration::from_millis(5);

/// Waits for so many calls in virtual time, and until the keeper has taken the end of the last.
async fn taken(scripted: &Scripted, count: usize) -> Vec<(&'static str, u64)> {
    while scripted.calls.lock().len() < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(SETTLED).await;
    std::mem::take(&mut *scripted.calls.lock())
}
