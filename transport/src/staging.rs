//! Buffers of the host between an accelerator's memory and a socket or another process, whose copies run
//! while other bytes are sent or received.

use crate::block::{MemoryError, Span};
use crate::kind::{AcceleratorError, STAGING_BYTES, staged};
use std::thread::Builder;

/// Buffers of one pipeline: one is copied while the other is sent, received or copied on.
pub const STAGING_DEPTH: usize = 2;
/// Questions about the copies of a buffer without a pause, for longer than an idle device takes.
const LOOKS_MAX: u32 = 256;
/// Name of the threads that wait for copies nobody else waits for.
const LEAVING_THREAD: &str = "handfast-copy";

/// A buffer of [`STAGING_BYTES`] that an accelerator's driver has pinned. Copies begin and run in order;
/// the bytes that they use are out of reach until they have ended. Its end waits for them and gives the
/// buffer back to the pool of the driver.
pub trait StagingBuffer: Send {
    /// Returns the bytes behind those of all copies.
    fn spare(&mut self) -> &mut [u8];

    /// Begins a copy of the first `len` spare bytes to `address`, which the caller has checked to be inside
    /// of a block.
    ///
    /// # Errors
    /// The driver refused; the bytes stay spare.
    fn start_in(&mut self, address: u64, len: usize) -> Result<(), AcceleratorError>;

    /// Begins a copy from `address`, which the caller has checked to be inside of a block, to the first `len`
    /// spare bytes.
    ///
    /// # Errors
    /// The driver refused; the bytes stay spare.
    fn start_out(&mut self, address: u64, len: usize) -> Result<(), AcceleratorError>;

    /// Whether the copies have ended, also by a failure, which [`StagingBuffer::wait`] reports. Does not
    /// wait.
    fn has_ended(&mut self) -> bool;

    /// Waits for the copies. It blocks its thread for that time, whose bound is the driver's.
    ///
    /// # Errors
    /// A copy failed; any part of its bytes may have been copied. Later calls report it again.
    fn wait(&mut self) -> Result<(), AcceleratorError>;

    /// Whether the driver could not be asked about the copies, which may run for ever.
    fn is_lost(&self) -> bool;

    /// Waits for the copies, and returns all bytes of the buffer; none after a failure.
    fn bytes(&mut self) -> &[u8];

    /// Waits for the copies, and makes all bytes spare.
    ///
    /// # Errors
    /// As [`StagingBuffer::wait`]: the bytes stay in use.
    fn clear(&mut self) -> Result<(), AcceleratorError>;
}

/// A pinned buffer, with the blocks that its copies use.
pub struct Staging {
    /// Dropped first: its end waits for the copies.
    buffer: Box<dyn StagingBuffer>,
    /// The blocks of copies that may be in flight.
    spans: Vec<Span>,
    context: u64,
    used: usize,
    /// Questions of [`Staging::look`] that are left.
    looks: u32,
}

impl Staging {
    /// Takes a buffer for copies of `span`. `None` for host memory, while all buffers of the pool are in
    /// use, or where the driver pins no more: such bytes pass through the buffer of the thread
    /// ([`staged`]).
    pub fn take(span: &Span) -> Option<Self> {
        let (device, _) = span.on_device(0)?;
        let buffer = device.staging()?;
        Some(Self { buffer, spans: Vec::new(), context: device.context(), used: 0, looks: 0 })
    }

    /// Returns the number of bytes that further copies of `span` may use; 0 if it is in another context.
    pub fn room(&self, span: &Span) -> usize {
        let is_known =
            span.on_device(0).is_some_and(|(device, _)| device.context() == self.context);
        if is_known { STAGING_BYTES - self.used } else { 0 }
    }

    /// Returns the bytes that no copy uses.
    pub fn spare(&mut self) -> &mut [u8] {
        self.buffer.spare()
    }

