//! Reasons why a lane shares no memory with its peer.

use handfast_core::sharing::Staged;
use handfast_core::transport::Side;

/// Reason why a lane has no channel, or none for a part of the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum NoChannel {
    /// Neither a hello nor a reason has come.
    #[error("the peer has not connected")]
    NotConnected,
    /// The peer's message has no announcement.
    #[error("the peer offers none")]
    NotOffered,
    /// The announcement has another form.
    #[error("the peer's announcement cannot be read")]
    Unreadable,
    /// The kernels differ.
    #[error("the peer runs on another host")]
    OtherHost,
    /// Only the peer has a directory.
    #[error("the peer listens in a directory, and this node has none configured")]
    NoDirectory,
    /// Nothing listens at the announced name.
    #[error("the peer's socket is not in this network namespace, or not in the directory")]
    NoSocket,
    /// The system forbids the socket.
    #[error("the peer's socket may not be used")]
    Forbidden,
    /// The peer's process belongs to another user.
    #[error("the process at the peer's socket belongs to another user")]
    OtherUser,
    /// The system failed to connect or to pass a file.
    #[error("the peer's socket took no hello")]
    NoHello,
    /// The peer closed the connection.
    #[error("the peer refused the channel")]
    Refused,
    /// [`ANSWER_MAX`](crate::ANSWER_MAX) or [`ANSWER_UNAWAITED_MAX`](crate::ANSWER_UNAWAITED_MAX)
    /// has passed.
    #[error("the peer did not answer in time")]
    Late,
    /// The page of the answer has another number.
    #[error("the process at the peer's socket is not the peer")]
    NotThePeer,
    /// The end of the peer's process cannot be seen.
    #[error(
        "the end of the peer's process cannot be watched: Linux 6.5, or one namespace of processes \
         on Linux 5.3, is needed"
    )]
    Unwatched,
    /// There is a channel, and private memory of the peer is out of reach.
    #[error("the kernel does not let this process reach private memory of the peer")]
    Untraced,
    /// There is a channel, and a region on a device of the peer is staged.
    #[error("memory of a device of the peer is staged through the host: {0}")]
    Staged(Staged),
    /// There is a channel, and a region of the peer stays open in this process until it ends.
    #[error("a device's driver does not close memory of the peer: it stays open in this process")]
    Kept,
    /// The lane is for another pair.
    #[error("another pair has connected")]
    OtherPair,
    /// The lane was retired.
    #[error("the lane was retired")]
    Retired,
    /// The channel has ended.
    #[error("the channel has ended")]
    Ended,
}

impl NoChannel {
    /// The side that an error of a lane names. A shortage passes, so that another lane may have a
    /// channel; nothing but a change of the configuration helps against the rest.
    pub fn side(self) -> Side {
        match self {
            Self::NoHello
            | Self::Kept
            | Self::Staged(Staged::Full | Staged::Earlier | Staged::NotOpened) => Side::Local,
            Self::Refused | Self::Late | Self::NotThePeer | Self::OtherPair | Self::Ended => {
                Side::Peer
            }
            _ => Side::Configuration,
        }
    }

    /// Whether the two processes appear to run on one host, so that the reason can be removed.
    pub fn is_of_one_host(self) -> bool {
        matches!(
            self,
            Self::NoDirectory
                | Self::NoSocket
                | Self::Forbidden
                | Self::OtherUser
                | Self::NoHello
                | Self::Refused
                | Self::Late
                | Self::NotThePeer
                | Self::Unwatched
                | Self::Untraced
                | Self::Staged(_)
                | Self::Kept
        )
    }
}
