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
