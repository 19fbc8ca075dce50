//! Variables of the Mooncake Transfer Engine that set nothing here, and why.

/// The replacement of a variable.
pub(super) struct Known {
    pub(super) names: &'static [&'static str],
    pub(super) why: &'static str,
}

/// Names are those of the engine's own table of variables, `src/config.cpp` of its sources and what
/// other files read with getenv, at commit 3b5a59413.
#[rustfmt::skip]
pub(super) const WITHOUT_EFFECT: [Known; 25] = [
    Known { names: &["MC_NUM_CQ_PER_CTX", "MC_NUM_COMP_CHANNELS_PER_CTX", "MC_MAX_CQE_PER_CTX", "MC_WORKERS_PER_CTX"],
        why: "a device has one completion queue and one thread here, as deep as its lanes need" },
    Known { names: &["MC_AUTO_GID_MAX_RETRIES"],
        why: "another address of the port is tried with the next lane" },
    Known { names: &["MC_PKEY_INDEX", "MC_IB_PCI_RELAXED_ORDERING", "MC_MLX5_QP_UDP_SPORTS", "MC_MLX5_QP_LAG_PORT_BALANCE"],
        why: "queue pairs have the default of the device" },
    Known { names: &["MC_MAX_SGE", "MC_MAX_WR", "MC_MAX_INLINE", "MC_NUM_QP_PER_EP", "MC_MAX_EP_PER_CTX", "MC_ENDPOINT_STORE_TYPE"],
        why: "bounds of the library, EngineLimits; what both sides must agree on is in the handshake" },
    Known { names: &["MC_FRAGMENT_RATIO", "MC_TCP_SLICE_SIZE"],
        why: "slices are cut by MC_SLICE_SIZE alone" },
    Known { names: &["MC_MAX_MR_SIZE", "MC_MIN_REG_SIZE", "MC_ENABLE_PARALLEL_REG_MR", "MC_MAX_CONCURRENT_REG_MR", "WITH_NVIDIA_PEERMEM"],
        why: "memory is registered as a whole, when it is served or first used" },
    Known { names: &["MC_HANDSHAKE_PORT", "MC_LEGACY_RPC_PORT_BINDING"],
        why: "an address names its port here, --listen and HOST:PORT" },
    Known { names: &["MC_HANDSHAKE_LISTEN_BACKLOG", "MC_HANDSHAKE_MAX_LENGTH"],
        why: "connections are accepted at once, and frames have 1 MiB, as every release takes" },
    Known { names: &["MC_RETRY_CNT", "MC_SLICE_TIMEOUT"],
        why: "a transfer is tried again until its deadline or the loss of its peer: --timeout, --retries" },
    Known { names: &["MC_DISABLE_METACACHE", "MC_TE_METADATA_REFRESH_INTERVAL_SECONDS"],
        why: "what is known of a node is asked for again when it is lost, or an etcd says that it moved" },
    Known { names: &["MC_RDMA_RAIL_PAUSE_SECONDS", "MC_CONN_PAUSE_TTL_MS"],
        why: "failed lanes are opened again after pauses that grow" },
    Known { names: &["MC_USE_IPV6"],
        why: "addresses of both families are spoken to" },
    Known { names: &["MC_RDMA_BIND_ADDRESS"],
        why: "nodes are known by their names, and RDMA ports by their addresses" },
    Known { names: &["MC_FORCE_HCA"],
        why: "--transport rdma" },
    Known { names: &["MC_TE_FILTERS", "MC_PATH_ROUNDROBIN", "MC_TE_FILTERS_EXCLUDE", "MC_MS_AUTO_DISC", "MC_MS_FILTERS"],
        why: "--device" },
    Known { names: &["MC_ENABLE_DEST_DEVICE_AFFINITY", "MC_ENABLE_HCA_PEER_AFFINITY", "MC_NIC_PEER_AFFINITY"],
        why: "the devices of two nodes are paired by name, and of the pairs those are taken that are near the memory at both ends" },
    Known { names: &["MC_LOG_DIR", "MC_LOG_RDMA_SLICE_AFFINITY", "MC_TRACK_RDMA_POSTED_SLICES", "MC_YLT_LOG_LEVEL", "MC_TE_METRIC", "MC_TE_METRIC_INTERVAL_SECONDS"],
        why: "events are logged on standard error with -v, and recorded with --record" },
    Known { names: &["MC_TCP_ENABLE_CONNECTION_POOL"],
        why: "connections to Mooncake nodes are always kept" },
    Known { names: &["MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER", "MC_TCP_ADMISSION_TIMEOUT_MS"],
        why: "bounds of the library, EngineLimits::batches_max; a deadline counts from submission" },
    Known { names: &["MC_REDIS_USERNAME", "MC_REDIS_PASSWORD", "MC_REDIS_DB_INDEX"],
        why: "Redis is not spoken to" },
    Known { names: &["MC_USE_TENT", "MC_USE_TEV1", "MC_TE_RPC_CLIENT_IO_THREADS", "MC_TENT_CONF", "MC_TENT_RPC_THREADS", "MC_ENABLE_MNNVL", "MC_DISABLE_GPU_DIRECT_RDMA", "MC_TPU_PJRT_LIB"],
        why: "the first generation of the protocol alone is spoken" },
    Known { names: &["MC_FORCE_MNNVL", "MC_INTRANODE_NVLINK", "MC_FORCE_MUSA", "MC_MACA_HOST_TRANSPORT", "MC_DISABLE_HIP", "MC_DISABLE_MACA", "MC_DISABLE_MUSA", "MC_CXL_DEV_PATH", "MC_CXL_DEV_SIZE", "MC_INTRA_NVLINK", "MC_USE_NVLINK_IPC", "MC_USE_HIP_IPC", "MC_HIP_NUM_EVENTS", "MC_HIP_NUM_STREAMS", "MC_MACA_BATCHFLAG_MIN_BYTES", "MC_MACA_CALLER_SYNC", "MC_MACA_COPY_API", "MC_MUSA_COPY_API", "MC_MUSA_IPC_OPEN_DEVICE", "MC_MUSA_TRANSFER_BATCH_MIN_BYTES", "MC_USE_UBSHMEM_IPC", "MC_UBSHMEM_GET_STREAM_TIMEOUT", "MC_UBSHMEM_MAX_STREAMS", "MC_UBSHMEM_STREAMS_PER_TRANSFER", "MC_UBSHMEM_THREAD_POOL_SIZE", "MC_TANGRT_LIB_ARCH", "MC_TANGRT_LIB_DIR", "MC_TANGRT_ROOT"],
        why: "memory of accelerators and of CXL is not served" },
    Known { names: &["MC_EFA_NIC_SELECTION", "MC_EFA_CQ_THREADS"],
        why: "EFA is not spoken" },
    Known { names: &["MC_METADATA_SERVER", "MC_LOCAL_SERVER_NAME"],
        why: "Mooncake's examples and tests read it, and the engine does not: --metadata and --name" },
    Known { names: &["MC_RPC_PROTOCOL", "MC_RPC_CLIENT_IO_THREADS", "MC_RPC_CONNECT_TIMEOUT_MS", "MC_RPC_TIMEOUT_MS", "MC_DISABLE_MMAP_ARENA", "MC_MMAP_ARENA_POOL_SIZE"],
        why: OF_STORE },
];

/// Of what handfast has no part of.
const OF_STORE: &str = "it is of Mooncake Store, which is built on the transfer engine";
/// Further prefixes of Mooncake's variables.
const STORE: [&str; 2] = ["MC_STORE_", "MC_NOF_"];

/// The reason why a variable of Mooncake's sets nothing here; `None` for other variables.
pub(super) fn why_without_effect(name: &str) -> Option<&'static str> {
    let known = WITHOUT_EFFECT.iter().find(|known| known.names.contains(&name));
    let of_store = STORE.iter().any(|prefix| name.starts_with(prefix)).then_some(OF_STORE);
    known.map(|known| known.why).or(of_store)
}
