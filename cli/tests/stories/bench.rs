//! `handfast bench`.

use crate::helpers::{Server, a_processor, run, succeed};
use serde_json::Value;

const SHORT: [&str; 8] =
    ["--size", "4K,64K", "--batch", "1,8", "--rounds", "2", "--duration", "10ms"];

fn json(options: &[&str]) -> Value {
    let output = run(&[&["bench", "--json"], &SHORT[..], options].concat());
    assert_eq!((output.code, &*output.errors), (Some(0), ""), "{output:?}");
    assert_eq!(output.output.lines().count(), 1, "{}", output.output);
    serde_json::from_str(&output.output).unwrap()
}

#[test]
fn the_json_has_the_documented_fields() {
    let result = json(&["--limit", "--first-transfer", "--threads", "1,2"]);
    assert_eq!(result["placement"], "not pinned");
    assert_eq!((&result["rounds"], &result["duration_ms"]), (&2.into(), &10.into()));
    let workloads = result["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 2 * 2 * 2 * 2, "sizes, batches, threads, directions");
    for workload in workloads {
        assert!(["write", "read"].contains(&workload["operation"].as_str().unwrap()));
        assert!([4_096, 65_536].contains(&workload["size"].as_u64().unwrap()));
        assert!([1, 8].contains(&workload["batch"].as_u64().unwrap()));
        assert!([1, 2].contains(&workload["threads"].as_u64().unwrap()));
        for rate in ["gib_per_s", "raw_gib_per_s", "ratio"] {
            assert!(workload[rate].as_f64().unwrap() > 0.0, "{rate} in {workload}");
        }
        assert_eq!(workload["measurements_gib_per_s"].as_array().unwrap().len(), 2);
    }
    let first = &result["first_transfer_us"];
    let stage = |name: &str| first["stages"][name].as_u64().unwrap_or_else(|| panic!("{first}"));
    let of_lane = stage("bring_up") + stage("exchange") + stage("wire");
    assert!(stage("look_up") > 0 && of_lane > 0 && stage("write") > 0, "{first}");
    // The call alone is what is measured.
    assert!(stage("register") < stage("look_up"), "TCP needs no registration: {first}");
    assert!(first["median"].as_u64() <= first["slowest"].as_u64());
    assert!(first["measurements"].as_u64() > Some(0));
}

#[test]
fn single_requests_and_many_peers_stand_beside_their_raw_limits() {
    let result = json(&["--limit", "--latency", "--peers", "60", "--first-transfer"]);
    for workload in result["workloads"].as_array().unwrap() {
        assert!(workload["processor_s_per_gib"].as_f64().unwrap() > 0.0, "{workload}");
        assert!(workload["raw_processor_s_per_gib"].as_f64().unwrap() > 0.0, "{workload}");
        assert_eq!(workload["raw_measurements_gib_per_s"].as_array().unwrap().len(), 2);
    }
    let latencies = result["latencies"].as_array().unwrap();
    assert_eq!(latencies.len(), 2 * 2, "sizes and directions");
    for latency in latencies {
        for way in ["us", "raw_blocking_us", "raw_adaptive_us"] {
            let of = |name: &str| latency[way][name].as_f64().unwrap();
            assert!(0.0 < of("p50") && of("p50") <= of("p99"), "{way} in {latency}");
        }
        assert!(latency["p50_ratio"].as_f64().unwrap() > 0.0, "{latency}");
    }
    assert!(result["first_transfer_us"]["raw"].as_f64().unwrap() > 0.0);
    let peers = &result["peers"];
    assert_eq!((&peers["count"], &peers["processes"]), (&60.into(), &2.into()));
    assert_eq!((&peers["lanes_opened"], &peers["lifecycles_ended"]), (&60.into(), &0.into()));
    assert_eq!(peers["warm_measurements_ms"].as_array().unwrap().len(), 3);
    assert!(peers["calls_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn fields_that_were_not_measured_are_left_out() {
    let server = Server::start(&["--memory", "scratch=1M"]);
    let result = json(&[&*server.at("scratch")]);
    assert!(result.get("first_transfer_us").is_none());
    for workload in result["workloads"].as_array().unwrap() {
        assert!(workload.get("ratio").is_none() && workload.get("raw_gib_per_s").is_none());
    }
}

#[test]
fn the_table_goes_to_standard_output_and_progress_elsewhere() {
    let ended = run(&[&["bench"], &SHORT[..]].concat()).done();
    assert_eq!(ended.output.lines().count(), 2 + 8, "{ended:?}");
    assert!(ended.output.lines().all(|line| line.len() <= 80), "{ended:?}");
    assert_eq!(ended.errors, "round 1 of 2\nround 2 of 2\n");
}

#[test]
fn what_cannot_be_measured_is_refused_in_words() {
    let bench = |options: &[&str]| run(&[&["bench"], options].concat());
    // More than a machine that runs tests has.
    let own = a_processor();
    let may_use = format!("may use {own}");
    let ended = bench(&["--cores", "99999"]).failed(2, &["no processor 99999", &may_use]);
    assert_eq!(ended.errors.matches("error: ").count(), 1, "{ended:?}");
    bench(&["--cores", &format!("{own},99999")]).failed(2, &["no processor 99999"]);
    bench(&["--limit", "127.0.0.1:1"]).failed(2, &["--limit", "omit NODE"]);
    bench(&["127.0.0.1:1"]).failed(3, &["127.0.0.1:1", "refused"]);
    bench(&["--batch", "0"]).failed(2, &["--batch", "1..=4096"]);
    bench(&["--batch", "5000"]).failed(2, &["--batch", "1..=4096"]);
    bench(&["--peers", "0"]).failed(2, &["--peers", "1..=10000"]);
    bench(&["--threads", "0"]).failed(2, &["--threads"]);
    bench(&["--duration", "0"]).failed(2, &["not a positive duration"]);
    bench(&["--size", "16000000T", "--batch", "32"]).failed(1, &["allocating a block"]);
}

#[test]
fn a_segment_too_small_is_refused_before_anything_is_measured() {
    let server = Server::start(&["--memory", "scratch=100K"]);
    let ended = run(&[&["bench", &*server.at("scratch")], &SHORT[..]].concat());
    let ended = ended.failed(4, &[&server.address, "past the end"]);
    assert!(!ended.errors.contains("round"), "{ended:?}");
    succeed(
        &[
            &["bench", &*server.at("scratch"), "--json"],
            &SHORT[..2],
            &["--batch", "1", "--rounds", "1", "--duration", "10ms"],
        ]
        .concat(),
    );
}
