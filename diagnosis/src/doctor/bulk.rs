//! Bytes that one doctor sends another for a while, so that the other sees how fast they come.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Asks for it, where a frame's magic would stand; four bytes that are not looked at follow.
pub(super) const BULK_MAGIC: &[u8; 8] = b"HFDOCTB1";
/// For how long bytes are sent.
pub const BULK_TIME: Duration = Duration::from_millis(500);
/// Bytes that are sent at most.
pub const BULK_BYTES_MAX: u64 = 4 << 30;
/// The first part is not counted: a connection starts slowly.
const BEGINNING: Duration = Duration::from_millis(100);
const PIECE_BYTES: usize = 64 << 10;

/// Of a host to itself: what a busy machine can do at the time.
const LOOPBACK_TIME: Duration = Duration::from_millis(250);
/// For each step of it: loopback itself may be filtered.
const LOOPBACK_STEP_MAX: Duration = Duration::from_secs(1);

/// Sends for so long, or [`BULK_BYTES_MAX`].
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

/// Bytes that came in a second, from after the beginning to the end; none if they ended before.
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

/// Megabits in a second.
pub(super) fn to_mbps(bytes_per_s: u64) -> u32 {
    u32::try_from(bytes_per_s.saturating_mul(8) / 1_000_000).unwrap_or(u32::MAX)
}

/// Megabits in a second that this host moves to itself over TCP now; 0 if that cannot be tried.
pub fn loopback_mbps() -> u32 {
    let moved = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut there = TcpStream::connect_timeout(&listener.local_addr()?, LOOPBACK_STEP_MAX)?;
        let (mut here, from) = listener.accept()?;
        if from != there.local_addr()? {
            return Err(io::Error::other("somebody else connected"));
        }
        here.set_read_timeout(Some(LOOPBACK_STEP_MAX))?;
        there.set_write_timeout(Some(LOOPBACK_STEP_MAX))?;
        std::thread::scope(|scope| {
            let sender = scope.spawn(move || send(&mut there, LOOPBACK_TIME));
            let received = receive(&mut here);
            // Ends once nobody reads any more, whatever came of the reading.
            drop(here);
            // The sender's result does not matter: bytes are counted at the receiver.
            let _ = sender.join();
            received
        })
    };
    moved().ok().flatten().map_or(0, to_mbps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_moves_bytes_to_itself_and_is_done_in_time() {
        let started = Instant::now();
        assert!(loopback_mbps() > 0);
        assert!(started.elapsed() < 2 * BULK_TIME, "{:?}", started.elapsed());
    }
}
