//! `handfast sim`: exploring, sweeping, and what is done with a line.

use crate::helpers::{Client, Folder, PROGRAM, contains, run, status, succeed, until};
use crate::output::on_terminal;
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;

/// A line of the rules that ship: both sides open, and all is well.
fn calm() -> String {
    let case = handfast_sim::Case::shipping(handfast_sim::Scenario::SimultaneousOpen, 1);
    let start = case.start();
    let mut choices = Vec::new();
    start.actions(&mut choices);
    handfast_sim::Line::of_events(case, &choices[..1], 0).unwrap().to_string()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&run(arguments).output).unwrap()
}

#[test]
fn exploring_to_a_fixpoint_tells_figures_rates_and_coverage() {
    let told = succeed(&["sim", "explore", "--faults", "0", "--grain", "stepwise", "--unpruned"]);
    contains(
        &told,
        &["fixpoint", "states         64", "transitions    110", "states/s", "coverage"],
    );
    let shown = json(&["sim", "explore", "--faults", "1", "--kinds", "loss,crash", "--json"]);
    assert_eq!(
        (&shown["ending"], &shown["case"]["kinds"]),
        (&"fixpoint".into(), &"loss,crash".into())
    );
    assert!(shown["transitions"].as_u64() > shown["states"].as_u64());
}

#[test]
fn reached_bound_of_worlds_has_its_own_exit_code() {
    let ended = run(&["sim", "explore", "--states-max", "50"]);
    ended.failed(11, &["the bound of 50 worlds was reached", "--states-max"]);
}

/// An exploration that is stopped after a time goes on from its file, with the world and the options that it
/// had, and ends with the figures that it has without a stop.
#[test]
fn stopped_exploration_goes_on_from_its_file() {
    let folder = Folder::new();
    let (file, again) = (folder.name("exploration"), folder.name("again"));
    let world = ["sim", "explore", "--kinds", "loss,crash", "--json"];
    let stop = |arguments: &[&str], file: &str| {
        let ended = run(&[arguments, &["--time", "1ms", "--save", file]].concat());
        ended.failed(11, &["stopped after", "--resume", file]);
    };
    stop(&world, &file);
    stop(&["sim", "explore", "--resume", &file], &again);
    assert_eq!(folder.names(), ["again", "exploration"]);
    let whole = json(&world);
    for file in [&file, &again] {
        let resumed = json(&["sim", "explore", "--resume", file, "--json"]);
        for figure in ["ending", "case", "states", "transitions", "depth", "coverage"] {
            assert_eq!(resumed[figure], whole[figure], "{figure}");
        }
    }
    let other = ["sim", "explore", "--resume", &file, "--faults", "2"];
    run(&other).failed(2, &["--faults", "cannot be used with"]);
    std::fs::write(&file, "worlds").unwrap();
    run(&["sim", "explore", "--resume", &file]).failed(14, &["begin a new one"]);
}

/// A signal stops an exploration that saves, and the file goes on.
#[test]
fn interrupted_exploration_is_saved() {
    let folder = Folder::new();
    let file = folder.name("exploration");
    let long = ["sim", "explore", "--faults", "3", "--states-max", "40000000", "--json"];
    let client = Client::start(&[&long[..], &["--save", &file]].concat());
    until("it listens to signals", || {
        let caught = u64::from_str_radix(&status(client.process.pid(), "SigCgt:"), 16).unwrap();
        caught >> (Signal::INT.as_raw() - 1) & 1 == 1
    });
    client.process.signal(Signal::INT);
    client.end().failed(11, &["stopped after", "--resume", &file]);
    let resume = ["sim", "explore", "--resume", &file, "--states-max", "1"];
    run(&resume).failed(11, &["worlds was reached"]);
}

/// A long exploration says before what it will take; the size comes of explorations with fewer faults.
#[test]
fn long_exploration_says_what_it_takes() {
    let ended = run(&["sim", "explore", "--faults", "3", "--states-max", "5000"]);
    ended.failed(11, &["roughly", "worlds with at most", "faults"]);
}

#[test]
fn sweeping_the_same_seeds_twice_leads_to_the_same_worlds() {
    let traces = || json(&["sim", "sweep", "--seeds", "50", "--from", "1000", "--json"]);
    let (first, second) = (traces(), traces());
    assert_eq!(first["traces"], second["traces"]);
    assert_eq!((&first["seeds"], &first["from"]), (&50.into(), &1000.into()));
    let other = json(&["sim", "sweep", "--seeds", "50", "--from", "2000", "--json"]);
    assert_ne!(first["traces"], other["traces"]);
    let timed = json(&["sim", "sweep", "--time", "200ms", "--scenario", "Established", "--json"]);
    assert!(timed["seeds"].as_u64() > Some(0) && timed["scenarios"]["Established"].is_object());
}

#[test]
fn failure_with_chosen_devices_replays_from_its_line() {
    let told =
        succeed(&["sim", "explore", "--traffic", "Write", "--device", "rxe", "--faults", "0"]);
    assert!(told.contains("Transfers on rxe, Write") && told.contains("fixpoint"), "{told}");
    run(&["sim", "explore", "--device", "elan4"]).failed(2, &["no device 'elan4'", "erdma-compat"]);
    run(&["sim", "explore", "--traffic", "letters"]).failed(2, &["no traffic", "WriteAndRead"]);
    let alone = ["sim", "explore", "--scenario", "SelfConnection", "--traffic", "Write"];
    run(&alone).failed(2, &["SelfConnection cannot carry Write"]);
    let swept = ["sim", "sweep", "--traffic", "Write", "--scenario", "Transfers", "--psns", "zero"];
    let swept = run(&[&swept[..], &["--device", "rxe", "--seeds", "20000"]].concat());
    let line = swept.output.lines().last().unwrap().to_owned();
    swept.failed(10, &["GhostByte"]);
    assert!(line.starts_with("hf2:Transfers:rxe,Write,az:-:"), "{line}");
    run(&["sim", "replay", &line]).failed(10, &[&line]);
    assert!(json(&["sim", "minimize", &line, "--json"])["events"].as_u64() < Some(20));
    assert!(succeed(&["sim", "timeline", &line]).contains("arrives"));
}

