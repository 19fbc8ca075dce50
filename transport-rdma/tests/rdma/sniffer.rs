//! RDMA packets that a wire's ends receive, from a packet socket.

use crate::wires::Wire;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::cell::RefCell;
use std::fs;
use std::io::{ErrorKind, Read};
use std::net::Ipv4Addr;

/// `ETH_P_IP` as the kernel takes it.
const PROTOCOL: i32 = (0x0800_u16).to_be() as i32;
const UDP: u8 = 17;
/// RoCE v2.
const PORT: u16 = 4791;
/// Room for all packets of one test, which are read after it.
const BUFFER_BYTES: usize = 16 << 20;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    to: Ipv4Addr,
    pub(crate) class: u8,
    /// With the IP header.
    pub(crate) bytes: usize,
}

pub(crate) struct Sniffer {
    socket: Socket,
    ends: [Ipv4Addr; 2],
    seen: RefCell<Vec<Packet>>,
}

impl Sniffer {
    /// Looks from now on.
    pub(crate) fn of(wire: &Wire) -> Self {
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(PROTOCOL)));
        let socket = socket.unwrap();
        socket.set_nonblocking(true).unwrap();
        fs::write("/proc/sys/net/core/rmem_max", BUFFER_BYTES.to_string()).unwrap();
        SockRef::from(&socket).set_recv_buffer_size(BUFFER_BYTES).unwrap();
        let ends = [0, 1].map(|side| wire.ip(side).parse().unwrap());
        Self { socket, ends, seen: RefCell::default() }
    }

    /// Packets to one end so far.
    pub(crate) fn towards(&self, side: usize) -> Vec<Packet> {
        let mut seen = self.seen.borrow_mut();
        let mut bytes = [0; 4096];
        loop {
            match (&self.socket).read(&mut bytes) {
                Ok(read) => seen.extend(packet(&bytes[..read])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        seen.iter().filter(|packet| packet.to == self.ends[side]).copied().collect()
    }
}

/// An IPv4 packet of RoCE v2.
fn packet(bytes: &[u8]) -> Option<Packet> {
    let header = 4 * usize::from(bytes.first()? & 15);
    let port = u16::from_be_bytes(bytes.get(header + 2..header + 4)?.try_into().ok()?);
    let to: [u8; 4] = bytes.get(16..20)?.try_into().ok()?;
    let is_ours = bytes[9] == UDP && port == PORT;
    is_ours.then(|| Packet { to: to.into(), class: bytes[1], bytes: bytes.len() })
}
