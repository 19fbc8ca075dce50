//! The doctor on machines made of files: one problem each, and the healthy state.

mod bundle;
mod hosts;
mod managed;
mod network;
mod pods;
mod schema;
mod segments;
mod way;

use crate::scene::{NIC, SECOND, Scene};
use handfast_diagnosis::doctor::{Library, Wanted};
use handfast_diagnosis::{Severity, Side};

#[test]
fn a_machine_in_which_nothing_is_wrong_gets_no_complaint() {
    Scene::healthy().is_healthy();
    Scene::with_two().is_healthy();
    let mut without = Scene::empty();
    without.request.wanted = Wanted::Tcp;
    without.is_healthy();
}

#[test]
fn missing_card_is_the_only_finding() {
    let scene = Scene::empty();
    let finding = scene.finding("HW-PCI-ABSENT");
    assert_eq!(finding.severity, Severity::Fatal);
    assert!(finding.observed.contains("eth0"), "{}", finding.observed);
    assert_eq!(finding.command(), "rdma link add rxe0 type rxe netdev eth0");
    let skipped = scene.skipped();
    for probe in ["modules", "firmware", "device-names", "nodes", "ports", "addresses", "mtu"] {
        assert_eq!(skipped.get(probe), Some(&"HW-PCI-ABSENT"), "{probe}");
    }
}

#[test]
fn missing_rdma_is_not_fatal_where_it_is_optional() {
    let mut scene = Scene::empty();
    scene.request.wanted = Wanted::Auto;
    assert_eq!(scene.finding("HW-PCI-ABSENT").severity, Severity::Degraded);
    scene.variable("CI", "true");
    scene.is_healthy();
    let report = scene.report();
    assert!(report.findings().any(|finding| finding.id.as_str() == "ENV-NO-RDMA-CI"));
    assert_eq!(scene.skipped().get("ports"), Some(&"ENV-NO-RDMA-CI"));
}

#[test]
fn build_without_rdma_differs_from_unloadable_library() {
    let mut scene = Scene::healthy();
    scene.request.verbs_library = Library::NotBuilt;
    assert!(scene.finding("BUILD-FEATURE").command().contains("--features verbs"));
    scene.request.verbs_library = Library::Missing("cannot open shared object file".into());
    scene.finding("PROV-MISSING");
    assert_eq!(scene.skipped().get("providers"), Some(&"PROV-MISSING"));
}

#[test]
fn a_card_without_its_module_names_the_module() {
    let scene = Scene::empty();
    scene.card("0000:5e:00.0", "0x15b3", "0x101d", "mlx5_core");
    scene.module("mlx5_core");
    let finding = scene.finding("MOD-MISSING");
    assert_eq!(finding.command(), "modprobe mlx5_ib");
    assert_eq!(scene.skipped().get("firmware"), Some(&"MOD-MISSING"));
}

#[test]
fn devices_without_nodes_lack_ib_uverbs() {
    let scene = Scene::healthy();
    scene.remove("sys/class/infiniband_verbs");
    scene.remove("sys/module/ib_uverbs");
    assert_eq!(scene.finding("MOD-MISSING").command(), "modprobe ib_uverbs");
}

#[test]
fn soft_device_lacks_its_module_or_itself() {
    let mut scene = Scene::empty();
    scene.request.devices = vec!["rxe7".into()];
    assert_eq!(scene.finding("MOD-MISSING").command(), "modprobe rdma_rxe");
    scene.module("rdma_rxe");
    let finding = scene.finding("HW-PCI-ABSENT");
    assert_eq!(finding.command(), "rdma link add rxe7 type rxe netdev eth0");
    scene.request.devices = vec!["siw0".into()];
    assert_eq!(scene.finding("MOD-MISSING").command(), "modprobe siw");
    let built_in = "kernel/net/core/x.ko\nkernel/drivers/infiniband/sw/siw/siw.ko\n";
    scene.file("lib/modules/6.1.0/modules.builtin", built_in);
    scene.finding("HW-PCI-ABSENT");
}

#[test]
fn a_module_that_the_kernel_refused_is_known_from_its_log() {
    let mut scene = Scene::empty();
    scene.card("0000:00:07.0", "0x1ded", "0x107f", "");
    scene.world.log = Some("3,1,12,-;erdma: Unknown symbol ib_umem_get_peer (err -2)\n".into());
    let finding = scene.finding("MOD-MISMATCH");
    assert!(finding.observed.contains("ib_umem_get_peer"), "{}", finding.observed);
}

