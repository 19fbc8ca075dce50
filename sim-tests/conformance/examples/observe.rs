//! Prints the observations of a guest's kernel in the named scenarios, or in all; see
//! `docs/conformance.md`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    print!("{}", conformance::record_kernel(&names)?);
    Ok(())
}
