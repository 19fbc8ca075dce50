//! Mooncake nodes whose memory is reached over RDMA.

use super::region::{BUFFER, region};
use crate::error::Cause;
use handfast_core::mooncake::{BufferDescriptor, Nearness, PriorityMatrix, SegmentDescriptor};
use handfast_core::wire::{NodeDescriptor, RegionDescriptor, Transports};
use handfast_core::{Incarnation, NicPath, NodeName};

/// Begins the locations of buffers in the memory of accelerators.
const ACCELERATOR: &str = "cuda";

/// Converts a Mooncake node's descriptor, and chooses its device for lanes: its buffers are segments,
/// named by their indices, each with the key of that device.
///
/// # Errors
/// [`Cause::RdmaNotOffered`], or an invalid name.
pub(crate) fn describe_registered(
    descriptor: &SegmentDescriptor,
    address: &str,
) -> Result<(NicPath, NodeDescriptor), Cause> {
    let place = device(descriptor).ok_or(Cause::RdmaNotOffered)?;
    let device = &descriptor.devices[place];
    let name = descriptor.rdma_server_name.as_deref().filter(|name| !name.is_empty());
    let path = NicPath {
        node: NodeName::new(name.unwrap_or(&descriptor.name))?,
        nic: NodeName::new(&device.name)?,
    };
    let registered = |(number, buffer): (usize, &BufferDescriptor)| {
        let key = *buffer.rkey.get(place)?;
        let region = region(format!("{BUFFER}{number}"), buffer.addr, buffer.length);
        // Such a node says where memory is, and not what its devices show.
        let needs_flush = buffer.name.starts_with(ACCELERATOR);
        Some(RegionDescriptor { remote_keys: vec![key], needs_flush, ..region })
    };
    let node = NodeDescriptor {
        name: path.node.clone(),
        incarnation: Incarnation::UNKNOWN,
        address: address.to_owned(),
        transports: Transports { tcp: false, rdma: true },
        devices: vec![device.clone()],
        matrix: None,
        regions: descriptor.buffers.iter().enumerate().filter_map(registered).collect(),
        checksum: None,
        data_port: None,
        keep: false,
    };
    Ok((path, node))
}

/// Returns the index of the device to use: among the devices with an address and a key for every
/// buffer, the one near most buffers, or else the first.
fn device(descriptor: &SegmentDescriptor) -> Option<usize> {
    let works = |place: &usize| {
        // A device that failed at the start keeps its index, without address and keys.
        let gid = &descriptor.devices[*place].gid;
        let has_address = gid.chars().any(|c| !matches!(c, '0' | ':'));
        let keys = descriptor.buffers.iter().filter_map(|buffer| buffer.rkey.get(*place));
        has_address && keys.into_iter().all(|key| *key != 0)
    };
    let near = |place: &usize| {
        let name = &descriptor.devices[*place].name;
        let matrix = descriptor.priority_matrix.as_ref();
        let is_near = |buffer: &&BufferDescriptor| {
            let listed = |rows: &PriorityMatrix| {
                rows.locations().any(|(location, _)| *location == buffer.name)
                    && rows.nearness(&buffer.name, name) == Nearness::Preferred
            };
            matrix.is_some_and(listed)
        };
        descriptor.buffers.iter().filter(is_near).count()
    };
    let usable = (0..descriptor.devices.len()).filter(works);
    usable.min_by_key(|place| std::cmp::Reverse(near(place)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(text: &str) -> SegmentDescriptor {
        SegmentDescriptor::decode(text).unwrap()
    }

    const TWO_DEVICES: &str = r#"{"buffers":[
        {"addr":4096,"length":10,"lkey":[1,2,3],"name":"cpu:0","rkey":[0,12,13]},
        {"addr":8192,"length":20,"lkey":[4,5,6],"name":"cpu:1","rkey":[0,22,23]},
        {"addr":16384,"length":20,"name":"cpu:1"}],
        "devices":[{"name":"a","gid":"00:00","lid":0},{"name":"b","gid":"fe:01","lid":7},
        {"name":"c","gid":"fe:02","lid":8}],"name":"10.0.0.1:12001","protocol":"rdma",
        "priority_matrix":{"cpu:0":[["b"],["c"]],"cpu:1":[["b"],["c"]]}}"#;

    /// Lanes lead to the nearest working device, and buffers have its keys.
    #[test]
    fn lane_uses_nearest_working_device() {
        let (path, node) = describe_registered(&descriptor(TWO_DEVICES), "h:1").unwrap();
        assert_eq!(path.to_string(), "10.0.0.1:12001@b");
        let told: Vec<_> =
            node.regions.iter().map(|r| (&*r.name, r.remote_keys.clone(), r.bytes)).collect();
        assert_eq!(told, [("buffer-0", vec![12], 10), ("buffer-1", vec![22], 20)]);
        let far = TWO_DEVICES.replace(r#"[["b"],["c"]]"#, r#"[["c"],["b"]]"#);
        assert_eq!(describe_registered(&descriptor(&far), "h:1").unwrap().0.nic.as_str(), "c");
    }

    #[test]
    fn the_name_in_paths_is_the_one_that_is_told_for_them() {
        let named =
            TWO_DEVICES.replace("\"protocol\"", "\"rdma_server_name\":\"r:1\",\"protocol\"");
        let (path, node) = describe_registered(&descriptor(&named), "h:1").unwrap();
        assert_eq!((path.to_string(), node.name.as_str()), ("r:1@b".to_owned(), "r:1"));
    }

    #[test]
    fn a_node_without_a_working_device_is_refused() {
        let dead = TWO_DEVICES.replace("fe:01", "00:00").replace("fe:02", "00:00");
        assert_eq!(
            describe_registered(&descriptor(&dead), "h:1").err(),
            Some(Cause::RdmaNotOffered)
        );
    }
}