#[test]
fn card_without_device_is_disabled_in_firmware() {
    let scene = Scene::empty();
    scene.card("0000:3b:00.0", "0x14e4", "0x1750", "bnxt_en");
    scene.module("bnxt_re");
    let finding = scene.finding("FW-RDMA-OFF");
    assert!(finding.command().contains("pci/0000:3b:00.0"), "{}", finding.command());
}

#[test]
fn a_cards_errors_on_the_bus_and_missing_lanes_are_told() {
    let scene = Scene::healthy();
    let folder = format!("sys/bus/pci/devices/{}", NIC.card);
    scene.file(&format!("{folder}/aer_dev_fatal"), "Undefined 0\nTOTAL_ERR_FATAL 3\n");
    assert!(scene.finding("HW-PCI-ERRORS").observed.contains("3 errors"));
    scene.file(&format!("{folder}/aer_dev_fatal"), "Undefined 0\nTOTAL_ERR_FATAL 0\n");
    scene.file(&format!("{folder}/current_link_width"), "8");
    scene.file(&format!("{folder}/max_link_width"), "16");
    assert!(scene.finding("PCIE-SLOW").observed.contains("8 of 16"));
}

#[test]
fn nodes_without_devices_are_hidden_or_in_another_namespace() {
    let scene = Scene::healthy();
    scene.remove("sys/class/infiniband");
    scene.finding("SYSFS-HIDDEN");
    scene.file("sys/module/ib_core/parameters/netns_mode", "N\n");
    let finding = scene.finding("NETNS-EXCLUSIVE");
    assert_eq!(finding.command(), "rdma system set netns shared");
    assert_eq!(scene.skipped().get("cards"), Some(&"NETNS-EXCLUSIVE"));
}

#[test]
fn a_wrong_device_name_leads_to_the_nearest() {
    let mut scene = Scene::with_two();
    for (wrong, nearest) in [
        ("mlx5_l", "mlx5_0"),
        ("MLX5_1", "mlx5_1"),
        ("ens1f1", "mlx5_1"),
        ("rocep94s0f1", "mlx5_1"),
    ] {
        scene.request.devices = vec![wrong.to_owned()];
        let finding = scene.finding("DEV-NAME");
        assert_eq!(finding.command(), format!("handfast doctor --device {nearest}"));
        assert!(finding.observed.contains("mlx5_0, mlx5_1"), "{}", finding.observed);
    }
    scene.request.devices = vec!["mlx5_1".to_owned()];
    scene.is_healthy();
    scene.variable("NCCL_IB_HCA", "=mlx5_0:1,mlx5_7:1");
    assert_eq!(scene.finding("DEV-NAME").severity, Severity::Risk);
}

#[test]
fn a_node_that_cannot_be_opened_is_named_with_its_numbers() {
    let mut scene = Scene::with_two();
    scene.world.opens.insert("dev/infiniband/uverbs0".into(), 2);
    let finding = scene.finding("DEV-NODE");
    assert_eq!(finding.severity, Severity::Degraded, "the other device works");
    assert!(
        finding.command().contains("mknod /dev/infiniband/uverbs0 c 231 192"),
        "{}",
        finding.command()
    );
    scene.world.opens.insert("dev/infiniband/uverbs1".into(), 13);
    assert_eq!(scene.findings().len(), 2);
    assert_eq!(scene.skipped().get("ports"), Some(&"DEV-NODE"));
}

#[test]
fn a_device_that_the_library_leaves_out_lacks_its_driver() {
    let mut scene = Scene::with_two();
    scene.request.verbs_library = Library::Devices(vec!["mlx5_1".into()]);
    assert!(scene.finding("PROV-MISSING").observed.contains("mlx5_0"));
}

fn erdma(compat: Option<&str>, gids: &[(&str, &str)]) -> Scene {
    let mut scene = Scene::empty();
    scene.card("0000:00:07.0", "0x1ded", "0x107f", "erdma");
    for module in ["ib_core", "ib_uverbs", "erdma"] {
        scene.module(module);
    }
    if let Some(compat) = compat {
        scene.file("sys/module/erdma/parameters/compat_mode", compat);
    }
    let node_type = if compat == Some("Y") { "1: CA" } else { "4: RNIC" };
    scene.device("erdma_0", "0000:00:07.0", node_type, "Ethernet");
    for (index, (text, kind)) in gids.iter().enumerate() {
        scene.gid("erdma_0", u32::try_from(index).unwrap(), text, kind, "eth0");
    }
    scene.address("eth0", "10.0.0.1");
    scene
}

