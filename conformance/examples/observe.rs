//! Prints what the kernel of a guest shows in every scenario; see `docs/conformance.md`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", conformance::record_kernel()?);
    Ok(())
}
