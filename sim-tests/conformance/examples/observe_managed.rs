//! Prints the observations of a connection manager in the named scenarios, or in all, between two devices
//! that connect through it: `observe_managed DEVICE ADDRESS DEVICE ADDRESS [SCENARIO]…`. Fails where
//! they differ from the simulated one's.

use conformance::{record_managed_kernel, record_managed_simulated};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [one, at, other, other_at, names @ ..] = &words[..] else {
        return Err("DEVICE ADDRESS DEVICE ADDRESS [SCENARIO]…".into());
    };
    let devices = [(&**one, at.parse()?), (&**other, other_at.parse()?)];
    let seen = record_managed_kernel(format!("{one} and {other}"), names, devices)?;
    print!("{seen}");
    let simulated = record_managed_simulated()?;
    let mut differing = 0;
    for (name, lines) in &seen.played {
        let expected = simulated.lines(name).unwrap_or_default();
        for (seen, expected) in lines.iter().zip(expected).filter(|(seen, it)| seen != it) {
            println!("{name}: {seen:?}, simulated {expected:?}");
            differing += 1;
        }
    }
    match differing {
        0 => Ok(()),
        count => Err(format!("{count} observations differ").into()),
    }
}