const LOCAL: &str = "fe80:0000:0000:0000:0216:3eff:fe00:0001";
const IPV4: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001";

#[test]
fn erdma_standard_mode_names_compat_mode() {
    let scene = erdma(Some("N"), &[(LOCAL, "IB/RoCE v1")]);
    let finding = scene.finding("ERDMA-STANDARD-MODE");
    assert!(finding.command().contains("modprobe erdma compat_mode=Y"), "{}", finding.command());
    assert_eq!(finding.severity, Severity::Risk, "lanes go through the connection manager");
    erdma(Some("Y"), &[(LOCAL, "RoCE v2"), (IPV4, "RoCE v2")]).is_healthy();
}

#[test]
fn erdma_without_an_ipv4_address_cannot_connect() {
    erdma(Some("Y"), &[(LOCAL, "RoCE v2")]).finding("ERDMA-COMPAT-GID");
    let scene = Scene::empty();
    scene.module("erdma");
    scene.finding("ERDMA-UNBOUND");
    scene.card("0000:00:07.0", "0x1ded", "0x107f", "erdma");
    scene.finding("ERDMA-NETDEV-DOWN");
}

#[test]
fn devices_that_do_not_connect_out_of_band_are_named() {
    let mut scene = Scene::empty();
    scene.card("0000:18:00.0", "0x8086", "0x37d2", "i40e");
    scene.device("irdma0", "0000:18:00.0", "4: RNIC", "Ethernet");
    scene.finding("IWARP-NO-OOB");
    let mut scene = Scene::empty();
    scene.card("0000:00:06.0", "0x1d0f", "0xefa1", "efa");
    scene.device("efa_0", "0000:00:06.0", "7: unspecified", "Unspecified");
    scene.finding("EFA-NO-RC");
}

#[test]
fn a_port_that_is_down_says_why_and_which_others_are_active() {
    let scene = Scene::with_two();
    scene.file(&format!("{}/state", Scene::port("mlx5_0")), "1: DOWN\n");
    scene.file(&format!("{}/phys_state", Scene::port("mlx5_0")), "3: Disabled\n");
    scene.file("sys/class/net/ens1f0/flags", "0x1002");
    let finding = scene.finding("PORT-DOWN");
    assert_eq!(finding.severity, Severity::Degraded);
    for part in ["DOWN (Disabled)", "ens1f0 is set down", "active: mlx5_1"] {
        assert!(finding.observed.contains(part), "{}", finding.observed);
    }
    assert_eq!(finding.command(), "ip link set ens1f0 up");
    scene.file(&format!("{}/state", Scene::port("mlx5_1")), "1: DOWN\n");
    assert!(scene.findings().iter().all(|finding| finding.severity == Severity::Fatal));
    assert_eq!(scene.skipped().get("addresses"), Some(&"PORT-DOWN"));
}

fn infiniband() -> Scene {
    let mut scene = Scene::empty();
    scene.card("0000:5e:00.0", "0x15b3", "0x101d", "mlx5_core");
    scene.device("mlx5_0", "0000:5e:00.0", "1: CA", "InfiniBand");
    scene.gid("mlx5_0", 0, "fe80:0000:0000:0000:506b:4b03:0005:1234", "IB", "");
    scene
}

#[test]
fn infiniband_without_subnet_manager_or_full_pkey_is_found() {
    let scene = infiniband();
    scene.is_healthy();
    let port = Scene::port("mlx5_0");
    scene.file(&format!("{port}/pkeys/0"), "0x7fff");
    assert!(scene.finding("IB-PKEY").observed.contains("0x7fff"));
    scene.file(&format!("{port}/state"), "2: INIT\n");
    scene.file(&format!("{port}/lid"), "0x0");
    assert!(scene.findings().iter().any(|finding| finding.id.as_str() == "IB-NO-SM"));
    scene.file(&format!("{port}/pkeys/0"), "0xffff");
    assert_eq!(scene.finding("IB-NO-SM").command(), "systemctl enable --now opensm");
}

