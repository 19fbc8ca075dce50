//! Room for another lane where a limit is reached: the lane that was idle for longest makes way, with
//! its peer's consent (rule H11), and the lane that is wanted is tried once more.

use crate::command::{Command, Commands};
use crate::time::Clock;
use crate::transport::{Attempt, NotRaised, Transport};
use handfast_core::transport::Outcome;
use handfast_core::wire::Body;
use handfast_core::{Duration, Lifecycle, NicPath};
use std::sync::Arc;
use tokio::sync::oneshot;

/// How long a lane that is to make way is waited for; less than the life cycle gives a BringUp.
const ROOM_WAIT_MAX: Duration = Duration::from_millis(4_000);

/// A lane on its way up.
pub(crate) struct Raising {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) commands: Commands,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) peer: NicPath,
    /// For either attempt.
    pub(crate) entropy: [u64; 2],
}

impl Raising {
    /// Brings the lane up, and tells the driver of a limit that kept it from coming up for good.
    pub(crate) async fn run(self) -> Outcome {
        let refused = match self.attempt(Attempt::First).await {
            Ok(body) => return Outcome::BroughtUp(body),
            Err(refused) => refused,
        };
        if refused.limit.is_none() {
            return Outcome::Failed(refused.error);
        }
        let (made, room) = oneshot::channel();
        self.commands.send(Command::RoomWanted { made });
        let at = self.clock.now() + ROOM_WAIT_MAX;
        tokio::select! {
            // Said by its end: a lane is gone, or none can make way.
            _ = room => {}
            () = self.clock.sleep_until(at) => {}
        }
        match self.attempt(Attempt::Last).await {
            Ok(body) => Outcome::BroughtUp(body),
            Err(NotRaised { error, limit }) => {
                if let Some(limit) = limit {
                    let (peer, error) = (self.peer, error.clone());
                    self.commands.send(Command::NoRoom { peer, error, limit });
                }
                Outcome::Failed(error)
            }
        }
    }

    async fn attempt(&self, attempt: Attempt) -> Result<Body, NotRaised> {
        let entropy = self.entropy[usize::from(attempt == Attempt::Last)];
        self.transport.bring_up(self.lifecycle, self.peer.clone(), entropy, attempt).await
    }
}
