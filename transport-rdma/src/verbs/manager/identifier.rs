//! Event channels and identifiers of librdmacm. An identifier holds its channel, and each is destroyed
//! once.
#![allow(unsafe_code)]

use super::super::binding::{
    ManagerLibrary, PORT_SPACE, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};
use super::super::context::errno;
use super::super::objects::QueuePair;
use super::super::poller::never_block;
use libc::c_int;
use parking_lot::Mutex;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

/// RNR retries of a connection. Unused by one-sided operations.
const RECEIVER_NOT_READY_RETRIES: u8 = 6;
/// The level `RDMA_OPTION_ID` of an option, and its names `RDMA_OPTION_ID_TOS` and
/// `RDMA_OPTION_ID_ACK_TIMEOUT`.
const OPTION_ID: c_int = 0;
const OPTION_TRAFFIC_CLASS: c_int = 0;
const OPTION_TIMEOUT: c_int = 3;
/// Kinds of events, as `enum rdma_cm_event_type` of rdma-core counts them.
pub(in crate::verbs) mod kinds {
    pub(in super::super) const ADDRESS_RESOLVED: u32 = 0;
    pub(in super::super) const ADDRESS_ERROR: u32 = 1;
    pub(in super::super) const ROUTE_RESOLVED: u32 = 2;
    pub(in super::super) const ROUTE_ERROR: u32 = 3;
    pub(in super::super) const CONNECT_REQUEST: u32 = 4;
    pub(in super::super) const CONNECT_ERROR: u32 = 6;
    pub(in super::super) const UNREACHABLE: u32 = 7;
    pub(in super::super) const REJECTED: u32 = 8;
    pub(in super::super) const ESTABLISHED: u32 = 9;
    pub(in crate::verbs) const DISCONNECTED: u32 = 10;
    pub(in super::super) const DEVICE_REMOVAL: u32 = 11;
}

/// An event channel.
pub(super) struct EventChannel {
    library: &'static ManagerLibrary,
    raw: *mut rdma_event_channel,
}

// SAFETY: librdmacm is thread-safe by its documentation, and the channel is destroyed once, by the
// last holder.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: created by the matching call and destroyed here alone; each identifier of it held it
        // and is gone.
        unsafe { (self.library.rdma_destroy_event_channel)(self.raw) }
    }
}

/// An acknowledged event.
pub(super) struct Event {
    pub(super) kind: u32,
    pub(super) status: i32,
    /// The number of its identifier; that of the listening one for a connect request.
    pub(super) number: u64,
    /// The private data that came with it.
    pub(super) data: Vec<u8>,
    /// The identifier of a connect request.
    pub(super) request: Option<Identifier>,
}

impl EventChannel {
    /// Creates a channel whose descriptor does not block.
    ///
    /// # Errors
    /// The value of errno.
    pub(super) fn new(library: &'static ManagerLibrary) -> Result<Self, i32> {
        // SAFETY: the call takes nothing.
        let raw = unsafe { (library.rdma_create_event_channel)() };
        if raw.is_null() {
            return Err(errno());
        }
        let channel = Self { library, raw };
        let system = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        never_block(channel.descriptor()).map_err(system)?;
        Ok(channel)
    }

