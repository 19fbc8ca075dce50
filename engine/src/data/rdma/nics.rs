//! Registration with all NICs of an engine at once.

use super::regions::{Devices, Held, InPieces, OnDevices};
use crate::data::transport::Purpose;
use handfast_core::policy::TrustGroup;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::PIECES_MAX;
use handfast_transport::{Access, Cut, DeviceId, DeviceKey, Span};
use handfast_transport_rdma::{Nic, RdmaTransport, RegisterOptions, Registration, VerbsError};
use std::sync::Arc;
use std::thread;

/// Maximum bytes of a slice. Pieces of a registration share as many, so that each slice lies in one.
const OVERLAP_BYTES: u64 = crate::EngineLimits::SLICE_BYTES_MAX as u64;

/// The NICs, and how memory is registered with them.
pub(super) struct Nics<'a> {
    pub(super) rdma: &'a RdmaTransport,
    pub(super) options: RegisterOptions,
    /// Maximum bytes of one registration with each NIC, lost ones included.
    pub(super) region_bytes_max: u64,
    /// Number of trust groups.
    pub(super) groups: usize,
}

/// Permissions of peers in memory of this node's transfers.
const NOBODY: Access = Access { remote_read: false, remote_write: false };

/// A NIC, or the failure by which it was lost.
type Present = Result<Arc<Nic>, VerbsError>;

impl Nics<'_> {
    /// The NICs now, in the order of the keys.
    fn nics(&self) -> Vec<Present> {
        let of = |nic: Present| nic.and_then(|nic| nic.lost().cloned().map_or(Ok(nic), Err));
        self.rdma.nics().into_iter().map(of).collect()
    }

    /// The NICs and the trust groups of registrations, in the order of the keys.
    fn places(&self, purpose: Purpose) -> Vec<(Present, TrustGroup)> {
        let groups = match purpose {
            Purpose::Own => 0..self.groups,
            Purpose::Peers(group, _) => group.place()..group.place() + 1,
        };
        let of_nic = |nic: Present| {
            let group = |place: usize| TrustGroup(u8::try_from(place).unwrap_or(u8::MAX));
            groups.clone().map(move |place| (nic.clone(), group(place)))
        };
        self.nics().into_iter().flat_map(of_nic).collect()
    }

    fn register_pieces(
        &self,
        (nic, trust_group): (&Nic, TrustGroup),
        span: &Span,
        purpose: Purpose,
        cut: Cut,
    ) -> Result<Vec<Registration>, TransportError> {
        let access = match purpose {
            Purpose::Own => NOBODY,
            Purpose::Peers(_, access) => access,
        };
        let options = RegisterOptions { trust_group, ..self.options };
        let register = |piece: Span| nic.register_with(piece, access, options);
        let pieces = pieces(span, cut)?.into_iter();
        pieces.map(register).collect::<Result<_, _>>().map_err(TransportError::from)
    }
}

impl Held for Registration {
    fn end(self) -> bool {
        Self::end(self)
    }
}

impl Devices for Nics<'_> {
    type Held = Registration;

    fn present(&self, purpose: Purpose) -> Vec<Option<DeviceId>> {
        let places = self.places(purpose).into_iter();
        places.map(|(nic, group)| nic.ok().and_then(|nic| nic.id_for(group))).collect()
    }

    fn register(
        &self,
        span: &Span,
        purpose: Purpose,
    ) -> Result<OnDevices<Registration>, TransportError> {
        let (bytes, places) = (span.len() as u64, self.places(purpose));
        let cut = cut(bytes, self.region_bytes_max.min(bytes))?;
        // A lost device keeps its place among the keys, with those of no device until it is open
        // again.
        let held = on_all(&places, |(nic, group)| match nic {
            Ok(nic) => self.register_pieces((nic, *group), span, purpose, cut),
            Err(_) => Ok(Vec::new()),
        });
        let held = held.into_iter().collect::<Result<Vec<_>, _>>()?;
        let none = || DeviceKey { device: DeviceId::next(), local: 0, remote: 0 };
        let key = |of_nic: &Vec<Registration>, place: usize| {
            of_nic.get(place).map_or_else(none, Registration::key)
        };
        let by_piece = |place: usize| held.iter().map(move |of_nic| key(of_nic, place));
        let keys = (0..cut.count() as usize).flat_map(by_piece).collect();
        Ok(OnDevices { keys, cut, held })
    }

    fn register_at(
        &self,
        place: usize,
        span: &Span,
        purpose: Purpose,
        cut: Cut,
    ) -> InPieces<Registration> {
        let none = || TransportError::new(Side::Local, "register", "there is no such NIC");
        let (nic, group) = self.places(purpose).into_iter().nth(place).ok_or_else(none)?;
        let held = self.register_pieces((&*nic?, group), span, purpose, cut)?;
        Ok((held.iter().map(Registration::key).collect(), held))
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
