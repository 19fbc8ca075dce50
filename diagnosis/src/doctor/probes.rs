//! The probes, in their order.

mod addresses;
mod devices;
mod kubernetes;
mod lane;
mod machine;
mod metadata;
mod names;
mod pair;
mod redis;
mod segment;
mod settings;
mod way;

pub(super) use settings::{is_foreign, without_secrets, without_user};

use super::{Applies, Probe};
use crate::problem::Text;

/// Each row has the name of a probe, its title in English and Chinese, the condition under which it
/// applies, the probes before it, and its function. A skipped probe also skips those after it.
macro_rules! probes {
    ($($name:literal: $en:literal, $zh:literal, $applies:ident, after $after:tt, $look:path;)+) => {
        &[$(Probe {
            name: $name,
            title: Text { en: $en, zh: $zh },
            applies: Applies::$applies,
            after: &$after,
            look: $look,
        }),+]
    };
}

pub(super) static PROBES: &[Probe] = probes! {
    "build": "This program", "本程序", ToRdma, after [], devices::build;
    "namespace": "Devices of this namespace", "本命名空间的设备", ToRdma, after [],
        devices::namespace;
    "cards": "Cards on the bus", "总线上的网卡", ToRdma, after ["namespace"], devices::cards;
    "modules": "Kernel modules", "内核模块", ToRdma, after ["cards"], devices::modules;
    "firmware": "Firmware", "固件", ToRdma, after ["modules"], devices::firmware;
    "device-names": "Device names", "设备名", ToRdma, after ["firmware"], devices::names;
    "kubernetes": "Device plugins", "设备插件", ToRdma, after ["device-names"], kubernetes::plugins;
    "kinds": "Kinds of devices", "设备类型", ToDevices, after ["device-names"], devices::kinds;
    "nodes": "Device nodes", "设备节点", ToDevices, after ["device-names"], devices::nodes;
    "providers": "User-space drivers", "用户态驱动", ToDevices, after ["build", "device-names"],
        devices::providers;
    "connection-manager": "Connection manager", "连接管理器", ToDevices,
        after ["build", "device-names"], devices::connection_manager;
    "ports": "Ports and links", "端口与链路", ToDevices, after ["device-names"], addresses::ports;
    "addresses": "Addresses (GIDs)", "地址(GID)", ToDevices, after ["device-names"], addresses::gids;
    "mtu": "MTU", "MTU", ToDevices, after ["device-names"], addresses::mtu;
    "limits": "Limits", "资源限制", Always, after [], machine::limits;
    "gpu": "GPUs", "GPU", ToDevices, after ["device-names"], machine::gpu;
    "settings": "Environment", "环境变量", Always, after [], settings::environment;
    "name": "Name and address", "名字与地址", WithAddress, after [], names::name;
    "listen": "Listening port", "监听端口", WithAddress, after ["name"], names::listen;
    "metadata": "Metadata service", "元数据服务", WithMetadata, after [], metadata::metadata;
    "segment": "Entries of a node", "节点的元数据", WithSegment, after ["metadata"], segment::segment;
    "peer": "The other host", "对端主机", WithPeer, after [], pair::peer;
    "pair": "The two hosts together", "双方对照", WithPeer, after ["peer"], pair::pair;
    "way": "The path between the two", "双方之间的网络", WithPeer, after ["peer"], way::way;
    "lane": "A lane between the two", "双方之间的通道", ToPeerOverRdma, after ["pair"], lane::lane;
};
