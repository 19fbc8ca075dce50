//! A recorded run that is checked in: a put whose server is killed and started again meanwhile.
//! `docs/trace.md` says how one is recorded and redacted.

use handfast_sim::{Picture, Window, picture_of_trace, timeline};
use handfast_trace::{ReplayError, TraceReader, replay};
use sim_tests::assert_snapshot;

const RESTART: &[u8] = include_bytes!("../../traces/sigkill-restart.trace");

fn picture(from: Option<u64>, entries: u64) -> Picture {
    let mut open = || TraceReader::new(RESTART, false).map_err(ReplayError::from);
    picture_of_trace(&mut open, Window { from, entries }).unwrap()
}

#[test]
fn the_recorded_restart_replays_in_this_build() {
    let reader = TraceReader::new(RESTART, false).unwrap();
    let replayed = replay(reader, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    assert!(replayed.ended && replayed.missing == 0 && replayed.steps > 20, "{replayed:?}");
}

#[test]
fn the_recorded_restart_is_drawn_as_it_was() {
    let text = timeline::text(&picture(None, 2_000), None);
    // Batches that end well are many and alike.
    let few: Vec<&str> = text.lines().filter(|line| !line.contains(": batch ")).collect();
    assert_snapshot("recorded-restart", &(few.join("\n") + "\n"));
}

/// A window shows its entries and the state before them.
#[test]
fn window_shows_its_entries_and_prior_state() {
    let whole = picture(None, 2_000);
    let end = whole.rows.len() as u64;
    let last = picture(None, 3);
    assert_eq!(last.rows.len(), 3);
    let words = |picture: &Picture| picture.rows.last().unwrap().words.clone();
    assert!(words(&last).starts_with(&format!("entry {end}, ")), "{}", words(&last));
    let established = whole.rows.iter().position(|row| {
        row.states[0].lifecycles.iter().any(|state| state.ends_with("Established"))
    });
    let from = established.expect("a lane was in use") as u64 + 2;
    let window = picture(Some(from), 2);
    assert_eq!(window.rows.len(), 2);
    assert!(window.rows[0].words.starts_with(&format!("entry {from}, ")));
    let drawn = timeline::mermaid(&window);
    assert!(drawn.contains(&format!("entry {from}, ")), "{drawn}");
    assert!(picture(Some(end + 1), 10).rows.is_empty());
}