    /// Begins a copy of `len` bytes of `span` at `offset` to the front of the spare bytes, and returns
    /// their place in the buffer. `len` is at most [`Staging::room`].
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], and [`MemoryError::Accelerator`] if the driver refuses the copy.
    pub fn start_out(
        &mut self,
        span: &Span,
        offset: usize,
        len: usize,
    ) -> Result<usize, MemoryError> {
        let address = self.begin(span, offset, len)?;
        self.buffer.start_out(address, len)?;
        Ok(self.began(span, len))
    }

    /// Begins a copy of the first `len` spare bytes to `span` at `offset`. `len` is at most
    /// [`Staging::room`].
    ///
    /// # Errors
    /// As [`Staging::start_out`].
    pub fn start_in(&mut self, span: &Span, offset: usize, len: usize) -> Result<(), MemoryError> {
        let address = self.begin(span, offset, len)?;
        self.buffer.start_in(address, len)?;
        self.began(span, len);
        Ok(())
    }

    fn begin(&self, span: &Span, offset: usize, len: usize) -> Result<u64, MemoryError> {
        let out_of_range = || MemoryError::OutOfRange { offset, length: len, size: span.len() };
        let is_within = offset.checked_add(len).is_some_and(|end| end <= span.len());
        let (device, address) =
            span.on_device(offset).filter(|_| is_within).ok_or_else(out_of_range)?;
        if len > self.room(span) {
            return Err(out_of_range());
        }
        device.check(address)?;
        Ok(address)
    }

    fn began(&mut self, span: &Span, len: usize) -> usize {
        let place = self.used;
        self.used += len;
        self.looks = LOOKS_MAX;
        self.spans.push(span.clone());
        place
    }

    /// Whether the copies have ended, also by a failure, and use no block any more. Does not wait.
    pub fn has_ended(&mut self) -> bool {
        if !self.spans.is_empty() && self.buffer.has_ended() {
            self.let_go();
        }
        self.spans.is_empty()
    }

    /// Lets go of the blocks of ended copies. Those of lost copies are never freed.
    fn let_go(&mut self) {
        match self.buffer.is_lost() {
            true => self.spans.drain(..).for_each(std::mem::forget),
            false => self.spans.clear(),
        }
    }

    /// As [`Staging::has_ended`], and asks again without a pause for as long as an idle device may copy;
    /// later calls ask once.
    pub fn look(&mut self) -> bool {
        while self.looks > 0 && !self.has_ended() {
            self.looks -= 1;
        }
        self.has_ended()
    }

    /// Gives the buffer back without a wait. A thread waits for copies that have not ended, and holds
    /// their blocks until then.
    pub fn leave(mut self) {
        if !self.has_ended() {
            // Without a thread this one waits, as the closure is dropped.
            let _ = Builder::new().name(LEAVING_THREAD.to_owned()).spawn(move || drop(self));
        }
    }

    /// Waits for the copies, which use no block afterwards. A block whose copies the driver could not be
    /// asked about is held for ever.
    ///
    /// # Errors
    /// [`MemoryError::Accelerator`] if one failed, also of later calls: the buffer is of no more use.
    pub fn wait(&mut self) -> Result<(), MemoryError> {
        let ended = self.buffer.wait();
        self.let_go();
        Ok(ended?)
    }

    /// Waits for the copies, and returns the bytes of the buffer; none after a failure.
    pub fn bytes(&mut self) -> &[u8] {
        self.buffer.bytes()
    }

    /// Waits for the copies, and makes all bytes spare.
    ///
    /// # Errors
    /// As [`Staging::wait`].
    pub fn clear(&mut self) -> Result<(), MemoryError> {
        self.wait()?;
        self.buffer.clear()?;
        self.used = 0;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.spans.is_empty() {
            // Reported to those who asked before.
            let _ = self.wait();
        }
    }
}

impl std::fmt::Debug for Staging {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Staging({} bytes in use)", self.used)
    }
}

/// Passes an accelerator's bytes to `sink` in pieces of at most [`STAGING_BYTES`], with their offset. The
/// next piece is copied while `sink` runs.
///
/// # Errors
/// Those of `sink`, and those of copies by `failed`.
pub fn pass_out<E>(
    span: &Span,
    failed: impl Fn(MemoryError) -> E,
    mut sink: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let Some(mut now) = Staging::take(span).filter(|_| !span.is_empty()) else {
        return staged(|buffer| {
            pieces(span.len(), |at, len| {
                span.copy_out(at, &mut buffer[..len]).map_err(&failed)?;
                sink(at, &mut buffer[..len])
            })
        });
    };
    let start = |staging: &mut Staging, at: usize| {
        let len = STAGING_BYTES.min(span.len() - at);
        staging.start_out(span, at, len).map(drop)
    };
    let mut next = Staging::take(span);
    start(&mut now, 0).map_err(&failed)?;
    pieces(span.len(), |at, len| {
        let behind = at + len;
        if let Some(next) = next.as_mut().filter(|_| behind < span.len()) {
            start(next, behind).map_err(&failed)?;
        }
        now.clear().map_err(&failed)?;
        sink(at, &mut now.spare()[..len])?;
        match next.as_mut() {
            Some(next) => std::mem::swap(&mut now, next),
            None if behind < span.len() => start(&mut now, behind).map_err(&failed)?,
            None => {}
        }
        Ok(())
    })
}

/// Fills an accelerator's bytes from `source` in pieces of at most [`STAGING_BYTES`], with their offset. A
/// piece is copied while `source` makes the next one.
///
/// # Errors
/// Those of `source`, and those of copies by `failed`.
pub fn pass_in<E>(
    span: &Span,
    failed: impl Fn(MemoryError) -> E,
    mut source: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let Some(mut now) = Staging::take(span) else {
        return staged(|buffer| {
            pieces(span.len(), |at, len| {
                source(at, &mut buffer[..len])?;
                span.copy_in(at, &buffer[..len]).map_err(&failed)
            })
        });
    };
    let mut next = Staging::take(span);
    pieces(span.len(), |at, len| {
        source(at, &mut now.spare()[..len])?;
        now.start_in(span, at, len).map_err(&failed)?;
        if let Some(next) = next.as_mut() {
            std::mem::swap(&mut now, next);
        }
        now.clear().map_err(&failed)
    })?;
    next.map_or(Ok(()), |mut last| last.wait().map_err(&failed))
}

/// Calls `work` with the offset and the length of each piece.
fn pieces<E>(bytes: usize, mut work: impl FnMut(usize, usize) -> Result<(), E>) -> Result<(), E> {
    (0..bytes).step_by(STAGING_BYTES).try_for_each(|at| work(at, STAGING_BYTES.min(bytes - at)))
}
