//! Queue-pair steps off the runtime, on a bounded number of threads and fair by peer: the kernel may
//! hold a thread for a second on behalf of a peer that does not answer.

use crate::error::VerbsError;
use crate::steps::{StepLimits, StepPool, StepRefused};
use handfast_core::NicPath;
use handfast_core::transport::Side;
use std::io;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub(super) struct Steps {
    pool: Option<StepPool>,
    /// Device name.
    device: String,
}

/// Whether a step may be refused at the limit of waiting steps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Bounded by the limits of the pool.
    Asked,
    /// Bounded by the number of lanes.
    Owed,
}

impl Steps {
    /// Starts the threads. Errors name `device`.
    pub(super) fn start(device: &str) -> io::Result<Self> {
        let pool = StepPool::start(StepLimits::default())?;
        Ok(Self { pool: Some(pool), device: device.to_owned() })
    }

    /// Runs a step in the peer's turn, after its earlier steps. A step is skipped if its caller
    /// no longer waits when its turn comes.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        peer: &NicPath,
        work: impl FnOnce() -> Result<T, VerbsError> + Send + 'static,
    ) -> Result<T, VerbsError> {
        self.run_at(Place::Asked, peer, work).await
    }

    /// Like [`Steps::run`]; in the place of an owed step never refused.
    pub(super) async fn run_at<T: Send + 'static>(
        &self,
        place: Place,
        peer: &NicPath,
        work: impl FnOnce() -> Result<T, VerbsError> + Send + 'static,
    ) -> Result<T, VerbsError> {
        let refused = |refused: StepRefused| self.failed(refused.to_string());
        let pool = self.pool.as_ref().ok_or_else(|| refused(StepRefused::Ended))?;
        let (done, ended) = oneshot::channel();
        let step = move |turn: Result<(), StepRefused>| {
            if !done.is_closed() {
                // The waiter may be gone.
                let _ = done.send(turn.map(|()| work()));
            }
        };
        let peer = peer.to_string();
        match place {
            Place::Asked => pool.submit(&peer, step).map_err(refused)?,
            Place::Owed => pool.submit_owed(&peer, step),
        }
        match ended.await {
            Ok(end) => end.map_err(refused)?,
            // It has panicked, which was printed where it happened.
            Err(_) => Err(self.failed("it panicked".to_owned())),
        }
    }

    /// Runs work that no caller waits for, after earlier work of this name. It is dropped if too
    /// many steps wait, and at the end of the threads.
    pub(super) fn run_aside(&self, name: &str, work: impl FnOnce() + Send + 'static) -> bool {
        let step = move |turn: Result<(), StepRefused>| turn.map_or((), |()| work());
        self.pool.as_ref().is_some_and(|pool| pool.submit(name, step).is_ok())
    }

    fn failed(&self, detail: String) -> VerbsError {
        let device = self.device.clone();
        VerbsError { side: Side::Local, call: "step", code: 0, device, detail, limit: None }
    }
}

impl Drop for Steps {
    /// Waits for running steps, a second or two, on a blocking thread.
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take()
            && let Ok(background) = Handle::try_current()
        {
            background.spawn_blocking(move || drop(pool));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_core::NodeName;
    use std::sync::mpsc::channel;

    fn peer(node: &str) -> NicPath {
        let name = |text: &str| NodeName::new(text).unwrap();
        NicPath { node: name(node), nic: name("tcp") }
    }

    /// A step blocked in the kernel delays no other peer; steps of its own peer wait in order.
    #[tokio::test]
    async fn blocked_step_delays_only_its_own_peer() {
        let steps = Steps::start("rxe0").unwrap();
        let (let_go, held) = channel::<()>();
        let peer_held = peer("silent");
        let silent = steps.run(&peer_held, move || Ok(held.recv().is_err()));
        let behind = steps.run_at(Place::Owed, &peer_held, || Ok(true));
        let others = async {
            for name in ["a", "b", "c"] {
                assert_eq!(steps.run(&peer(name), move || Ok(name)).await, Ok(name));
            }
            drop(let_go);
        };
        let (silent, behind, ()) = tokio::join!(silent, behind, others);
        assert_eq!((silent, behind), (Ok(true), Ok(true)));
    }

    #[tokio::test]
    async fn a_step_that_panics_is_an_error_of_ours() {
        let steps = Steps::start("rxe0").unwrap();
        let error = steps.run::<()>(&peer("a"), || panic!("of this step alone")).await.unwrap_err();
        assert_eq!((error.side, error.call), (Side::Local, "step"));
        assert_eq!(steps.run(&peer("a"), || Ok(1)).await, Ok(1));
    }
}
