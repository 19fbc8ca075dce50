//! Every broken variant is found within its budget, its world holds under the shipping rules, and the
//! documents say how.

use handfast_core::Node;
use handfast_sim::mutant_search::{self, Catch, Escape, SCHEDULES_MAX, STATES_MAX};
use handfast_sim::variants::{CANARY, Entry};
use handfast_sim::{Case, Ending, Explorer, variants};
use handfast_transport_sim::Oracle;
use sim_tests::assert_document;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

/// The figures of the last change, one variant per line: id, worlds, events, random schedules.
const FILE: &str = "sim-tests/variants.tsv";

/// A change of the rules moves the figures: so many times the worlds and the random schedules of
/// the file are within the budget, and no more events than there.
const STATES_SLACK: usize = 2;
const SCHEDULES_SLACK: u64 = 4;

/// Smallest budget, for lucky seeds.
const SCHEDULES_MIN: u64 = 64;

/// Every variant is found within its budget, and the documents list how.
#[test]
fn every_variant_is_found_within_its_budget() {
    let caught = mutant_search::hunt_all();
    let escaped: Vec<String> = caught
        .iter()
        .filter_map(|(id, caught)| Some(format!("{id}: {}", caught.as_ref().err()?)))
        .collect();
    assert!(escaped.is_empty(), "not found: {escaped:#?}");
    let caught: Vec<Catch> = caught.into_iter().filter_map(|(_, caught)| caught.ok()).collect();
    let mut figures = String::from("id\tworlds\tevents\trandom schedules\n");
    for it in &caught {
        let _ = writeln!(figures, "{}\t{}\t{}\t{}", it.id, it.states, it.events, it.schedules);
    }
    let kept = kept(&figures);
    let over: Vec<String> = caught.iter().filter_map(|it| over_budget(it, &kept)).collect();
    assert!(over.is_empty(), "over budget: {over:#?}\nUPDATE_SNAPSHOTS=1 rewrites {FILE}");
    let registered = mutant_search::searches().len();
    assert_eq!(kept.len(), registered, "{FILE} has lines for variants that are gone");
    assert_variants_are_documented(&caught, &kept);
}

/// The canary is found in its first event and in the first random schedule.
#[test]
fn canary_is_found_at_once() {
    let caught =
        mutant_search::mutant_search(&CANARY).expect("a search that misses it sees nothing");
    assert_eq!((caught.events, caught.schedules), (1, 1), "{caught:?}");
}

/// The shipping rules, called a variant, where they do what its oracle forbids: a restart ends lanes.
const SHIPPING: Entry = Entry {
    id: "SHIPPING",
    oracles: &[Oracle::Lasting],
    lasting: true,
    faults_max: 1,
    build: || Arc::new(Node::new),
    ..CANARY
};

#[test]
fn finding_that_shipping_rules_show_is_refused() {
    let escape =
        mutant_search::mutant_search(&SHIPPING).expect_err("the shipping rules are no variant");
    let Escape::Control { oracle, .. } = escape else { panic!("{escape}") };
    assert_eq!(oracle, "Lasting");
}

#[test]
fn seldom_found_variants_have_controls_that_hold() {
    for entry in variants::SELDOM {
        let (_, states) = mutant_search::explore(entry).unwrap_or_else(|escape| panic!("{escape}"));
        mutant_search::control(entry, states)
            .unwrap_or_else(|shown| panic!("{}: {shown}", entry.id));
    }
}

/// These take what the rules ignore, and pruning leaves out what the rules ignore: they are for
/// worlds that are not pruned. The last one leaves a timer to do what a message could: pruning leaves
/// out the worlds in which only that timer is left.
const HIDDEN_BY_PRUNING: [&str; 4] = ["GEN-2", "SO-12", "TENT-5", "PROMPT-1"];

/// Reductions hide no variant except those named above.
#[test]
fn reductions_hide_no_other_variant() {
    assert_eq!(hidden(false), [""; 0]);
    assert_eq!(hidden(true), HIDDEN_BY_PRUNING);
}

