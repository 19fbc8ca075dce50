//! A bulk transfer from one doctor to another, to measure the rate.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Requests a transfer, in place of a frame's magic; four ignored bytes follow.
pub(super) const BULK_MAGIC: &[u8; 8] = b"HFDOCTB1";
/// Duration of a transfer.
pub const BULK_TIME: Duration = Duration::from_millis(500);
/// Maximum bytes of a transfer.
pub const BULK_BYTES_MAX: u64 = 4 << 30;
/// The first part, which is not measured: a connection starts slowly.
const BEGINNING: Duration = Duration::from_millis(100);
const PIECE_BYTES: usize = 64 << 10;

/// Duration of a transfer over loopback, which shows the present capacity of a busy machine.
const LOOPBACK_TIME: Duration = Duration::from_millis(250);
/// Timeout of each step over loopback, which may itself be filtered.
const LOOPBACK_STEP_MAX: Duration = Duration::from_secs(1);

/// Sends for the given time, or [`BULK_BYTES_MAX`] bytes.
///
/// # Errors
/// The error of the connection.
pub(super) fn send(to: &mut impl Write, time: Duration) -> io::Result<()> {
    let piece = [0; PIECE_BYTES];
    let (started, mut sent) = (Instant::now(), 0);
    while started.elapsed() < time && sent < BULK_BYTES_MAX {
        to.write_all(&piece)?;
        sent += PIECE_BYTES as u64;
    }
    to.flush()
}

/// Receives a transfer and returns its bytes per second after the first part; `None` if it ended
/// earlier.
///
/// # Errors
/// The error of the connection.
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

/// Converts to megabits per second.
pub(super) fn to_mbps(bytes_per_s: u64) -> u32 {
    u32::try_from(bytes_per_s.saturating_mul(8) / 1_000_000).unwrap_or(u32::MAX)
}

/// Returns the present rate of this host over loopback TCP, in megabits per second; 0 if it cannot
/// be measured.
pub fn loopback_mbps() -> u32 {
    let moved = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut there = TcpStream::connect_timeout(&listener.local_addr()?, LOOPBACK_STEP_MAX)?;
        let (mut here, from) = listener.accept()?;
        if from != there.local_addr()? {
            return Err(io::Error::other("another process connected"));
        }
        here.set_read_timeout(Some(LOOPBACK_STEP_MAX))?;
        there.set_write_timeout(Some(LOOPBACK_STEP_MAX))?;
        std::thread::scope(|scope| {
            let sender = scope.spawn(move || send(&mut there, LOOPBACK_TIME));
            let received = receive(&mut here);
            // The sender ends once the receiving end is dropped.
            drop(here);
            // The sender's result is irrelevant: the receiver counts the bytes.
            let _ = sender.join();
            received
        })
    };
    moved().ok().flatten().map_or(0, to_mbps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender that stalls for all of its time is not measured, and a busy machine may let it.
    #[test]
    fn a_host_moves_bytes_to_itself_and_is_done_in_time() {
        assert!((0..20).any(|_| {
            let started = Instant::now();
            loopback_mbps() > 0 && started.elapsed() < 2 * BULK_TIME
        }));
    }
}
