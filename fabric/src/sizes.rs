//! Sizes of the requests that a driver takes, which the tables of `transport-sim` do not have.

use handfast_transport_sim::verbs::Profile;

/// The largest request of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) send_pieces: u32,
    pub(crate) receive_pieces: u32,
    pub(crate) read_pieces: u32,
    pub(crate) inline_bytes: u32,
}

/// Returns the sizes of a profile.
pub(crate) fn sizes(profile: &Profile) -> Sizes {
    let (send_pieces, receive_pieces, read_pieces, inline_bytes) = match profile.name {
        // RXE_MAX_SGE, and as many bytes as their entries take. The specification sets no sizes.
        "rxe" | "strict" => (32, 32, 32, 512),
        // The segments of a work queue entry of 512 bytes; libmlx5's limit for inline data.
        "mlx5" => (30, 32, 30, 828),
        // ICRDMA_MAX_WQ_FRAGMENT_COUNT, ICRDMA_MAX_INLINE_DATA_SIZE.
        "irdma" => (13, 13, 13, 101),
        // ERDMA_MAX_SEND_SGE, ERDMA_MAX_RECV_SGE, ERDMA_MAX_INLINE.
        name if name.starts_with("erdma") => (6, 1, 1, 96),
        _ => (1, 1, 1, 0),
    };
    Sizes { send_pieces, receive_pieces, read_pieces, inline_bytes }
}

impl Sizes {
    /// Whether a queue pair of these sizes can be created.
    pub(crate) fn admit(&self, (send, receive): (u32, u32), inline_bytes: u32) -> bool {
        send <= self.send_pieces
            && receive <= self.receive_pieces
            && inline_bytes <= self.inline_bytes
    }

    /// `max_sge` of the device: pieces that both queues take.
    pub(crate) fn pieces(&self) -> u32 {
        self.send_pieces.min(self.receive_pieces)
    }
}