    /// Lets librdmacm close its own contexts of devices that are no longer listed: those without
    /// identifiers at once, others with the end of their last one.
    pub(super) fn close_unlisted(&self) {
        let optional = &self.library.optional;
        let calls = optional.rdma_get_devices.zip(optional.rdma_free_devices);
        let Some((devices, free)) = calls else { return };
        // SAFETY: the first call takes no count, and returns null or a list that is freed once.
        unsafe {
            let list = devices(ptr::null_mut());
            if !list.is_null() {
                free(list);
            }
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        // SAFETY: the channel lives while `self` does.
        unsafe { (*self.raw).fd }
    }

    /// Takes the events that are left, at most `max`, without a use of them: requests end. Returns whether one says
    /// that the device was removed.
    pub(super) fn take_rest(self: &Arc<Self>, max: usize) -> bool {
        let mut is_removed = false;
        for _ in 0..max {
            match self.take() {
                Ok(event) => is_removed |= event.kind == kinds::DEVICE_REMOVAL,
                Err(libc::EINTR) => {}
                Err(_) => break,
            }
        }
        is_removed
    }

    /// Takes and acknowledges the oldest event.
    ///
    /// # Errors
    /// The value of errno, `EAGAIN` without an event.
    pub(super) fn take(self: &Arc<Self>) -> Result<Event, i32> {
        let mut taken: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel lives; on success the call writes an event, which lives until its
        // acknowledgement below. Its identifier lives at least as long: a destruction waits for the
        // acknowledgement. Private data are as many bytes as the event says.
        unsafe {
            if (self.library.rdma_get_cm_event)(self.raw, &raw mut taken) != 0 {
                return Err(errno());
            }
            let event = &*taken;
            let parameters = event.param.conn;
            let data = match parameters.private_data {
                data if data.is_null() => Vec::new(),
                data => {
                    let length = usize::from(parameters.private_data_len);
                    std::slice::from_raw_parts(data.cast::<u8>(), length).to_vec()
                }
            };
            let number = (*event.id).context.addr() as u64;
            let request = (event.event == kinds::CONNECT_REQUEST)
                .then(|| Identifier { channel: Arc::clone(self), raw: Mutex::new(event.id) });
            let (kind, status) = (event.event, event.status);
            (self.library.rdma_ack_cm_event)(taken);
            Ok(Event { kind, status, number, data, request })
        }
    }
}

/// An identifier: of a connection, a request or a listener. Destroyed when it is ended or dropped, and
/// before the queue pair that it connects.
pub(super) struct Identifier {
    channel: Arc<EventChannel>,
    /// Null once it is destroyed. Held during each call.
    raw: Mutex<*mut rdma_cm_id>,
}

// SAFETY: librdmacm is thread-safe by its documentation, and the pointer is destroyed once, under the
// lock.
unsafe impl Send for Identifier {}
// SAFETY: as above.
unsafe impl Sync for Identifier {}

impl Drop for Identifier {
    fn drop(&mut self) {
        self.end();
    }
}

/// Outstanding reads of a connection, each way, and its retries.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Reads {
    /// Reads of the peer that this side accepts.
    pub(in crate::verbs) accepted: u8,
    /// Reads that this side begins at once.
    pub(in crate::verbs) begun: u8,
    pub(in crate::verbs) retries: u8,
}

/// Settings of an identifier; those of the kernel in the place of `None`.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::verbs) struct Options {
    /// The traffic class of packets.
    pub(in crate::verbs) traffic_class: Option<u8>,
    /// The exponent of the ACK timeout.
    pub(in crate::verbs) timeout_exponent: Option<u8>,
}

