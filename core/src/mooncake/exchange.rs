//! One request on a data connection.
//!
//! A reply has no number: it belongs to the only request that its connection has. A connection whose
//! exchange is not done carries no further request, or the reply to the first would count for the second.

use super::{DataStatus, DataStatusError, ProtocolVersion, REQUEST_BYTES};
use crate::transfer::{Direction, Sent};

/// A request on a connection, from its first byte to its last reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Exchange {
    direction: Direction,
    /// The peer sends a status.
    has_status: bool,
    /// Bytes of the header and of the body.
    bytes: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Sending,
    Status,
    Bytes,
    Proof,
    Done,
    Unusable,
}

/// The next part of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Awaits {
    /// A status frame.
    Status,
    /// The bytes of a read.
    Bytes,
    /// The answer to a read of the last written byte. Version 1 acknowledges no write; a connection
    /// serves requests in order, so that this answer confirms the write.
    Proof,
    /// Nothing: the exchange is done.
    Nothing,
}

/// A reply that ends an exchange without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplyError {
    /// The peer refuses the requested bytes, and closes the connection.
    Refused,
    /// The status comes before the whole write was sent, so that it answers something else.
    Early,
    /// The exchange awaits no status.
    Unasked,
    /// The status is of another protocol.
    Foreign(DataStatusError),
}

impl Exchange {
    /// An exchange that is about to send its first byte; `body` are the bytes of the request's span.
    pub fn new(direction: Direction, version: ProtocolVersion, body: u64) -> Self {
        let body = if direction == Direction::Write { body } else { 0 };
        let bytes = body.saturating_add(REQUEST_BYTES as u64);
        let has_status = version == ProtocolVersion::Two;
        Self { direction, has_status, bytes, stage: Stage::Sending }
    }

    /// The system has every byte of the request, of which it may still send some.
    pub fn handle_sent(&mut self) -> Awaits {
        self.stage = match (self.stage, self.direction) {
            (Stage::Sending, _) if self.has_status => Stage::Status,
            (Stage::Sending, Direction::Read) => Stage::Bytes,
            (Stage::Sending, Direction::Write) => Stage::Proof,
            (stage, _) => stage,
        };
        self.awaits()
    }

    /// A status has come.
    ///
    /// # Errors
    /// The connection is unusable.
    pub fn handle_status(
        &mut self,
        status: Result<DataStatus, DataStatusError>,
    ) -> Result<Awaits, ReplyError> {
        let (stage, error) = match (self.stage, status) {
            (_, Err(error)) => (Stage::Unusable, Some(ReplyError::Foreign(error))),
            (Stage::Sending | Stage::Status, Ok(DataStatus::Refused)) => {
                (Stage::Unusable, Some(ReplyError::Refused))
            }
            (Stage::Sending, Ok(DataStatus::Done)) => (Stage::Unusable, Some(ReplyError::Early)),
            (Stage::Status, Ok(DataStatus::Done)) if self.direction == Direction::Read => {
                (Stage::Bytes, None)
            }
            (Stage::Status, Ok(DataStatus::Done)) => (Stage::Done, None),
            _ => (Stage::Unusable, Some(ReplyError::Unasked)),
        };
        self.stage = stage;
        error.map_or(Ok(self.awaits()), Err)
    }

    /// The bytes of a read have come, or the proof of a write.
    pub fn handle_bytes(&mut self) -> Awaits {
        self.stage = match self.stage {
            Stage::Bytes | Stage::Proof => Stage::Done,
            _ => Stage::Unusable,
        };
        self.awaits()
    }

    /// The part of the request that the system has, of which it accepted `taken` bytes.
    pub fn sent(&self, taken: u64) -> Sent {
        match taken {
            0 => Sent::None,
            taken if taken < self.bytes => Sent::Partly,
            _ => Sent::All,
        }
    }

    /// Whether the exchange has succeeded. Only then the connection carries another request.
    pub fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    fn awaits(&self) -> Awaits {
        match self.stage {
            Stage::Status => Awaits::Status,
            Stage::Bytes => Awaits::Bytes,
            Stage::Proof => Awaits::Proof,
            Stage::Sending | Stage::Done | Stage::Unusable => Awaits::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DataStatus::{Done, Refused};
    use Direction::{Read, Write};
    use ProtocolVersion::{One, Two};

    /// Each kind of request is done by its own replies, and by no others.
    #[test]
    fn exchange_is_done_by_its_own_replies() {
        let mut exchange = Exchange::new(Read, Two, 8);
        assert_eq!(exchange.handle_sent(), Awaits::Status);
        assert_eq!(exchange.handle_status(Ok(Done)), Ok(Awaits::Bytes));
        assert!(!exchange.is_done(), "its bytes are to come");
        assert_eq!((exchange.handle_bytes(), exchange.is_done()), (Awaits::Nothing, true));
        let mut exchange = Exchange::new(Write, Two, 8);
        assert_eq!(exchange.handle_sent(), Awaits::Status);
        assert_eq!(exchange.handle_status(Ok(Done)), Ok(Awaits::Nothing));
        assert!(exchange.is_done());
        for (direction, awaits) in [(Read, Awaits::Bytes), (Write, Awaits::Proof)] {
            let mut exchange = Exchange::new(direction, One, 8);
            assert_eq!(exchange.handle_sent(), awaits);
            assert!(!exchange.is_done());
            exchange.handle_bytes();
            assert!(exchange.is_done());
        }
    }

    /// A status at another time than its own makes the connection unusable, whatever follows.
    #[test]
    fn status_at_another_time_ends_the_connection() {
        let foreign = DataStatusError::Code(7);
        let begun = |sent: bool, statuses: usize| {
            let mut exchange = Exchange::new(Write, Two, 8);
            if sent {
                exchange.handle_sent();
            }
            (0..statuses).for_each(|_| _ = exchange.handle_status(Ok(Done)));
            exchange
        };
        for (mut exchange, status, error) in [
            (begun(false, 0), Ok(Done), ReplyError::Early),
            (begun(false, 0), Ok(Refused), ReplyError::Refused),
            (begun(true, 0), Ok(Refused), ReplyError::Refused),
            (begun(true, 0), Err(foreign), ReplyError::Foreign(foreign)),
            (begun(true, 1), Ok(Done), ReplyError::Unasked),
            (begun(true, 1), Ok(Refused), ReplyError::Unasked),
        ] {
            assert_eq!(exchange.handle_status(status), Err(error));
            assert!(!exchange.is_done());
            exchange.handle_sent();
            exchange.handle_bytes();
            assert!(!exchange.is_done());
        }
    }

    #[test]
    fn part_that_was_sent_counts_the_header() {
        let head = REQUEST_BYTES as u64;
        let write = Exchange::new(Write, Two, 8);
        let sent = [0, 1, head + 7, head + 8].map(|taken| write.sent(taken));
        assert_eq!(sent, [Sent::None, Sent::Partly, Sent::Partly, Sent::All]);
        let read = Exchange::new(Read, Two, 8);
        assert_eq!(
            [0, head - 1, head].map(|taken| read.sent(taken)),
            [Sent::None, Sent::Partly, Sent::All]
        );
    }
}
