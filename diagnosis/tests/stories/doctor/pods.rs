//! Resources for pods, and the manifest that is shown.

use crate::scene::Scene;
use handfast_diagnosis::Severity;
use serde_json::{Value, json};

const CHECKPOINT: &str = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

fn offered(scene: &Scene, resources: &Value) {
    let data = json!({ "PodDeviceEntries": [], "RegisteredDevices": resources });
    scene.file(CHECKPOINT, &json!({ "Data": data, "Checksum": 1 }).to_string());
}

#[test]
fn kubelet_without_plugin_resources_is_found() {
    let scene = Scene::healthy();
    scene.is_healthy();
    offered(&scene, &Value::Null);
    let finding = scene.finding("K8S-PLUGIN");
    assert_eq!(finding.severity, Severity::Risk);
    assert!(finding.observed.contains("modules not loaded: ib_umad, rdma_ucm"), "{finding:?}");
    assert!(finding.command().starts_with("modprobe -a ib_umad rdma_ucm"));
    offered(&scene, &json!({ "nvidia.com/gpu": ["GPU-1"] }));
    assert!(scene.finding("K8S-PLUGIN").observed.contains("nvidia.com/gpu = 1"));
    offered(&scene, &json!({ "rdma/hca_shared_devices_a": [] }));
    assert_eq!(scene.finding("K8S-PLUGIN").severity, Severity::Degraded);
    offered(&scene, &json!({ "rdma/hca_shared_devices_a": ["0", "1"] }));
    scene.is_healthy();
    scene.file(CHECKPOINT, "{}");
    scene.is_healthy();
}

const MANIFEST: &str = include_str!("../../../../docs/examples/kubernetes.yaml");

fn manifest() -> Value {
    serde_saphyr::from_str(MANIFEST).unwrap()
}

#[test]
fn the_manifest_that_is_shown_has_the_fields_that_a_pod_has() {
    let pod = manifest();
    assert_eq!((&pod["apiVersion"], &pod["kind"]), (&json!("v1"), &json!("Pod")));
    assert!(pod["metadata"]["name"].is_string());
    let spec = &pod["spec"];
    only(&pod, &["apiVersion", "kind", "metadata", "spec"]);
    only(spec, &["hostNetwork", "securityContext", "initContainers", "containers", "volumes"]);
    assert!(spec["securityContext"]["fsGroup"].is_u64());
    assert!(spec["hostNetwork"].is_boolean());
    for containers in ["initContainers", "containers"] {
        for container in spec[containers].as_array().unwrap() {
            is_container(container, &spec["volumes"]);
        }
    }
}

#[test]
fn manifest_runs_the_doctor_with_its_nodes_options() {
    let spec = &manifest()["spec"];
    let words = |container: &Value| -> Vec<String> {
        let words = container["args"].as_array().unwrap();
        words.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let (doctor, node) = (words(&spec["initContainers"][0]), words(&spec["containers"][0]));
    assert_eq!((&*doctor[0], &*node[0]), ("doctor", "serve"));
    // One that answers others would never let the pod start.
    assert!(doctor.contains(&"--once".to_owned()) && doctor.contains(&"--json".to_owned()));
    for option in ["--transport", "--listen"] {
        let value = |words: &[String]| {
            words.iter().position(|word| word == option).map(|at| words[at + 1].clone())
        };
        assert_eq!(value(&doctor), value(&node), "{option}");
    }
    for field in ["env", "securityContext", "resources", "volumeMounts", "image"] {
        assert_eq!(spec["initContainers"][0][field], spec["containers"][0][field], "{field}");
    }
}

#[track_caller]
fn only(object: &Value, fields: &[&str]) {
    for (field, _) in object.as_object().unwrap() {
        assert!(fields.contains(&field.as_str()), "a pod has no '{field}' there");
    }
}

fn is_container(container: &Value, volumes: &Value) {
    let fields =
        ["name", "image", "command", "args", "env", "securityContext", "resources", "volumeMounts"];
    only(container, &fields);
    assert!(container["name"].is_string() && container["image"].is_string());
    for list in ["command", "args"] {
        let words = container[list].as_array().unwrap();
        assert!(words.iter().all(Value::is_string), "{list}");
    }
    for variable in container["env"].as_array().unwrap() {
        assert!(variable["name"].is_string());
        assert!(variable["valueFrom"]["fieldRef"]["fieldPath"].is_string());
    }
    assert_eq!(container["securityContext"]["capabilities"]["add"], json!(["IPC_LOCK"]));
    let limits = container["resources"]["limits"].as_object().unwrap();
    assert!(limits.iter().any(|(name, count)| name.starts_with("rdma/") && count == 1));
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert!(mount["mountPath"].as_str().unwrap().starts_with('/'));
        let mut volumes = volumes.as_array().unwrap().iter();
        assert!(volumes.any(|volume| volume["name"] == mount["name"]), "{mount}");
    }
}
