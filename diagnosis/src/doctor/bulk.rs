//! Bytes that one doctor sends another for a while, so that the other sees how fast they come.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// Asks for it, where a frame's magic would stand; four bytes that are not looked at follow.
pub(super) const BULK_MAGIC: &[u8; 8] = b"HFDOCTB1";
/// For how long bytes are sent.
pub const BULK_TIME: Duration = Duration::from_millis(500);
/// Bytes that are sent at most.
pub const BULK_BYTES_MAX: u64 = 4 << 30;
/// What comes first is not counted: a connection begins slowly.
const BEGINNING: Duration = Duration::from_millis(100);
const PIECE_BYTES: usize = 64 << 10;

/// Sends for [`BULK_TIME`], or [`BULK_BYTES_MAX`].
///
/// # Errors
/// What the connection says.
pub(super) fn send(to: &mut impl Write) -> io::Result<()> {
    let piece = [0; PIECE_BYTES];
    let (started, mut sent) = (Instant::now(), 0);
    while started.elapsed() < BULK_TIME && sent < BULK_BYTES_MAX {
        to.write_all(&piece)?;
        sent += PIECE_BYTES as u64;
    }
    to.flush()
}

/// Bytes that came in a second, from after the beginning to the end; none if they ended before.
///
/// # Errors
/// What the connection says.
pub(super) fn receive(from: &mut impl Read) -> io::Result<Option<u64>> {
    let mut piece = [0; PIECE_BYTES];
    let (started, mut counted, mut last) = (Instant::now(), 0, Duration::ZERO);
    while last < 2 * BULK_TIME {
        let bytes = match from.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => bytes as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        last = started.elapsed();
        if last > BEGINNING {
            counted += bytes;
        }
    }
    let took_ms = u64::try_from(last.saturating_sub(BEGINNING).as_millis()).unwrap_or(u64::MAX);
    Ok((took_ms > 0).then(|| counted.saturating_mul(1000) / took_ms))
}
