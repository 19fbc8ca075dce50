//! The socket calls that take raw pointers: registered memory is never a slice.
#![allow(unsafe_code)]

use crate::failure::CopyFailed;
use crate::net::{PIECES_MAX, Piece};
use handfast_transport::{STAGING_BYTES, Span, staged};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use tokio::io::Interest;
use tokio::net::TcpStream;

const NOTHING: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

/// Performs `call`, which moves at most `room` bytes. A shorter count means that the socket is drained
/// or full, so it counts as not ready until the system reports otherwise: this saves a failing call
/// and small transfers while the other side is busy.
fn move_bytes(
    stream: &TcpStream,
    interest: Interest,
    room: usize,
    call: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    let mut moved = 0;
    let result = stream.try_io(interest, || {
        moved = call()?;
        if 0 < moved && moved < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    if moved > 0 { Ok(moved) } else { result.map(|()| 0) }
}

/// Bytes that one fill takes at most. Those of an accelerator's memory pass through the buffer of the
/// thread, alone.
pub(crate) fn fill_room(target: Option<&Span>, spare: usize) -> usize {
    match target.filter(|span| !span.is_empty()) {
        Some(span) if span.host_ptr().is_none() => span.len().min(STAGING_BYTES),
        target => target.map_or(0, Span::len) + spare,
    }
}

/// One `readv` into `target` and then `spare`, if the runtime reports readiness. 0 is the end of the
/// stream.
pub(crate) fn try_fill(
    stream: &TcpStream,
    target: Option<&Span>,
    spare: &mut [u8],
) -> io::Result<usize> {
    let room = fill_room(target, spare.len());
    move_bytes(stream, Interest::READABLE, room, || fill_now(stream, target, spare))
}

/// One `readv` into `target` and then `spare`, without waiting: the socket is non-blocking, like
/// every socket of the runtime. 0 is the end of the stream.
pub(crate) fn fill_now(
    stream: &TcpStream,
    target: Option<&Span>,
    spare: &mut [u8],
) -> io::Result<usize> {
    let mut vectors = [NOTHING; 2];
    let mut count = 0;
    if let Some(span) = target.filter(|span| !span.is_empty()) {
        if !span.is_writable() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let Some(start) = span.host_ptr() else { return fill_staged(stream, span) };
        vectors[count] = libc::iovec { iov_base: start.cast(), iov_len: span.len() };
        count += 1;
    }
    if !spare.is_empty() {
        vectors[count] = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len() };
        count += 1;
    }
    let file = stream.as_raw_fd();
    // SAFETY: the first `count` <= 2 vectors are initialised. A span's pointer and length name
    // bytes inside a mapping that `target` keeps, and it was just checked to be writable; no
    // reference to them exists, for none is ever made of registered memory. `spare` is an
    // exclusive borrow that outlives the call. The kernel writes only inside the vectors.
    let moved = unsafe {
        match vectors[..count] {
            // A third less work for the kernel, which matters for empty reads.
            [libc::iovec { iov_base, iov_len }] => libc::recv(file, iov_base, iov_len, 0),
            _ => libc::readv(file, vectors.as_ptr(), count as libc::c_int),
        }
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// One `recv` of bytes for an accelerator's memory, and their copy to it. It takes no more than the
/// buffer of the thread holds.
#[cold]
fn fill_staged(stream: &TcpStream, span: &Span) -> io::Result<usize> {
    staged(|buffer| {
        let room = span.len().min(buffer.len());
        let file = stream.as_raw_fd();
        // SAFETY: the first `room` bytes of the buffer are an exclusive borrow that outlives the call.
        let moved = unsafe { libc::recv(file, buffer.as_mut_ptr().cast(), room, 0) };
        let moved = usize::try_from(moved).map_err(|_| io::Error::last_os_error())?;
        span.copy_in(0, &buffer[..moved]).map_err(|error| CopyFailed::wrap(moved, &error))?;
        Ok(moved)
    })
}

/// Copies the first bytes of an accelerator's memory to the buffer of the thread and sends them behind
/// `before`. What the socket does not take is copied again by the next call.
///
/// # Errors
/// The copy failed: nothing is sent.
#[cold]
fn send_staged(
    stream: &TcpStream,
    before: &[Piece<'_>],
    span: &Span,
    skip: usize,
) -> io::Result<usize> {
    staged(|buffer| {
        let room = (span.len() - skip).min(buffer.len());
        let bytes = &mut buffer[..room];
        span.copy_out(skip, bytes).map_err(|error| CopyFailed::wrap(0, &error))?;
        let mut pieces = [Piece::Bytes(&[]); PIECES_MAX];
        pieces[..before.len()].copy_from_slice(before);
        pieces[before.len()] = Piece::Bytes(bytes);
        try_send(stream, &pieces[..=before.len()])
    })
}

/// One `sendmsg` of the first [`PIECES_MAX`] pieces, or of those up to the first of an accelerator's memory.
pub(crate) fn try_send(stream: &TcpStream, pieces: &[Piece<'_>]) -> io::Result<usize> {
    let mut vectors = [NOTHING; PIECES_MAX];
    let (mut count, mut room) = (0, 0);
    for (index, piece) in pieces.iter().take(PIECES_MAX).enumerate() {
        let (start, length) = match piece {
            Piece::Bytes(bytes) => (bytes.as_ptr().cast_mut(), bytes.len()),
            Piece::Memory { span, skip } => {
                let skip = (*skip).min(span.len());
                match span.host_ptr() {
                    Some(start) => (start.wrapping_add(skip), span.len() - skip),
                    // Sent before.
                    None if skip == span.len() => continue,
                    None => return send_staged(stream, &pieces[..index], span, skip),
                }
            }
        };
        vectors[count] = libc::iovec { iov_base: start.cast(), iov_len: length };
        (count, room) = (count + 1, room + length);
    }
    // SAFETY: an all-zero msghdr is valid: no name, no vectors, no control data, no flags.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = count;
    let file = stream.as_raw_fd();
    move_bytes(stream, Interest::WRITABLE, room, || {
        // SAFETY: `msg_iov` points at `count` initialised vectors on this stack frame. Each names
        // either a borrowed slice or bytes inside a mapping that a borrowed span keeps (`skip` is
        // at most its length); the kernel only reads them. A peer writing them meanwhile tears the
        // bytes on the wire and breaks no Rust value. MSG_NOSIGNAL: a closed peer is an error.
        let moved = unsafe { libc::sendmsg(file, &raw const message, libc::MSG_NOSIGNAL) };
        usize::try_from(moved).map_err(|_| io::Error::last_os_error())
    })
}

/// Sets `SO_RCVLOWAT`: the number of bytes that wakes a waiting task (socket(7); epoll respects it
/// since Linux 2.6.28). Non-blocking reads return any available bytes.
pub(crate) fn set_low_water(stream: &TcpStream, bytes: libc::c_int) {
    let size = std::mem::size_of::<libc::c_int>() as libc::socklen_t;
    // If the kernel refuses, it only causes more wake-ups than necessary.
    // SAFETY: the value is an integer on this stack frame, and `size` is its size.
    let _ = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size,
        )
    };
}
