//! Capacity for a lane at a limit: a lane without local work is evicted, with
//! its peer's consent (rule H11), and the creation is retried once.

use crate::command::{Command, Commands};
use crate::data::transport::Transport;
use crate::time::Clock;
use handfast_core::transport::Outcome;
use handfast_core::wire::Body;
use handfast_core::{Duration, Lifecycle, NicPath};
use handfast_transport::{Attempt, NotCreated};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Time limit of the wait for an eviction, from the start of the first attempt. The life cycle
/// allows 5 s for a Create (`Timing::operation`), and the second attempt must end within them:
/// otherwise the reached limit would never be reported.
const CAPACITY_WAIT_MAX: Duration = Duration::from_millis(3_500);
/// Time limit of the second attempt, from the same start: steps of other peers may delay it. Past it the
/// limit of the first attempt is reported.
const LAST_ATTEMPT_MAX: Duration = Duration::from_millis(4_500);

/// An endpoint that is being created.
pub(crate) struct Creating {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) commands: Commands,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) peer: NicPath,
    /// Random numbers, one for each attempt.
    pub(crate) entropy: [u64; 2],
}

impl Creating {
    /// Creates the lane, and reports a limit that prevents both attempts to the driver.
    pub(crate) async fn run(self) -> Outcome {
        let begun = self.clock.now();
        let refused = match self.attempt(Attempt::First).await {
            Ok(body) => return Outcome::Created(body),
            Err(refused) => refused,
        };
        if refused.limit.is_none() {
            return self.failed(refused);
        }
        let (made, capacity) = oneshot::channel();
        self.commands.send(Command::CapacityWanted { made });
        tokio::select! {
            // Resolves when a lane is gone, or none can be evicted.
            _ = capacity => {}
            () = self.clock.sleep_until(begun + CAPACITY_WAIT_MAX) => {}
        }
        // An abandoned attempt may continue; the retire of the lifecycle follows it.
        let created = tokio::select! {
            created = self.attempt(Attempt::Last) => created,
            () = self.clock.sleep_until(begun + LAST_ATTEMPT_MAX) => Err(refused),
        };
        created.map_or_else(|refused| self.failed(refused), Outcome::Created)
    }

    fn failed(&self, refused: NotCreated) -> Outcome {
        let NotCreated { error, limit } = refused;
        if let Some(limit) = limit {
            let (peer, error) = (self.peer.clone(), error.clone());
            self.commands.send(Command::NoCapacity { peer, error, limit });
        }
        Outcome::Failed(error)
    }

    async fn attempt(&self, attempt: Attempt) -> Result<Body, NotCreated> {
        let entropy = self.entropy[usize::from(attempt == Attempt::Last)];
        self.transport.create(self.lifecycle, self.peer.clone(), entropy, attempt).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::local::LocalRegion;
    use crate::data::transport::{Offer, Registered};
    use crate::time::TokioClock;
    use crate::topology::Location;
    use handfast_core::policy::TrustGroup;
    use handfast_core::transport::{Side, TransportError};
    use handfast_core::{NodeName, Pair};
    use handfast_transport::{
        Access, Created, DataPath, Endpoints, Posting, SliceId, Span, Step, TransportKind,
    };
    use handfast_transport_rdma::{LimitReached, NicLimit};
    use tokio::sync::mpsc::UnboundedReceiver;

    const FULL: LimitReached = LimitReached { limit: NicLimit::QueuePairs, in_use: 2, max: 2 };

    /// A device without capacity, whose step threads hang once capacity was requested.
    struct Full;

    impl DataPath for Full {
        fn post(&self, _: Lifecycle, _: &mut Vec<Posting>) {}
        fn withdraw(&self, _: Lifecycle, _: SliceId, _: Duration) {}
    }

    impl Endpoints for Full {
        fn create(&self, _: Lifecycle, _: NicPath, _: u64, attempt: Attempt) -> Created {
            match attempt {
                Attempt::First => {
                    let error = full();
                    Box::pin(async { Err(NotCreated { error, limit: Some(FULL) }) })
                }
                Attempt::Last => Box::pin(std::future::pending()),
            }
        }
        fn connect(&self, _: Pair, _: Pair, _: Body) -> Step<()> {
            Box::pin(std::future::pending())
        }
        fn retire(&self, _: Lifecycle) -> Step<()> {
            Box::pin(std::future::pending())
        }
        fn transport_kind(&self, _: Lifecycle) -> TransportKind {
            TransportKind::Rdma
        }
        fn served(&self, _: Lifecycle) -> u64 {
            0
        }
    }

    impl Transport for Full {
        fn offer(&self) -> &Offer {
            static NOTHING: std::sync::LazyLock<Offer> = std::sync::LazyLock::new(|| Offer {
                transports: handfast_core::wire::Transports { tcp: false, rdma: false },
                ..Offer::default()
            });
            &NOTHING
        }
        fn registered(&self, _: &Span) -> Option<Arc<LocalRegion>> {
            None
        }
        fn register(&self, _: &Span, _: (TrustGroup, Access), _: Option<Location>) -> Registered {
            Ok(None)
        }
        fn prepare(&self, _: &Span, _: Option<Location>) -> Registered {
            Ok(None)
        }
    }

    fn full() -> TransportError {
        let detail = "2 of 2 queue pairs".to_owned();
        TransportError { side: Side::Local, call: "ibv_create_qp".into(), code: 12, detail }
    }

    async fn created(
        answer: impl Fn(oneshot::Sender<()>) -> Option<oneshot::Sender<()>>,
    ) -> (Outcome, UnboundedReceiver<Command>, Duration) {
        let (commands, mut received) = Commands::channel();
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let name = |text: &str| NodeName::new(text).unwrap();
        let peer = NicPath { node: name("peer"), nic: name("rxe0") };
        let (lifecycle, entropy) = (Lifecycle(1), [0; 2]);
        let begun = clock.now();
        let transport = Arc::new(Full);
        let creating =
            Creating { transport, commands, clock: clock.clone(), lifecycle, peer, entropy };
        let outcome = tokio::spawn(creating.run());
        let Some(Command::CapacityWanted { made }) = received.recv().await else {
            panic!("room was not asked for")
        };
        let kept = answer(made);
        let outcome = outcome.await.unwrap();
        drop(kept);
        (outcome, received, Duration(clock.now().0 - begun.0))
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_told_in_time_though_the_second_attempt_hangs() {
        for keeps in [true, false] {
            let (outcome, mut received, took) = created(|made| keeps.then_some(made)).await;
            assert_eq!(outcome, Outcome::Failed(full()));
            let Some(Command::NoCapacity { error, limit, .. }) = received.recv().await else {
                panic!("the limit was not reported")
            };
            assert_eq!((error, limit), (full(), FULL));
            let operation = handfast_core::node::Timing::default().operation;
            assert!(took >= LAST_ATTEMPT_MAX && took < operation, "{took:?}");
        }
    }
}
