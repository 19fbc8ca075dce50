//! Turns of work that occupies a processor, shared fairly among the members that ask.

use super::auth::Member;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use tokio::sync::oneshot;

/// The member that asks; `None` for this node itself, and at a node without keys for each peer.
type Asker = Option<Member>;

/// Turns, and those that wait for one. A member with many waiting takes no place of one with fewer: turns
/// go round the members, and at the limit the member with the most gives up its last place.
pub(crate) struct Turns {
    waiting_max: usize,
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// Of each member the oldest first; no member is without any.
    waiting: BTreeMap<Asker, VecDeque<oneshot::Sender<Turn>>>,
    /// The member that waited and had the last turn.
    last: Asker,
}

/// A turn, until it is dropped.
pub(crate) struct Turn(Arc<Turns>);

/// As many wait as may, or the place was taken by a member with fewer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoPlace;

impl Turns {
    /// So many turns at a time, and places to wait.
    pub(crate) fn new(turns_max: usize, waiting_max: usize) -> Arc<Self> {
        let state = State { free: turns_max, waiting: BTreeMap::new(), last: None };
        Arc::new(Self { waiting_max, state: Mutex::new(state) })
    }

    /// Waits for a turn. A dropped wait ends.
    ///
    /// # Errors
    /// There is no place to wait, now or later.
    pub(crate) async fn take(self: &Arc<Self>, asker: Asker) -> Result<Turn, NoPlace> {
        let entered = self.state.lock().enter(asker, self.waiting_max)?;
        let Some(waiting) = entered else { return Ok(Turn(self.clone())) };
        waiting.await.map_err(|_| NoPlace)
    }
}

impl State {
    /// Takes a turn at once, or a place to wait.
    fn enter(
        &mut self,
        asker: Asker,
        waiting_max: usize,
    ) -> Result<Option<oneshot::Receiver<Turn>>, NoPlace> {
        if self.free > 0 {
            self.free -= 1;
            return Ok(None);
        }
        self.waiting.retain(|_, places| {
            places.retain(|place| !place.is_closed());
            !places.is_empty()
        });
        if self.waiting.values().map(VecDeque::len).sum::<usize>() >= waiting_max {
            self.make_room(&asker)?;
        }
        let (place, waiting) = oneshot::channel();
        self.waiting.entry(asker).or_default().push_back(place);
        Ok(Some(waiting))
    }

    /// Ends the last wait of the member with the most, if it keeps as many as the asker gets.
    fn make_room(&mut self, asker: &Asker) -> Result<(), NoPlace> {
        let own = self.waiting.get(asker).map_or(0, VecDeque::len);
        let largest = self.waiting.iter_mut().max_by_key(|(_, places)| places.len());
        let Some((_, places)) = largest.filter(|(_, places)| places.len() > own + 1) else {
            return Err(NoPlace);
        };
        places.pop_back();
        Ok(())
    }

    /// Removes the place whose turn is next: the oldest of the member after the last one, in a circle.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let mut after = self.waiting.range((Excluded(&self.last), Unbounded));
        let next = after.next().or_else(|| self.waiting.first_key_value());
        let member = next.map(|(member, _)| member.clone())?;
        let places = self.waiting.get_mut(&member)?;
        let place = places.pop_front();
        if places.is_empty() {
            self.waiting.remove(&member);
        }
        self.last = member;
        place
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        match state.next() {
            Some(place) => {
                drop(state);
                // One whose wait has ended is dropped here, and so passed on.
                let _ = place.send(Self(self.0.clone()));
            }
            None => state.free += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    type Waiting = Pin<Box<dyn Future<Output = Result<Turn, NoPlace>>>>;

    fn member(id: &str) -> Asker {
        Some(Member::of_key(id))
    }

    fn poll(waiting: &mut Waiting) -> Poll<Result<Turn, NoPlace>> {
        waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// A wait that has begun.
    fn wait(turns: &Arc<Turns>, asker: Asker) -> Waiting {
        let turns = turns.clone();
        let mut waiting: Waiting = Box::pin(async move { turns.take(asker).await });
        assert!(poll(&mut waiting).is_pending(), "it waits");
        waiting
    }

    fn take_now(turns: &Arc<Turns>, asker: Asker) -> Result<Turn, NoPlace> {
        let mut taking = pin!(turns.take(asker));
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(taken) => taken,
            Poll::Pending => panic!("it waits"),
        }
    }

    fn is_over(waiting: &mut Waiting) -> bool {
        matches!(poll(waiting), Poll::Ready(Err(NoPlace)))
    }

    /// One member fills every place while it is alone. A second one gets half of them, the last of the
    /// first, and no more; past that each is refused at the limit.
    #[test]
    fn member_with_fewer_waiting_gets_a_place() {
        let turns = Turns::new(1, 8);
        let turn = take_now(&turns, member("a")).ok();
        let mut of_a: Vec<_> = (0..8).map(|_| wait(&turns, member("a"))).collect();
        assert_eq!(take_now(&turns, member("a")).err(), Some(NoPlace), "at the limit");
        let of_b: Vec<_> = (0..4).map(|_| wait(&turns, member("b"))).collect();
        let over: Vec<_> = of_a.iter_mut().map(is_over).collect();
        assert_eq!(over, [false, false, false, false, true, true, true, true]);
        for id in ["a", "b"] {
            assert_eq!(take_now(&turns, member(id)).err(), Some(NoPlace), "{id} has its half");
        }
        let own = wait(&turns, None);
        assert_eq!(turns.state.lock().waiting.values().map(VecDeque::len).sum::<usize>(), 8);
        drop((turn, of_a, of_b, own));
        assert!(take_now(&turns, None).is_ok());
    }

    /// Members have turns in a circle, however many of one wait, and each its own in order.
    #[test]
    fn turns_go_round_the_members() {
        let turns = Turns::new(1, 8);
        let mut turn = take_now(&turns, None).ok();
        let ids = ["a", "a", "a", "a", "b", "b", "c"];
        let mut waiting = ids.map(|id| Some(wait(&turns, member(id))));
        let mut order = Vec::new();
        while order.len() < ids.len() {
            let before = order.len();
            drop(turn.take());
            for (place, waiting) in waiting.iter_mut().enumerate() {
                let Some(Poll::Ready(taken)) = waiting.as_mut().map(poll) else { continue };
                *waiting = None;
                order.push(place);
                turn = taken.ok();
            }
            assert!(turn.is_some() && order.len() == before + 1, "one at a time: {order:?}");
        }
        assert_eq!(order, [0, 4, 6, 1, 5, 2, 3]);
        drop(turn);
        assert_eq!(turns.state.lock().free, 1);
    }

    /// A wait that was given up leaves its place, and passes a turn on that has come.
    #[test]
    fn wait_that_ends_passes_its_turn_on() {
        let turns = Turns::new(1, 2);
        let turn = take_now(&turns, None).ok();
        let [first, second] = [wait(&turns, member("a")), wait(&turns, member("a"))];
        assert_eq!(take_now(&turns, member("a")).err(), Some(NoPlace));
        drop(second);
        let mut third = wait(&turns, member("a"));
        drop(turn);
        assert!(poll(&mut third).is_pending(), "the turn of the first");
        drop(first);
        let Poll::Ready(Ok(turn)) = poll(&mut third) else { panic!("the turn is passed on") };
        drop(turn);
        let state = turns.state.lock();
        assert!(state.free == 1 && state.waiting.is_empty());
    }
}
