//! Devices whose queue pairs connect through the kernel's connection manager.

use crate::scene::Scene;
use handfast_diagnosis::Severity;
use handfast_diagnosis::doctor::{Finding, Wanted};
use handfast_transport_rdma::{ManagerUnavailable, RdmaUnavailable};

const NAME: &str = "irdma0";

/// A machine with an iWARP device.
fn iwarp(mut scene: Scene) -> Scene {
    scene.card("0000:18:00.0", "0x8086", "0x37d2", "i40e");
    scene.file(&format!("sys/bus/pci/devices/0000:18:00.0/infiniband/{NAME}/node"), "");
    scene.device(NAME, "0000:18:00.0", "4: RNIC", "Ethernet");
    scene
}

fn no_library() -> ManagerUnavailable {
    let detail = "librdmacm.so.1: cannot open shared object file".to_owned();
    RdmaUnavailable::NoLibrary { library: "librdmacm.so.1", detail }.into()
}

fn found(scene: &Scene) -> Vec<Finding> {
    let is_it = |finding: &Finding| finding.id.as_str() == "CM-MISSING";
    scene.findings().into_iter().filter(is_it).collect()
}

/// Without a device that connects out of band no lane is possible, and later probes say why they are
/// skipped.
#[test]
fn missing_connection_manager_is_fatal_if_every_device_needs_it() {
    let mut scene = iwarp(Scene::empty());
    scene.world.manager = Some(no_library());
    let [finding] = &found(&scene)[..] else { panic!("{:?}", scene.findings()) };
    assert_eq!((finding.severity, finding.device.as_deref()), (Severity::Fatal, Some(NAME)));
    assert_eq!(finding.command(), "apt-get install -y librdmacm1");
    assert!(finding.observed.contains("librdmacm.so.1: cannot open"), "{}", finding.observed);
    assert_eq!(scene.skipped().get("ports"), Some(&"CM-MISSING"));
    scene.request.wanted = Wanted::Auto;
    assert_eq!(found(&scene)[0].severity, Severity::Degraded, "lanes go over TCP");

    scene.world.manager = Some(ManagerUnavailable::NoChannel { code: 13 });
    let [finding] = &found(&scene)[..] else { panic!("{:?}", scene.findings()) };
    assert!(finding.command().starts_with("modprobe rdma_ucm"), "{}", finding.command());
    assert!(finding.observed.contains("/dev/infiniband/rdma_cm"), "{}", finding.observed);
}

/// A device that connects out of band takes the place of one that cannot.
#[test]
fn missing_connection_manager_degrades_beside_another_device() {
    let mut scene = iwarp(Scene::healthy());
    scene.world.manager = Some(no_library());
    assert_eq!(found(&scene)[0].severity, Severity::Degraded);
    // With the option it needs the connection manager as well.
    scene.request.connection_manager = true;
    let severities: Vec<_> = found(&scene).iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [Severity::Fatal; 2]);
}

/// Opening the channel may load a kernel module, and happens only for a device that needs it.
#[test]
fn connection_manager_is_asked_where_a_device_needs_it() {
    let scene = iwarp(Scene::empty());
    assert!(found(&scene).is_empty() && scene.world.asked_manager.get());
    let mut scene = Scene::healthy();
    scene.world.manager = Some(no_library());
    scene.is_healthy();
    assert!(!scene.world.asked_manager.get());
    scene.request.connection_manager = true;
    scene.finding("CM-MISSING");
}
