//! The content of a bundle, and the secrets left out.

use crate::scene::{NIC, Scene};
use handfast_diagnosis::doctor::{Facts, bundle};
use serde_json::Value;

fn of(scene: &Scene) -> Value {
    let facts = Facts::read(&scene.request.root);
    bundle(&scene.report(), &facts, &scene.request, &scene.world)
}

#[test]
fn what_was_found_and_what_it_was_found_in_is_collected() {
    let mut scene = Scene::healthy();
    scene.file(&format!("{}/state", Scene::port(NIC.name)), "1: DOWN\n");
    scene.file("sys/class/infiniband/mlx5_0/fw_ver", "20.31.1014\n");
    scene.file(&format!("{}/hw_counters/out_of_sequence", Scene::port(NIC.name)), "17\n");
    scene.world.log = Some("6,1,2,-;mlx5_core: Link down\n6,2,3,-;usb 1-1: new mouse\n".into());
    let bundle = of(&scene);
    let findings = bundle["report"]["checks"].to_string();
    assert!(findings.contains("PORT-DOWN"), "{findings}");
    assert_eq!(bundle["devices"]["mlx5_0"]["firmware"], "20.31.1014");
    assert_eq!(bundle["counters"]["after"]["mlx5_0"]["1/out_of_sequence"], 17);
    assert_eq!(bundle["kernel_log"].as_array().unwrap().len(), 1);
    assert!(bundle["facts"]["limits"]["files"].is_number());
    let healthy = of(&Scene::healthy());
    assert!(!healthy["report"]["checks"].to_string().contains("\"id\""));
    assert_eq!(healthy["kernel_log"], Value::Null);
}

#[test]
fn secrets_names_and_addresses_stay_here() {
    let mut scene = Scene::healthy();
    scene.request.host = "gpu-node-07.corp.example".into();
    scene.request.metadata = Some("etcd://root:hunter2@10.1.0.9:2379".into());
    scene.variable("http_proxy", "http://me:swordfish@proxy.corp:3128");
    scene.variable("MC_REDIS_PASSWORD", "opensesame");
    scene.variable("AWS_SECRET_ACCESS_KEY", "never");
    scene.file("etc/podinfo/annotations", "team=\"secret-project\"\n");
    scene.world.log = Some("6,1,2,-;rdma: gpu-node-07 10.1.0.7 link up\n".into());
    let text = of(&scene).to_string();
    for secret in [
        "hunter2",
        "swordfish",
        "opensesame",
        "never",
        "secret-project",
        "gpu-node-07",
        "10.1.0.7",
        "10.1.0.9",
        "::ffff:10.1.0.7",
        "ff:fe00",
    ] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert!(text.contains("MC_REDIS_PASSWORD") && text.contains("ipv4-net1-host-"), "{text}");
    // The report itself does not show the password either.
    let shown = scene.report().json(handfast_diagnosis::Language::English).to_string();
    assert!(!shown.contains("opensesame") && !shown.contains("swordfish"), "{shown}");
}

/// A password with a blank ends at no certain place in a text, and is known from the address that was asked.
#[test]
fn password_with_a_blank_stays_here() {
    let mut scene = Scene::healthy();
    let address = "etcd://root:x7q w9v@etcd-0.prod.corp.example:2379";
    scene.request.metadata = Some(address.into());
    scene.variable("http_proxy", "http://me:k7j q3p@proxy-1.corp.example:3128");
    let log = format!("6,1,2,-;rdma: no answer at {address}, with http://me:k7j q3p@it\n");
    scene.world.log = Some(log);
    let text = of(&scene).to_string();
    for secret in ["x7q", "w9v", "k7j", "q3p", "corp.example"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}

/// A support thread is read by strangers: every host that was named has a placeholder, also one that did not answer, and
/// one in a variable whose value is cut.
#[test]
fn named_hosts_have_placeholders() {
    let mut scene = Scene::healthy();
    let request = &mut scene.request;
    request.metadata =
        Some("etcd://etcd-0.prod.corp.example:2379,etcd-1.prod.corp.example:2379".into());
    request.peer = Some("gpu-7.corp.example:7412".into());
    request.listen = Some("gpu-8.corp.example:7411".into());
    request.advertise = Some("gpu-9.corp.example".into());
    request.segment = Some("gpu-10.corp.example/cache".into());
    scene.variable("MC_METADATA_SERVER", "http://long-name-of-a-store-service-11.corp.example:80");
    scene.variable("https_proxy", "http://proxy-12.corp.example:3128");
    let bundle = of(&scene);
    let text = bundle.to_string();
    for name in ["corp.example", "etcd-0", "etcd-1", "gpu-", "store-service", "proxy-12"] {
        assert!(!text.contains(name), "{name} in {text}");
    }
    let asked = &bundle["asked"];
    let placed = |name: &str| asked[name].as_str().is_some_and(|it| it.starts_with("host-"));
    assert!(placed("peer") && placed("listen") && placed("advertise"), "{asked}");
    assert!(text.contains("MC_METADATA_SERVER"), "{text}");
}
