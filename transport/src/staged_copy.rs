//! Copies between two blocks in steps that wait for no accelerator.

use crate::block::{MemoryError, Span};
use crate::kind::{MemoryKind, STAGING_BYTES};
use crate::staging::{STAGING_DEPTH, Staging};
use std::collections::VecDeque;

/// A copy to or from the memory of an accelerator, through pinned buffers. Dropped, it leaves copies in
/// flight to threads that wait for them.
pub struct StagedCopy {
    from: Span,
    to: Span,
    /// Buffers of an accelerator's bytes that are free.
    idle: Vec<Staging>,
    /// Buffers with pieces of an accelerator's bytes, the oldest first.
    out: VecDeque<Staging>,
    /// Buffers of pieces that are copied to an accelerator, the oldest first.
    into: VecDeque<Staging>,
    /// Bytes of which the way out has begun.
    begun: usize,
    /// Bytes that were passed to the target.
    passed: usize,
}

impl StagedCopy {
    /// Prepares a copy of `from` to `to`. `None` without a pinned buffer of each accelerator.
    ///
    /// # Errors
    /// As [`Span::copy_to`], before the first byte.
    pub fn new(from: &Span, to: &Span) -> Result<Option<Self>, MemoryError> {
        from.check_copy_to(to)?;
        let (Some(idle), Some(into)) = (buffers(from), buffers(to)) else { return Ok(None) };
        let (from, to, out) = (from.clone(), to.clone(), VecDeque::new());
        Ok(Some(Self { from, to, idle, out, into: into.into(), begun: 0, passed: 0 }))
    }

    /// Goes on as far as no copy of an accelerator is waited for, and returns whether all bytes are there.
    ///
    /// # Errors
    /// A copy failed; any part of the bytes may be there.
    pub fn step(&mut self) -> Result<bool, MemoryError> {
        while self.passed < self.from.len() {
            if !self.pass()? {
                return Ok(false);
            }
        }
        for buffer in &mut self.into {
            if !buffer.look() {
                return Ok(false);
            }
            buffer.wait()?;
        }
        Ok(true)
    }

    /// Whether a copy in flight writes the target.
    pub fn is_writing(&mut self) -> bool {
        self.into.iter_mut().any(|buffer| !buffer.has_ended())
    }

    /// Bytes that were passed to the target.
    pub fn passed(&self) -> usize {
        self.passed
    }

    /// Passes the next piece to the target, unless a copy before it runs.
    fn pass(&mut self) -> Result<bool, MemoryError> {
        let at = self.passed;
        let len = STAGING_BYTES.min(self.from.len() - at);
        if is_of_device(&self.to) && !self.into.front_mut().is_some_and(Staging::look) {
            return Ok(false);
        }
        let mut piece = None;
        if is_of_device(&self.from) {
            self.begin_out()?;
            if !self.out.front_mut().is_some_and(Staging::look) {
                return Ok(false);
            }
            piece = self.out.pop_front();
        }
        match (&mut piece, self.into.pop_front()) {
            (Some(piece), None) => {
                piece.wait()?;
                self.to.copy_in(at, &piece.bytes()[..len])?;
            }
            (piece, Some(mut buffer)) => {
                buffer.clear()?;
                let spare = &mut buffer.spare()[..len];
                match piece {
                    Some(piece) => {
                        piece.wait()?;
                        spare.copy_from_slice(&piece.bytes()[..len]);
                    }
                    None => self.from.copy_out(at, spare)?,
                }
                buffer.start_in(&self.to, at, len)?;
                self.into.push_back(buffer);
            }
            // One of both is of an accelerator.
            (None, None) => self.from.slice(at, len)?.copy_to(&self.to.slice(at, len)?)?,
        }
        self.passed += len;
        if let Some(mut piece) = piece {
            piece.clear()?;
            self.idle.push(piece);
            self.begin_out()?;
        }
        Ok(true)
    }

    /// Begins the way out of further pieces.
    fn begin_out(&mut self) -> Result<(), MemoryError> {
        while self.begun < self.from.len()
            && let Some(mut buffer) = self.idle.pop()
        {
            let len = STAGING_BYTES.min(self.from.len() - self.begun);
            buffer.start_out(&self.from, self.begun, len)?;
            self.begun += len;
            self.out.push_back(buffer);
        }
        Ok(())
    }
}

impl Drop for StagedCopy {
    fn drop(&mut self) {
        self.out.drain(..).chain(self.into.drain(..)).for_each(Staging::leave);
    }
}

fn is_of_device(span: &Span) -> bool {
    span.kind() != MemoryKind::Host
}

/// The buffers for an accelerator's memory, none of it for the host's; `None` without one.
fn buffers(span: &Span) -> Option<Vec<Staging>> {
    let depth = if is_of_device(span) { STAGING_DEPTH } else { 0 };
    let buffers: Vec<_> = (0..depth).map_while(|_| Staging::take(span)).collect();
    (depth == 0 || !buffers.is_empty()).then_some(buffers)
}