#[test]
fn infiniband_beside_ethernet_and_a_link_with_errors_are_risks() {
    let mut scene = infiniband();
    scene.roce(&SECOND);
    assert_eq!(scene.finding("LINK-LAYER").severity, Severity::Risk);
    let scene = Scene::healthy();
    scene.file(&format!("{}/counters/link_downed", Scene::port("mlx5_0")), "4\n");
    assert!(scene.finding("LINK-ERRORS").observed.contains("4 errors"));
}

#[test]
fn nic_without_ip_address_is_unreachable() {
    let scene = Scene::healthy();
    for index in [2, 3] {
        scene.gid("mlx5_0", index, "0000:0000:0000:0000:0000:0000:0000:0000", "", "");
    }
    let finding = scene.finding("IP-MISSING");
    assert_eq!(finding.command(), "ip address add ADDRESS/PREFIX dev ens1f0");
    for index in [0, 1] {
        scene.gid("mlx5_0", index, "0000:0000:0000:0000:0000:0000:0000:0000", "", "");
    }
    assert_eq!(scene.finding("GID-ZERO").severity, Severity::Fatal);
}

#[test]
fn roce_v1_and_missing_gid_are_found() {
    let scene = Scene::healthy();
    for index in [1, 3] {
        scene.gid("mlx5_0", index, "0000:0000:0000:0000:0000:0000:0000:0000", "", "");
    }
    scene.finding("GID-TYPE");
    let mut scene = Scene::healthy();
    scene.request.gid = Some("10.9.9.9".parse().unwrap());
    assert!(scene.finding("GID-ZERO").observed.contains("3 10.1.0.7 RoCE v2"));
    scene.request.gid = Some("10.1.0.7".parse().unwrap());
    scene.is_healthy();
}

#[test]
fn fixed_indexes_of_other_engines_are_checked_against_the_table() {
    for (index, id) in [("9", "GID-INDEX-RANGE"), ("2", "GID-TYPE"), ("1", "GID-LINKLOCAL")] {
        let mut scene = Scene::healthy();
        scene.variable("MC_GID_INDEX", index);
        let finding = scene.finding(id);
        assert!(
            finding.observed.starts_with(&format!("MC_GID_INDEX={index}")),
            "{}",
            finding.observed
        );
    }
    let mut scene = Scene::healthy();
    scene.variable("MC_GID_INDEX", "3");
    scene.is_healthy();
}

#[test]
fn a_fixed_mtu_above_the_ports_and_unequal_nics_are_found() {
    let mut scene = Scene::healthy();
    scene.interface("ens1f0", 1500);
    scene.variable("MC_MTU", "4096");
    assert!(scene.finding("MTU-OVER-ACTIVE").observed.contains("1024 over ens1f0"));
    scene.variable("MC_MTU", "1024");
    scene.is_healthy();
    let scene = Scene::with_two();
    scene.interface("ens1f0", 1500);
    assert_eq!(scene.finding("MTU-MISMATCH").command(), "ip link set ens1f0 mtu 9000");
}

#[test]
fn values_that_cannot_be_and_the_wrong_kind_of_port_are_found() {
    let mut scene = Scene::healthy();
    scene.variable("MC_MTU", "9000");
    let ids: Vec<_> = scene.findings().iter().map(|finding| finding.id.as_str()).collect();
    assert_eq!(ids, ["MTU-OVER-ACTIVE", "ENV-VALUE"]);
    let mut scene = Scene::healthy();
    scene.variable("MC_IB_PORT", "12345");
    let finding = scene.finding("PORT-NUMBER");
    assert_eq!(finding.command(), "unset MC_IB_PORT");
    scene.variable("MC_IB_PORT", "1");
    scene.is_healthy();
}

#[test]
fn low_memlock_is_fatal_without_the_capability() {
    let scene = Scene::healthy();
    scene.limits("65536", 1_048_576, 0);
    let finding = scene.finding("LIM-MEMLOCK");
    assert_eq!((finding.severity, &*finding.command()), (Severity::Fatal, "ulimit -l unlimited"));
    scene.limits("1073741824", 1_048_576, 0);
    assert_eq!(scene.finding("LIM-MEMLOCK").severity, Severity::Risk);
    scene.limits("65536", 1_048_576, 1 << 14);
    scene.is_healthy();
    scene.limits("65536", 1_048_576, 0);
    scene.file("run/secrets/kubernetes.io/serviceaccount/token", "");
    scene.finding("K8S-CAPS");
}

