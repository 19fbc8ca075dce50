//! Registration with all NICs of an engine at once.

use super::regions::{Devices, Held, OnDevices};
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::PIECES_MAX;
use handfast_transport::{Access, Cut, DeviceId, DeviceKey, Span};
use handfast_transport_rdma::{Nic, RegisterOptions, Registration};
use std::thread;

/// Maximum bytes of a slice. Pieces of a registration share as many, so that each slice lies in one.
const OVERLAP_BYTES: u64 = crate::EngineLimits::SLICE_BYTES_MAX as u64;

/// The NICs, and how memory is registered with them.
pub(super) struct Nics<'a> {
    pub(super) nics: Vec<&'a Nic>,
    pub(super) options: RegisterOptions,
}

impl Held for Registration {
    fn end(self) -> bool {
        Self::end(self)
    }
}

impl Devices for Nics<'_> {
    type Held = Registration;

    fn register(
        &self,
        span: &Span,
        access: Access,
    ) -> Result<OnDevices<Registration>, TransportError> {
        let bytes = span.len() as u64;
        let limits = self.nics.iter().map(|nic| nic.region_bytes_max());
        let cut = cut(bytes, limits.min().unwrap_or(bytes))?;
        let pieces = pieces(span, cut)?;
        // A lost device keeps its place among the keys, with those of no device.
        let of_nics = on_all(&self.nics, |nic| {
            let register = |piece: &Span| nic.register_with(piece.clone(), access, self.options);
            match nic.lost() {
                Some(_) => Ok(None),
                None => pieces.iter().map(register).collect::<Result<Vec<_>, _>>().map(Some),
            }
        });
        let of_nics = of_nics.into_iter().collect::<Result<Vec<_>, _>>()?;
        if let Some(lost) = self.nics.iter().find_map(|nic| nic.lost())
            && of_nics.iter().all(Option::is_none)
        {
            return Err(lost.clone().into());
        }
        let none = || DeviceKey { device: DeviceId::next(), local: 0, remote: 0 };
        let key = |of_nic: &Option<Vec<Registration>>, place: usize| {
            of_nic.as_ref().map_or_else(none, |pieces| pieces[place].key())
        };
        let by_piece = |place: usize| of_nics.iter().map(move |of_nic| key(of_nic, place));
        let keys = (0..pieces.len()).flat_map(by_piece).collect();
        Ok(OnDevices { keys, cut, held: of_nics.into_iter().flatten().flatten().collect() })
    }
}

fn cut(bytes: u64, piece_max: u64) -> Result<Cut, TransportError> {
    Cut::new(bytes, piece_max, OVERLAP_BYTES).ok_or_else(|| {
        let detail = format!(
            "the device registers at most {piece_max} bytes at once; a longer registration of \
             {bytes} bytes needs at most {PIECES_MAX} pieces of more than {OVERLAP_BYTES}: use, or \
             serve, smaller parts"
        );
        TransportError::new(Side::Configuration, "register", detail)
    })
}

fn pieces(span: &Span, cut: Cut) -> Result<Vec<Span>, TransportError> {
    let failed = |detail: String| TransportError::new(Side::Local, "register", detail);
    let piece = |range: std::ops::Range<u64>| {
        let (start, length) = (range.start as usize, (range.end - range.start) as usize);
        span.slice(start, length).map_err(|error| failed(error.to_string()))
    };
    cut.pieces().map(piece).collect()
}

/// Acts on all at the same time, each but the first on a thread of its own.
fn on_all<T: Sync, R: Send>(all: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let Some((first, others)) = all.split_first() else { return Vec::new() };
    let act = &act;
    thread::scope(|scope| {
        let start = |one| {
            let started = thread::Builder::new().spawn_scoped(scope, move || act(one));
            started.map_err(|_| one)
        };
        let started: Vec<_> = others.iter().map(start).collect();
        let mut results = vec![act(first)];
        for started in started {
            results.push(match started {
                Ok(ended) => ended.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // Without a thread of its own it takes its turn here.
                Err(one) => act(one),
            });
        }
        results
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use handfast_transport::Memory;
    use std::sync::Barrier;

    /// Pinning takes a second for some gibibytes; eight NICs must not take eight.
    #[test]
    fn nics_register_at_the_same_time() {
        let meeting = Barrier::new(3);
        let meet = |number: &u32| {
            meeting.wait();
            10 * number
        };
        assert_eq!(on_all(&[1, 2, 3], meet), [10, 20, 30], "in order");
        assert!(on_all(&[], meet).is_empty());
    }

    /// The pieces are spans of the registered bytes, of at most the device's limit.
    #[test]
    fn long_registration_has_pieces_within_the_limit() {
        let memory = Memory::zeroed(100 << 20).unwrap();
        let span = memory.span(1 << 20, 90 << 20).unwrap();
        let pieces = pieces(&span, cut(90 << 20, 50 << 20).unwrap()).unwrap();
        let found: Vec<_> = pieces.iter().map(|piece| (piece.offset(), piece.len())).collect();
        assert_eq!(found, [(1 << 20, 50 << 20), (35 << 20, 50 << 20), (69 << 20, 22 << 20)]);
        let error = cut(90 << 20, OVERLAP_BYTES).unwrap_err();
        assert_eq!(error.side, Side::Configuration);
        assert!(error.detail.contains("at most 16777216 bytes at once"), "{error}");
    }
}