impl Identifier {
    /// Creates an identifier whose events have this number.
    ///
    /// # Errors
    /// The value of errno.
    pub(super) fn new(channel: &Arc<EventChannel>, number: u64) -> Result<Self, i32> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives; the number is never followed as a pointer.
        let returned = unsafe {
            let context = ptr::without_provenance_mut(name(number));
            (channel.library.rdma_create_id)(channel.raw, &raw mut raw, context, PORT_SPACE)
        };
        if returned != 0 {
            return Err(errno());
        }
        Ok(Self { channel: Arc::clone(channel), raw: Mutex::new(raw) })
    }

    /// Makes a call that returns 0 or sets errno.
    fn call(
        &self,
        call: impl FnOnce(&ManagerLibrary, *mut rdma_cm_id) -> c_int,
    ) -> Result<(), i32> {
        let raw = self.raw.lock();
        if raw.is_null() {
            return Err(libc::ENODEV);
        }
        match call(self.channel.library, *raw) {
            0 => Ok(()),
            _ => Err(errno()),
        }
    }

    /// Numbers the identifier of a request.
    pub(super) fn set_number(&self, number: u64) {
        let raw = *self.raw.lock();
        if !raw.is_null() {
            // SAFETY: the identifier lives while the pointer is there; nothing follows the number.
            unsafe { (*raw).context = ptr::without_provenance_mut(name(number)) };
        }
    }

    /// Binds to an address, and returns the name of its device, the port of the device, the port that was given, and
    /// the key of the address's partition, 0 without one.
    pub(super) fn bind(
        &self,
        address: SocketAddr,
        name_of: impl FnOnce(*mut super::super::binding::ibv_device) -> String,
    ) -> Result<(String, u8, u16, u16), i32> {
        let mut storage = Storage::new(address);
        // SAFETY: the identifier lives; the address is read through the call.
        self.call(|library, raw| unsafe { (library.rdma_bind_addr)(raw, storage.as_mut_ptr()) })?;
        let raw = self.raw.lock();
        // SAFETY: the identifier lives while the pointer is there. An identifier that is bound to an
        // address of a device has the device, which lives as long.
        unsafe {
            let verbs = (**raw).verbs;
            if verbs.is_null() {
                return Err(libc::ENODEV);
            }
            let port = u16::from_be((self.channel.library.rdma_get_src_port)(*raw));
            // Filled by the binding, of InfiniBand addresses; a number of zero before.
            let partition = u16::from_be((**raw).route.addr.addr.ibaddr.pkey);
            Ok((name_of((*verbs).device), (**raw).port_num, port, partition))
        }
    }

    pub(super) fn listen(&self, backlog: i32) -> Result<(), i32> {
        // SAFETY: the identifier lives.
        self.call(|library, raw| unsafe { (library.rdma_listen)(raw, backlog) })
    }

    /// Looks for the device and the path to an address, from one of our own. An event follows.
    pub(super) fn resolve(
        &self,
        own: IpAddr,
        target: SocketAddr,
        patience_ms: i32,
    ) -> Result<(), i32> {
        let mut own = Storage::new(SocketAddr::new(own, 0));
        let mut target = Storage::new(target);
        // SAFETY: the identifier lives; both addresses are read through the call.
        self.call(|library, raw| unsafe {
            (library.rdma_resolve_addr)(raw, own.as_mut_ptr(), target.as_mut_ptr(), patience_ms)
        })
    }

    /// Looks for the route of the resolved address. An event follows.
    pub(super) fn resolve_route(&self, patience_ms: i32) -> Result<(), i32> {
        // SAFETY: the identifier lives.
        self.call(|library, raw| unsafe { (library.rdma_resolve_route)(raw, patience_ms) })
    }

    /// Sends the connect request for a queue pair. May block until the peer's machine answers.
    pub(super) fn connect(&self, pair: &QueuePair, data: &[u8], reads: Reads) -> Result<(), i32> {
        let mut parameters = parameters(pair, data, reads);
        // SAFETY: the identifier lives. The queue pair lives through the call, and longer than the
        // identifier: a lane ends its identifiers before it destroys its queue pairs. The private data
        // are read through the call.
        self.call(|library, raw| unsafe {
            (*raw).qp = pair.raw();
            (library.rdma_connect)(raw, &raw mut parameters)
        })
    }

    /// The port of this side's address, 0 before it has one.
    pub(super) fn source_port(&self) -> u16 {
        let raw = self.raw.lock();
        if raw.is_null() {
            return 0;
        }
        // SAFETY: the identifier lives while the pointer is there.
        u16::from_be(unsafe { (self.channel.library.rdma_get_src_port)(*raw) })
    }

    /// Accepts the request with a queue pair.
    pub(super) fn accept(&self, pair: &QueuePair, data: &[u8], reads: Reads) -> Result<(), i32> {
        let mut parameters = parameters(pair, data, reads);
        // SAFETY: as in `connect`.
        self.call(|library, raw| unsafe {
            (*raw).qp = pair.raw();
            (library.rdma_accept)(raw, &raw mut parameters)
        })
    }

    /// Rejects the request.
    pub(super) fn reject(&self, data: Option<&[u8]>) -> Result<(), i32> {
        let (bytes, length) = data.map_or((ptr::null(), 0), |data| (data.as_ptr(), data.len()));
        let length = u8::try_from(length).unwrap_or(u8::MAX);
        // SAFETY: the identifier lives; the bytes are read through the call.
        self.call(|library, raw| unsafe { (library.rdma_reject)(raw, bytes.cast(), length) })
    }

    /// Disconnects. librdmacm moves the queue pair first: to ERR on InfiniBand and RoCE, to SQD on iWARP, where
    /// that begins the end of the stream. Where the device refuses the step the peer learns nothing, and
    /// [`Self::end`] disconnects.
    ///
    /// # Errors
    /// The value of errno, `EBUSY` during another call.
    pub(super) fn disconnect(&self) -> Result<(), i32> {
        let raw = self.raw.try_lock().ok_or(libc::EBUSY)?;
        if raw.is_null() {
            return Err(libc::ENODEV);
        }
        // SAFETY: the identifier lives while the pointer is there, and with it its queue pair, if it
        // has one.
        match unsafe { (self.channel.library.rdma_disconnect)(*raw) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    }

    /// Sets the traffic class, if there is one, and the exponent of the ACK timeout. A request's
    /// identifier has the dialling side's traffic class.
    ///
    /// # Errors
    /// The value of errno, `ENOSYS` from a library that has no options.
    pub(super) fn set_options(&self, options: Options) -> Result<(), i32> {
        let Options { traffic_class, timeout_exponent } = options;
        if let Some(class) = traffic_class {
            self.set_option(OPTION_TRAFFIC_CLASS, class)?;
        }
        timeout_exponent.map_or(Ok(()), |exponent| self.set_option(OPTION_TIMEOUT, exponent))
    }

    fn set_option(&self, name: c_int, mut value: u8) -> Result<(), i32> {
        let set = self.channel.library.optional.rdma_set_option.ok_or(libc::ENOSYS)?;
        // SAFETY: the identifier lives; one byte is read through the call.
        self.call(|_, raw| unsafe { set(raw, OPTION_ID, name, (&raw mut value).cast(), 1) })
    }

    /// Waits until no call is under way; says whether that is so.
    pub(super) fn is_free_by(&self, deadline: Instant) -> bool {
        self.raw.try_lock_until(deadline).is_some()
    }

    /// Destroys the identifier; afterwards it has no events and touches no queue pair. Waits for the
    /// acknowledgement of events that were taken.
    pub(super) fn end(&self) {
        let raw = std::mem::replace(&mut *self.raw.lock(), ptr::null_mut());
        if raw.is_null() {
            return;
        }
        // SAFETY: it was created by us or came with a request, and the pointer was taken out, so that it
        // is destroyed once. The queue pair is not the identifier's to destroy.
        let returned = unsafe { (self.channel.library.rdma_destroy_id)(raw) };
        if returned != 0 {
            tracing::warn!(code = errno(), "rdma_destroy_id failed");
        }
    }
}

