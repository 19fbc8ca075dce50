//! Resources offered to the kubelet of this host by device plugins.

use super::Tree;
use serde_json::Value;
use std::collections::BTreeMap;

/// The kubelet's checkpoint of registered plugins (kubernetes/kubernetes,
/// `pkg/kubelet/cm/devicemanager/checkpoint`).
const CHECKPOINT: &str = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

/// Returns the resources with their number of devices; none for a checkpoint of another form.
pub(super) fn resources(tree: &Tree<'_>) -> Option<BTreeMap<String, usize>> {
    let checkpoint: Value = serde_json::from_str(&tree.text(CHECKPOINT)).ok()?;
    let registered = match &checkpoint["Data"]["RegisteredDevices"] {
        Value::Object(registered) => registered.clone(),
        // No plugin has ever registered.
        Value::Null if checkpoint["Data"].is_object() => serde_json::Map::new(),
        _ => return None,
    };
    let count = |devices: &Value| devices.as_array().map_or(0, Vec::len);
    Some(registered.iter().map(|(name, devices)| (name.clone(), count(devices))).collect())
}
