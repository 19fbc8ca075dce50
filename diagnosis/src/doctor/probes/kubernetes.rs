//! Resources for pods of this host.

use crate::doctor::finding::seen;
use crate::doctor::{Context, Finding};
use crate::problem::Severity;

/// Common parts of the names of RDMA resources.
const RESOURCES: [&str; 9] =
    ["rdma", "roce", "infiniband", "sriov", "hca", "efa", "mlnx", "mellanox", "ib_"];
/// Modules that the shared device plugin requires in addition to the devices.
const MODULES: [&str; 2] = ["ib_umad", "rdma_ucm"];

/// Checks that a plugin has offered the host's devices to its kubelet. A pod has no kubelet.
pub(super) fn plugins(context: &mut Context<'_>) -> Vec<Finding> {
    let facts = context.facts;
    let Some(resources) = facts.plugin_resources.as_ref().filter(|_| !facts.devices.is_empty())
    else {
        return Vec::new();
    };
    let is_rdma = |name: &String| RESOURCES.iter().any(|part| name.to_lowercase().contains(part));
    let of_rdma: Vec<_> = resources.iter().filter(|(name, _)| is_rdma(name)).collect();
    if of_rdma.iter().any(|(_, devices)| **devices > 0) {
        return Vec::new();
    }
    let offered: Vec<_> =
        resources.iter().map(|(name, devices)| format!("{name} = {devices}")).collect();
    let missing: Vec<_> =
        MODULES.into_iter().filter(|name| !facts.modules.contains(*name)).collect();
    let list = |words: String| if words.is_empty() { "-".to_owned() } else { words };
    let devices = facts.devices.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
    let [offered, missing] = [offered.join(", "), missing.join(", ")].map(list);
    // Pods may not be meant to have devices, unless there is a plugin for them.
    let severity = if of_rdma.is_empty() { Severity::Risk } else { Severity::Degraded };
    let finding = seen!(K8S_PLUGIN, severity, devices, offered, missing);
    vec![finding.alone()]
}
