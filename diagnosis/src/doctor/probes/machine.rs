//! Limits of this process, and GPUs.

use crate::doctor::finding::seen;
use crate::doctor::{Context, Finding};
use crate::ids;
use crate::problem::Severity;

/// Bytes of queues, in addition to the served memory.
const RINGS_BYTES: u64 = 16 << 20;
/// Open files of a node with few peers.
const FILES_MIN: u64 = 1_024;
/// Open files of a node with the maximum number of peers.
const FILES_GOOD: u64 = 4_096;
/// The kernel's default number of mappings.
const MAPPINGS_MIN: u64 = 65_530;
/// Outgoing connections to one address that must be possible.
const LOCAL_PORTS_MIN: u16 = 2_048;

pub(super) fn limits(context: &mut Context<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let limits = &context.facts.limits;
    let over_rdma =
        context.request.wanted != crate::doctor::Wanted::Tcp && !context.facts.devices.is_empty();
    if let Some(bytes) = limits.locked_bytes.filter(|_| over_rdma && !limits.may_lock_anything()) {
        let needed = context.request.memory_bytes.saturating_add(RINGS_BYTES);
        let severity = if bytes < needed { context.without_rdma() } else { Severity::Risk };
        let id = if context.facts.is_pod { ids::K8S_CAPS } else { ids::LIM_MEMLOCK };
        findings.push(Finding::seen(id, severity, &[("bytes", &bytes), ("needed", &needed)]));
    }
    if let Some(files) = limits.files.filter(|files| *files < FILES_GOOD) {
        let severity = if files < FILES_MIN { Severity::Degraded } else { Severity::Risk };
        findings.push(seen!(LIM_NOFILE, severity, files));
    }
    for (group, used, max) in
        limits.rdma_objects.iter().filter(|(_, used, max)| over_rdma && used >= max)
    {
        let (folder, device) = group.split_once(' ').unwrap_or((group, "DEVICE"));
        let (cgroup, severity) = (format!("/{folder}"), context.without_rdma());
        findings.push(seen!(LIM_CGROUP, severity, cgroup, device, used, max));
    }
    if limits.mappings > 0 && limits.mappings < MAPPINGS_MIN {
        let observed = format!("vm.max_map_count = {}", limits.mappings);
        findings.push(Finding::new(ids::LIM_MAPCOUNT, Severity::Risk, observed));
    }
    let (first, last) = limits.local_ports;
    if last > 0 && last.saturating_sub(first) < LOCAL_PORTS_MIN {
        let observed = format!("ip_local_port_range = {first} {last}");
        findings.push(Finding::new(ids::LIM_EPHEMERAL, Severity::Risk, observed));
    }
    findings
}

/// Checks only the requirements of GPU memory over RDMA.
pub(super) fn gpu(context: &mut Context<'_>) -> Vec<Finding> {
    let facts = context.facts;
    let mut findings = Vec::new();
    let Some(gpu) = facts.cards.iter().find(|card| card.is_gpu) else { return findings };
    let modules = ["nvidia_peermem", "nv_peer_mem"];
    let has_module = modules.iter().any(|name| facts.modules.contains(*name));
    if !has_module && !facts.limits.exports_gpu_memory {
        findings.push(seen!(GPU_NOPEER, Severity::Risk, pci = gpu.address));
    }
    if facts.limits.iommu_translates {
        findings.push(seen!(GPU_IOMMU, Severity::Risk, pci = gpu.address));
    }
    findings
}
