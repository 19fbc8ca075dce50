//! Reports of a NIC other than completions and lane failures.

use handfast_transport::LaneSink;

/// An asynchronous event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A port can be used again. May come twice, and queue pairs may need a moment.
    PortActive {
        /// Its number.
        port: u32,
    },
    /// A port went down. What is in flight ends by itself, or goes on if the port returns in time.
    PortDown {
        /// Its number.
        port: u32,
    },
    /// Addresses of a port were added or removed.
    AddressesChanged {
        /// Its number.
        port: u32,
    },
    /// The device is lost, or its events or completions can no longer be read. Every lane on it has
    /// failed, and it takes no more. Comes once.
    DeviceLost,
    /// Any other event, by rdma-core's number.
    Other(u32),
}

/// The receiver of a NIC's reports. Called from the NIC's own thread, from one that waits for a
/// completion ([`DataPath::busy_poll`](handfast_transport::DataPath)), and from within `post` and
/// `retire`, without a lock of the NIC held that these take; it must not block and may post. It must
/// not retire.
pub trait NicSink: LaneSink {
    /// Handles an event of the device with this name.
    fn on_device_event(&self, _device: &str, _event: DeviceEvent) {}
}
