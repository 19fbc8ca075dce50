//! The probes, in their order.

mod addresses;
mod devices;
mod kubernetes;
mod lane;
mod machine;
mod metadata;
mod names;
mod pair;
mod segment;
mod settings;
mod way;

pub(super) use settings::{is_foreign, without_secrets};

use super::{Applies, Probe};
use crate::problem::Text;

const fn text(en: &'static str, zh: &'static str) -> Text {
    Text { en, zh }
}

pub(super) static PROBES: &[Probe] = &[
    Probe {
        name: "build",
        title: text("This program", "本程序"),
        applies: Applies::ToRdma,
        after: &[],
        look: devices::build,
    },
    Probe {
        name: "namespace",
        title: text("Devices of this namespace", "本命名空间的设备"),
        applies: Applies::ToRdma,
        after: &[],
        look: devices::namespace,
    },
    Probe {
        name: "cards",
        title: text("Cards on the bus", "总线上的网卡"),
        applies: Applies::ToRdma,
        after: &["namespace"],
        look: devices::cards,
    },
    Probe {
        name: "modules",
        title: text("Kernel modules", "内核模块"),
        applies: Applies::ToRdma,
        after: &["namespace", "cards"],
        look: devices::modules,
    },
    Probe {
        name: "firmware",
        title: text("Firmware", "固件"),
        applies: Applies::ToRdma,
        after: &["namespace", "cards", "modules"],
        look: devices::firmware,
    },
    Probe {
        name: "device-names",
        title: text("Device names", "设备名"),
        applies: Applies::ToRdma,
        after: &["namespace", "cards", "modules", "firmware"],
        look: devices::names,
    },
    Probe {
        name: "kubernetes",
        title: text("Device plugins", "设备插件"),
        applies: Applies::ToRdma,
        after: &["device-names"],
        look: kubernetes::plugins,
    },
    Probe {
        name: "kinds",
        title: text("Kinds of devices", "设备类型"),
        applies: Applies::ToDevices,
        after: &["device-names"],
        look: devices::kinds,
    },
    Probe {
        name: "nodes",
        title: text("Device nodes", "设备节点"),
        applies: Applies::ToDevices,
        after: &["device-names"],
        look: devices::nodes,
    },
    Probe {
        name: "providers",
        title: text("User-space drivers", "用户态驱动"),
        applies: Applies::ToDevices,
        after: &["build", "device-names"],
        look: devices::providers,
    },
    Probe {
        name: "ports",
        title: text("Ports and links", "端口与链路"),
        applies: Applies::ToDevices,
        after: &["device-names"],
        look: addresses::ports,
    },
    Probe {
        name: "addresses",
        title: text("Addresses (GIDs)", "地址(GID)"),
        applies: Applies::ToDevices,
        after: &["device-names"],
        look: addresses::gids,
    },
    Probe {
        name: "mtu",
        title: text("MTU", "MTU"),
        applies: Applies::ToDevices,
        after: &["device-names"],
        look: addresses::mtu,
    },
    Probe {
        name: "limits",
        title: text("Limits", "资源限制"),
        applies: Applies::Always,
        after: &[],
        look: machine::limits,
    },
    Probe {
        name: "gpu",
        title: text("GPUs", "GPU"),
        applies: Applies::ToDevices,
        after: &["device-names"],
        look: machine::gpu,
    },
    Probe {
        name: "settings",
        title: text("Environment", "环境变量"),
        applies: Applies::Always,
        after: &[],
        look: settings::environment,
    },
    Probe {
        name: "name",
        title: text("Name and address", "名字与地址"),
        applies: Applies::WithAddress,
        after: &[],
        look: names::name,
    },
    Probe {
        name: "listen",
        title: text("Port to listen at", "监听端口"),
        applies: Applies::WithAddress,
        after: &["name"],
        look: names::listen,
    },
    Probe {
        name: "metadata",
        title: text("Metadata service", "元数据服务"),
        applies: Applies::WithMetadata,
        after: &[],
        look: metadata::metadata,
    },
    Probe {
        name: "segment",
        title: text("Entries of a node", "节点的元数据"),
        applies: Applies::WithSegment,
        after: &["metadata"],
        look: segment::segment,
    },
    Probe {
        name: "peer",
        title: text("The other host", "对端主机"),
        applies: Applies::WithPeer,
        after: &[],
        look: pair::peer,
    },
    Probe {
        name: "pair",
        title: text("The two hosts together", "双方对照"),
        applies: Applies::WithPeer,
        after: &["peer"],
        look: pair::pair,
    },
    Probe {
        name: "way",
        title: text("The way between the two", "双方之间的网络"),
        applies: Applies::WithPeer,
        after: &["peer"],
        look: way::way,
    },
    Probe {
        name: "lane",
        title: text("A lane between the two", "双方之间的通道"),
        applies: Applies::ToPeerOverRdma,
        after: &["peer", "pair"],
        look: lane::lane,
    },
];
