use sim_tests::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let k: u32 = args[1].parse().unwrap();
    let which = args.get(2).cloned().unwrap_or_default();
    for s in Scenario::ALL {
        if !format!("{s:?}").contains(&which) { continue }
        #[allow(clippy::disallowed_types)]
        let t = std::time::Instant::now();
        let r = Explorer { liveness: std::env::var("NOLIVE").is_err(), states_max: 30_000_000, ..Explorer::default() }.explore(&{ let mut u = s.setup(k); let f = std::env::var("F").unwrap_or_default(); u.prune = f.contains('p'); if f.contains('a') { u.operations = handfast_transport_sim::Operations::AtOnce } if f.contains('c') { u.faults = handfast_transport_sim::Faults::CLASSIC } s.begin(u) });
        let e = t.elapsed().as_secs_f64();
        println!("{s:?} K={k} states={} transitions={} depth={} {:.2}s {:.0}/s worst={:?}", r.states, r.transitions, r.depth, e, r.transitions as f64/e, r.worst_healing);
        match r.ending { Ending::Violation(c) => println!("{}", c.transcript), e => println!("{e:?}") }
        println!("{:?} {:?}", r.coverage.refusals, r.coverage.timers);
    }
}