#[test]
fn a_fleet_is_swept_and_threads_make_no_difference() {
    let swept = |threads| {
        json(&["sim", "sweep", "--fleet", "--seeds", "40", "--threads", threads, "--json"])
    };
    let (one, three) = (swept("1"), swept("3"));
    assert_eq!((&one["traces"], &one["events"]), (&three["traces"], &three["events"]));
    assert_eq!(one["scenarios"]["Fleet"]["seeds"], 40);
}

#[test]
fn a_line_replays_with_every_event_and_the_trace_that_it_had() {
    let line = calm();
    let told = succeed(&["sim", "replay", &line]);
    assert!(told.contains("  1. ") && told.contains("every oracle holds"), "{told}");
    let shown = json(&["sim", "replay", &line, "--json"]);
    assert_eq!(shown["line"], line);
    assert!(
        shown["broken"].is_null() && shown["events"].as_array().is_some_and(|all| all.len() > 1)
    );
    let lines = succeed(&["sim", "replay", &line, "--text"]);
    assert!(lines.starts_with("  1        "), "{lines}");
}

#[test]
fn damaged_and_foreign_replay_lines_are_distinguished() {
    let line = calm();
    let damaged = line.replace("SimultaneousOpen", "SimultaneousOpem");
    run(&["sim", "replay", &damaged]).failed(2, &["damaged", "copy the whole line"]);
    run(&["sim", "replay", "hello"]).failed(2, &["no replay line"]);
    let newer = line.replacen("hf2", "hf3", 1);
    run(&["sim", "timeline", &newer]).failed(2, &["'hf3'", "version of handfast"]);
    let parsed: handfast_sim::Line = line.parse().unwrap();
    let elsewhere = handfast_sim::Line { trace: parsed.trace ^ 1, ..parsed }.to_string();
    run(&["sim", "replay", &elsewhere]).failed(12, &["leads to other worlds"]);
    run(&["sim", "minimize", &line]).failed(2, &["nothing breaks on this schedule"]);
}

#[test]
fn timeline_prints_lines_or_diagram() {
    let line = calm();
    let text = succeed(&["sim", "timeline", &line]);
    assert!(text.starts_with("  1        "), "{text}");
    let mermaid = succeed(&["sim", "timeline", &line, "--mermaid"]);
    assert!(mermaid.starts_with("sequenceDiagram\n"), "{mermaid}");
    assert_eq!(json(&["sim", "timeline", &line, "--json"])["line"], line);
}

/// A page has an entry for each event and shows what breaks, and its address is printed.
#[test]
fn timeline_is_written_as_a_page() {
    let (folder, line) = (Folder::new(), calm());
    let page = folder.path().join("page.html");
    let page = page.to_str().unwrap();
    let address = succeed(&["sim", "timeline", &line, "--html", page]);
    assert!(
        address.starts_with("file:///") && address.trim_end().ends_with("page.html"),
        "{address}"
    );
    let text = std::fs::read_to_string(page).unwrap();
    let events = succeed(&["sim", "timeline", &line]).lines().count();
    assert_eq!(text.matches("<li id=\"event-").count(), events);
    assert!(text.contains(&line) && !text.contains("<script"), "{text}");
    let nowhere = folder.path().join("nowhere/page.html");
    let nowhere = nowhere.to_str().unwrap();
    run(&["sim", "timeline", &line, "--html", nowhere]).failed(5, &["page.html"]);
}

/// The program has the shipping rules only, and every way to a variant names the command that has them.
#[test]
fn program_without_variants_names_the_one_with_them() {
    let outside = Folder::new();
    let mut command = Command::new(PROGRAM);
    command.args(["sim", "variants", "SO-1"]).current_dir(outside.path());
    Client::spawn(command).end().failed(2, &["not in a checkout", "cargo xtask variants"]);
    let swept = run(&["sim", "sweep", "--variant", "SO-1", "--seeds", "1"]);
    swept.failed(2, &["shipping rules only", "cargo xtask variants -- sim sweep"]);
    let line = "hf2:SimultaneousOpen:-:SO-1:0xf8:a:eAABA:e55e53e5:ab9f62be";
    let replayed = run(&["sim", "replay", line]);
    replayed.failed(2, &["no variant 'SO-1'", "cargo xtask variants -- sim replay"]);
}

#[test]
fn results_fit_the_terminal() {
    for columns in [40, 60, 100] {
        let line = format!(
            "'{PROGRAM}' sim explore --faults 0; '{PROGRAM}' sim replay '{}' --text",
            calm()
        );
        let Some(ended) = on_terminal(columns, &line) else { return };
        assert_eq!(ended.code, Some(0), "{ended:?}");
        for line in ended.output.lines() {
            // A hash is a word, and words are not broken.
            let fits =
                line.trim_end().chars().count() <= columns.into() || !line.trim().contains(' ');
            assert!(fits, "too wide for {columns}: {line:?}");
        }
    }
}