/// A number in the place of a pointer.
fn name(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Name of a device of librdmacm's.
///
/// # Safety
/// The device is listed.
pub(super) unsafe fn device_name(
    verbs: &super::super::binding::Library,
    device: *mut super::super::binding::ibv_device,
) -> String {
    // SAFETY: by the function's own condition; the name ends with a null byte and lives as long as the
    // device.
    let text = unsafe { CStr::from_ptr((verbs.ibv_get_device_name)(device)) };
    text.to_string_lossy().into_owned()
}

fn parameters(pair: &QueuePair, data: &[u8], reads: Reads) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: u8::try_from(data.len()).unwrap_or(u8::MAX),
        responder_resources: reads.accepted,
        initiator_depth: reads.begun,
        flow_control: 0,
        retry_count: reads.retries,
        rnr_retry_count: RECEIVER_NOT_READY_RETRIES,
        srq: 0,
        qp_num: pair.number(),
    }
}

/// An address as the C library has it.
struct Storage(libc::sockaddr_storage);

impl Storage {
    fn new(address: SocketAddr) -> Self {
        // SAFETY: the structures are made of integers, of which all zeroes are one value.
        let mut storage: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
        let at = &raw mut storage;
        match address {
            SocketAddr::V4(address) => {
                let address = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage has room for every kind of address, and its alignment.
                unsafe { at.cast::<libc::sockaddr_in>().write(address) };
            }
            SocketAddr::V6(address) => {
                let address = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                // SAFETY: as above.
                unsafe { at.cast::<libc::sockaddr_in6>().write(address) };
            }
        }
        Self(storage)
    }

    fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

/// Addresses of this machine's network interfaces that are up, without those of the loopback.
pub(super) fn interface_addresses(max: usize) -> Vec<IpAddr> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    let mut found = Found { ipv4: Vec::new(), ipv6: Vec::new(), max };
    // SAFETY: the call writes a list, each of whose entries lives until it is freed below. An address is
    // null or of its family's structure.
    unsafe {
        if libc::getifaddrs(&raw mut first) != 0 {
            return Vec::new();
        }
        let mut at = first;
        while let Some(entry) = at.as_ref() {
            at = entry.ifa_next;
            let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
            let Some(address) = entry.ifa_addr.as_ref().filter(|_| is_up) else { continue };
            let ip = match i32::from(address.sa_family) {
                libc::AF_INET => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                    IpAddr::V4(u32::from_be(address.sin_addr.s_addr).into())
                }
                libc::AF_INET6 => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    IpAddr::V6(address.sin6_addr.s6_addr.into())
                }
                _ => continue,
            };
            let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            if !ip.is_loopback() && !is_link_local {
                found.add(ip);
            }
        }
        libc::freeifaddrs(first);
    }
    found.all()
}

