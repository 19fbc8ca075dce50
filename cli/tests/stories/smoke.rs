//! `handfast smoke` without RDMA; `rdma.rs` covers it with RDMA.

use crate::helpers::run;

#[test]
fn a_smoke_test_says_what_is_missing_and_skips_what_needs_it() {
    let ended = run(&["smoke", "--loopback", "--json"]);
    let ended = ended.failed(13, &["opening an RDMA device", "our side", "--features verbs"]);
    let report: serde_json::Value = serde_json::from_str(&ended.output).unwrap();
    assert_eq!(report["passed"], false);
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps[0]["verdict"], "fail");
    let (error, parts) = (&steps[0]["error"], ["side", "stage", "cause", "cure"]);
    assert!(parts.iter().all(|part| !error[part].as_str().unwrap().is_empty()), "{error}");
    assert_eq!(steps.len(), 7);
    assert_eq!(steps[1]["name"], "rdma-cm");
    assert!(steps[1..].iter().all(|step| step["verdict"] == "skipped"), "{report}");
    run(&["smoke", "--peer", "127.0.0.1:1"]).failed(13, &["--features verbs"]);
}

#[test]
fn a_smoke_test_needs_to_know_against_what() {
    assert_eq!(run(&["smoke"]).code, Some(2));
    assert_eq!(run(&["smoke", "--loopback", "--peer", "127.0.0.1:1"]).code, Some(2));
}

/// A port of a device is refused before anything runs, with the words to give.
#[test]
fn a_smoke_test_takes_a_device_without_its_port() {
    let ended = run(&["smoke", "--loopback", "--device", "mlx5_0:2"]);
    ended.failed(2, &["first port", "give `mlx5_0` without a port"]);
}
