//! Addresses of the C library.

use libc::{c_int, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

/// An address as the structures hold it.
pub(super) fn storage(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: the structure is made of numbers.
    let mut storage: sockaddr_storage = unsafe { crate::objects::zeroed() };
    let to = &raw mut storage;
    match address {
        SocketAddr::V4(address) => {
            let raw = sockaddr_in {
                sin_family: libc::AF_INET as sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has room and alignment for every address.
            unsafe { to.cast::<sockaddr_in>().write(raw) };
        }
        SocketAddr::V6(address) => {
            let raw = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { to.cast::<sockaddr_in6>().write(raw) };
        }
    }
    storage
}

/// The length of an address.
pub(super) fn length(address: SocketAddr) -> socklen_t {
    let bytes = match address {
        SocketAddr::V4(_) => size_of::<sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<sockaddr_in6>(),
    };
    bytes as socklen_t
}

/// The address at a pointer.
///
/// # Safety
/// It is null, or an address of its family.
pub(super) unsafe fn address(raw: *const sockaddr) -> Result<Option<SocketAddr>, c_int> {
    if raw.is_null() {
        return Ok(None);
    }
    // SAFETY: by the function's own condition; programs align addresses as they like.
    let family = c_int::from(unsafe { raw.cast::<sa_family_t>().read_unaligned() });
    match family {
        libc::AF_INET => {
            // SAFETY: as above.
            let raw = unsafe { raw.cast::<sockaddr_in>().read_unaligned() };
            let ip = u32::from_be(raw.sin_addr.s_addr).into();
            Ok(Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { raw.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (raw.sin6_addr.s6_addr.into(), u16::from_be(raw.sin6_port));
            Ok(Some(SocketAddrV6::new(ip, port, 0, raw.sin6_scope_id).into()))
        }
        _ => Err(libc::EAFNOSUPPORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address comes back from the structure's form.
    #[test]
    fn socket_address_comes_back_from_its_structure() {
        for text in ["10.0.0.1:7174", "[2001:db8::1]:7174"] {
            let given: SocketAddr = text.parse().unwrap();
            let raw = storage(given);
            // SAFETY: it is an address of its family.
            let back = unsafe { address((&raw const raw).cast()) };
            assert_eq!(back, Ok(Some(given)));
        }
        // SAFETY: null is allowed.
        assert_eq!(unsafe { address(std::ptr::null()) }, Ok(None));
    }
}
