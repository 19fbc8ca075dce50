//! Limits of a NIC, reported when an endpoint cannot be created.

/// A limit of a NIC that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{limit}: {in_use} of {max} are in use by this process; {}", .limit.cure())]
pub struct LimitReached {
    /// The limit.
    pub limit: NicLimit,
    /// Number in use by this process; other processes may use the device too.
    pub in_use: u64,
    /// Maximum: the device's limit, or a lower configured one.
    pub max: u64,
}

/// The limits of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NicLimit {
    /// `NicConfig::lanes_max`.
    #[error("lanes")]
    Lanes,
    /// Lanes of one peer, by the engine's `lanes_per_peer_max`.
    #[error("lanes of one peer")]
    LanesOfPeer,
    /// `NicConfig::queue_pairs_max` or `NicConfig::connections_max`, or the device's own.
    #[error("queue pairs")]
    QueuePairs,
    /// Entries of completion queues.
    #[error("entries of completion queues")]
    CompletionEntries,
    /// Regions of the device.
    #[error("registered regions")]
    Regions,
    /// Memory that the process may lock, in bytes. Every device charges the same bytes again.
    #[error("locked memory, in bytes")]
    LockedMemory,
}

impl NicLimit {
    /// Human-readable remedy.
    pub fn cure(self) -> &'static str {
        match self {
            Self::Lanes => "retire idle lanes, or raise the setting lanes_max",
            Self::LanesOfPeer => {
                "find out why that peer opens so many lanes, or raise the setting lanes_per_peer_max"
            }
            Self::QueuePairs => {
                "retire idle lanes, use fewer queue pairs per lane, or raise the limit: \
                 `rdma resource` shows the device's users; the cgroup's rdma.max may be lower"
            }
            Self::CompletionEntries => "retire idle lanes, or lower NicConfig::depth",
            Self::Regions => "register fewer and larger regions, or unregister some",
            Self::LockedMemory => {
                "raise the limit of locked memory (`ulimit -l`, LimitMEMLOCK= of systemd), which \
                 every device charges again for the same bytes, or give the process CAP_IPC_LOCK"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory registered with eight devices is charged eight times, which nobody expects.
    #[test]
    fn locked_memory_refusal_tells_the_factor() {
        let limit = LimitReached { limit: NicLimit::LockedMemory, in_use: 1, max: 65_536 };
        let text = limit.to_string();
        assert!(text.contains("every device charges again"), "{text}");
        assert!(text.starts_with("locked memory, in bytes: 1 of 65536 are in use"), "{text}");
    }
}