/// Variants that are not found where pairs of nodes go on one after the other.
fn hidden(prune: bool) -> Vec<&'static str> {
    let is_hidden = |entry: &&'static Entry| {
        let faults_max = entry.faults_max.max(1);
        let case = Case { prune, faults_max, ..Case::of_variant(entry) };
        let explorer = Explorer {
            apart: true,
            states_max: STATES_MAX,
            liveness: entry.oracles.contains(&Oracle::Liveness),
            cycles: false,
            oracles: entry.oracles.to_vec(),
            ..Explorer::default()
        };
        !matches!(explorer.explore(&case.start()).ending, Ending::Violation(_))
    };
    variants::ALL.iter().filter(is_hidden).map(|entry| entry.id).collect()
}

/// A variant that no search finds is named, and every search still runs.
#[test]
fn rules_that_others_stand_in_for_are_still_not_missed() {
    for entry in variants::UNREFUTED {
        let explorer = Explorer { states_max: STATES_MAX, cycles: false, ..Explorer::default() };
        let report = explorer.explore(&Case::of_variant(entry).start());
        match report.ending {
            Ending::Fixpoint => println!("{}: {} worlds hold", entry.id, report.states),
            Ending::Violation(found) => panic!("{} is found: {}", entry.id, found.transcript),
            Ending::StatesMax => panic!("{}: the bound was reached", entry.id),
        }
    }
}

#[test]
fn every_variant_has_a_name_of_its_own() {
    let searches = mutant_search::searches().into_iter().map(|search| (search.id(), search.name()));
    let seldom = variants::SELDOM.iter().map(|entry| (entry.id, entry.name));
    let clock = variants::CLOCK.iter().map(|entry| (entry.id, entry.name));
    let all: Vec<(&str, &str)> = searches.chain(seldom).chain(clock).collect();
    let ids: BTreeSet<&str> = all.iter().map(|(id, _)| *id).collect();
    let names: BTreeSet<&str> = all.iter().map(|(_, name)| *name).collect();
    assert_eq!((ids.len(), names.len()), (all.len(), all.len()));
    for id in ids {
        assert!(id.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-'), "{id}");
    }
}

/// Worlds, events and random schedules, by id.
type Figures<'a> = BTreeMap<String, [u64; 3]>;

/// The checked-in figures, rewritten first if that is asked for.
fn kept(measured: &str) -> Figures<'_> {
    let text = if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        assert_document(FILE, measured);
        measured.to_owned()
    } else {
        read(FILE)
    };
    let figures = text.lines().skip(1).map(|line| {
        let mut words = line.split('\t');
        let id = words.next().unwrap_or_default().to_owned();
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        (id, [number(), number(), number()])
    });
    figures.collect()
}

fn over_budget(caught: &Catch, kept: &Figures<'_>) -> Option<String> {
    let Some([states, events, schedules]) = kept.get(caught.id) else {
        return Some(format!("{} has no line in {FILE}", caught.id));
    };
    let states_max = (*states as usize * STATES_SLACK).min(STATES_MAX);
    let schedules_max = (schedules * SCHEDULES_SLACK).clamp(SCHEDULES_MIN, SCHEDULES_MAX);
    let within = caught.states <= states_max
        && caught.events as u64 <= *events
        && caught.schedules <= schedules_max;
    (!within).then(|| format!("{caught:?} against {:?}", kept[caught.id]))
}

const BEGIN: &str = "<!-- variants: written by a test from sim-tests/variants.tsv -->\n";
const END: &str = "<!-- end of variants -->\n";

fn assert_variants_are_documented(caught: &[Catch], kept: &Figures<'_>) {
    let mut table = String::from(
        "| id | what is broken | oracle | K | states | shortest | random schedules |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for it in caught {
        let [states, events, schedules] = kept[it.id];
        let Catch { id, breaks, oracle, faults_max, .. } = it;
        let _ = writeln!(
            table,
            "| {id} | {breaks} | {oracle} | {faults_max} | {states} | {events} | {schedules} |"
        );
    }
    let page = read("docs/testing.md");
    let (before, rest) = page.split_once(BEGIN).expect("where the table begins");
    let (_, after) = rest.split_once(END).expect("where the table ends");
    assert_document("docs/testing.md", &format!("{before}{BEGIN}{table}{END}{after}"));
}

fn read(path: &str) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