/// Addresses of interfaces, as many of each family as are asked for: the list of the system may have any
/// number of one family before those of the other.
struct Found {
    ipv4: Vec<IpAddr>,
    ipv6: Vec<IpAddr>,
    max: usize,
}

impl Found {
    fn add(&mut self, ip: IpAddr) {
        let of_family = if ip.is_ipv4() { &mut self.ipv4 } else { &mut self.ipv6 };
        if of_family.len() < self.max {
            of_family.push(ip);
        }
    }

    /// Returns as many of them as are asked for, IPv4 first.
    fn all(self) -> Vec<IpAddr> {
        self.ipv4.into_iter().chain(self.ipv6).take(self.max).collect()
    }
}

/// 128 random bits of the kernel.
pub(super) fn random() -> u128 {
    let mut bytes = [0u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let left = &mut bytes[filled..];
        // SAFETY: the call writes at most as many bytes as there are left.
        let count = unsafe { libc::getrandom(left.as_mut_ptr().cast(), left.len(), 0) };
        // It fails when a signal interrupts it before the kernel's pool is ready, and is repeated.
        filled += usize::try_from(count).unwrap_or(0);
    }
    u128::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::LazyLock;

    /// An address of IPv4 is found behind any number of those of IPv6, and comes first.
    #[test]
    fn ipv4_address_is_found_behind_the_limit_of_others() {
        let mut found = Found { ipv4: Vec::new(), ipv6: Vec::new(), max: 4 };
        let ipv6 = |number: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, number]);
        (0..9).for_each(|number| found.add(ipv6(number)));
        let ipv4 = IpAddr::from([10, 0, 0, 1]);
        found.add(ipv4);
        assert_eq!(found.all(), [ipv4, ipv6(0), ipv6(1), ipv6(2)]);
    }

    /// Kinds of the events in the channel, of which the library owns one until it is acknowledged.
    static LEFT: Mutex<VecDeque<u32>> = Mutex::new(VecDeque::new());
    static ACKNOWLEDGED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

    /// Writes the next event.
    unsafe extern "C" fn next(_: *mut rdma_event_channel, to: *mut *mut rdma_cm_event) -> c_int {
        let Some(kind) = LEFT.lock().pop_front() else {
            // SAFETY: the thread's own errno.
            unsafe { *libc::__errno_location() = libc::EAGAIN };
            return -1;
        };
        // SAFETY: the structures are made of integers and pointers, of which all zeroes are one value.
        let (mut event, id): (Box<rdma_cm_event>, Box<rdma_cm_id>) = unsafe {
            (
                Box::new(MaybeUninit::zeroed().assume_init()),
                Box::new(MaybeUninit::zeroed().assume_init()),
            )
        };
        event.event = kind;
        event.id = Box::into_raw(id);
        // SAFETY: the caller's place for the event.
        unsafe { to.write(Box::into_raw(event)) };
        0
    }

    unsafe extern "C" fn acknowledge(event: *mut rdma_cm_event) -> c_int {
        // SAFETY: of `next`, and acknowledged once.
        let (event, _id) = unsafe {
            let event = Box::from_raw(event);
            let id = Box::from_raw(event.id);
            (event, id)
        };
        ACKNOWLEDGED.lock().push(event.event);
        0
    }

    unsafe extern "C" fn destroy(_: *mut rdma_event_channel) {}

    /// The rest of a channel's events is acknowledged, up to a limit, and a removal among them is noticed.
    #[test]
    fn events_that_are_left_are_acknowledged() {
        static LIBRARY: LazyLock<ManagerLibrary> = LazyLock::new(|| ManagerLibrary {
            rdma_get_cm_event: next,
            rdma_ack_cm_event: acknowledge,
            rdma_destroy_event_channel: destroy,
            ..ManagerLibrary::absent()
        });
        let channel = Arc::new(EventChannel { library: &LIBRARY, raw: ptr::null_mut() });
        let left = [kinds::DISCONNECTED, kinds::DEVICE_REMOVAL, kinds::ESTABLISHED];
        for (max, is_removed) in [(1, false), (1, true), (9, false)] {
            if LEFT.lock().is_empty() {
                LEFT.lock().extend(left);
            }
            assert_eq!(channel.take_rest(max), is_removed, "at most {max}");
        }
        assert_eq!(ACKNOWLEDGED.lock()[..], left);
        assert!(LEFT.lock().is_empty());
    }
}