#[test]
fn other_limits_are_found_each_at_its_value() {
    let scene = Scene::healthy();
    scene.limits("unlimited", 256, 0);
    assert_eq!(scene.finding("LIM-NOFILE").severity, Severity::Degraded);
    scene.limits("unlimited", 4_096, 0);
    scene.is_healthy();
    scene.file("proc/sys/vm/max_map_count", "1000");
    scene.finding("LIM-MAPCOUNT");
    scene.file("proc/sys/vm/max_map_count", "65530");
    scene.file("proc/sys/net/ipv4/ip_local_port_range", "60000\t60999\n");
    scene.finding("LIM-EPHEMERAL");
}

#[test]
fn exhausted_control_group_is_named_at_any_level() {
    let scene = Scene::healthy();
    scene.file("proc/self/cgroup", "0::/kubepods/pod1\n");
    scene.file("sys/fs/cgroup/kubepods/rdma.max", "mlx5_0 hca_handle=2 hca_object=100\n");
    scene.file("sys/fs/cgroup/kubepods/rdma.current", "mlx5_0 hca_handle=1 hca_object=100\n");
    let finding = scene.finding("LIM-CGROUP");
    assert!(
        finding.command().ends_with("> /sys/fs/cgroup/kubepods/rdma.max"),
        "{}",
        finding.command()
    );
    scene.file("sys/fs/cgroup/kubepods/rdma.current", "mlx5_0 hca_handle=1 hca_object=99\n");
    scene.is_healthy();
}

#[test]
fn pod_without_resource_differs_from_missing_device_node() {
    let scene = Scene::empty();
    scene.file("run/secrets/kubernetes.io/serviceaccount/token", "");
    scene.finding("K8S-NO-RESOURCE");
    scene.file(
        "etc/podinfo/annotations",
        "scheduling.koordinator.sh/device-allocated=\"{\\\"rdma\\\":[{\\\"minor\\\":0}]}\"\n",
    );
    assert!(scene.finding("KOORD-GATE").severity == Severity::Fatal);
}

#[test]
fn pod_with_device_and_no_interface_is_found() {
    let scene = Scene::healthy();
    scene.file("run/secrets/kubernetes.io/serviceaccount/token", "");
    scene.is_healthy();
    scene.remove("sys/class/net/ens1f0");
    for index in 0..4 {
        // Of an address of another namespace neither type nor interface can be read.
        let port = Scene::port("mlx5_0");
        scene.remove(&format!("{port}/gid_attrs/types/{index}"));
        scene.remove(&format!("{port}/gid_attrs/ndevs/{index}"));
    }
    assert_eq!(scene.finding("K8S-NETNS").side, Side::Local);
}

#[test]
fn koordinator_omits_renamed_devices_and_down_ports() {
    let mut scene = Scene::healthy();
    scene.file("var/run/koordlet/pid", "1");
    scene.is_healthy();
    scene.file("sys/class/infiniband/mlx5_0/ports/2/state", "1: DOWN\n");
    assert!(scene.finding("KOORD-HEALTH").observed.contains("port 2: DOWN"));
    scene.remove("sys/class/infiniband/mlx5_0/ports/2");
    scene.roce(&crate::scene::Nic { name: "rocep94s0f1", ..SECOND });
    assert_eq!(scene.finding("KOORD-NAME").command(), "rdma dev set rocep94s0f1 name mlx5_0");
}

#[test]
fn a_gpu_without_peer_memory_and_behind_an_iommu_is_a_risk() {
    let scene = Scene::healthy();
    let folder = "sys/bus/pci/devices/0000:5f:00.0";
    scene.file(&format!("{folder}/vendor"), "0x10de");
    scene.file(&format!("{folder}/device"), "0x2330");
    scene.file(&format!("{folder}/class"), "0x030200");
    assert_eq!(scene.finding("GPU-NOPEER").command(), "modprobe nvidia_peermem");
    let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15";
    scene.file("proc/driver/nvidia/version", version);
    scene.file("proc/sys/kernel/osrelease", "5.10.0-9-amd64");
    scene.finding("GPU-NOPEER");
    scene.file("proc/sys/kernel/osrelease", "6.1.0-21-amd64");
    scene.is_healthy();
    scene.remove("proc/driver/nvidia/version");
    scene.finding("GPU-NOPEER");
    scene.module("nvidia_peermem");
    scene.is_healthy();
    scene.file("sys/kernel/iommu_groups/0/type", "DMA-FQ\n");
    scene.finding("GPU-IOMMU");
    scene.file("proc/cmdline", "quiet iommu=pt\n");
    scene.is_healthy();
}
