//! Functions that describe NICs.

use crate::abi::NicLoadStat;
use crate::node::{Running, find};
use crate::outcome::code;
use handfast::topology::PriorityMatrix;
use handfast_compat::Failure;
use handfast_compat::c::{place, put_text};
use serde_json::{Value, json};
use std::ffi::{c_char, c_int, c_void};

/// Reports that there are no figures.
///
/// # Safety
/// `count` is NULL, or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getNicLoadStats(
    engine: *mut c_void,
    stats: *mut NicLoadStat,
    count: *mut usize,
) -> c_int {
    code("getNicLoadStats", || {
        find(engine)?;
        place(stats, "stats")?;
        // SAFETY: the place is writable, as the caller promises.
        unsafe { place(count, "count")?.write(0) };
        Ok(())
    })
}

/// Writes the NICs of the machine.
///
/// # Safety
/// `out` is NULL, or has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn showLinks(
    engine: *mut c_void,
    out: *mut c_char,
    bytes: usize,
    json: c_int,
) -> c_int {
    code("showLinks", || {
        let node = find(engine)?;
        let links = Links::of(node.running()?)?;
        let text = if json != 0 { links.json() } else { links.text() };
        // SAFETY: the caller's promise is passed on.
        unsafe { put_text(out, bytes, &text) }
    })
}

struct Links {
    /// Names, and where they are from: the transport's, or the machine's.
    nics: Vec<(String, &'static str)>,
    matrix: PriorityMatrix,
}

impl Links {
    fn of(running: &Running) -> Result<Self, Failure> {
        let matrix = PriorityMatrix::parse(&handfast_compat::topology()?);
        let matrix = matrix.map_err(|it| Failure::argument(it.to_string()))?;
        let mut nics: Vec<_> =
            running.engine.devices().map(|name| (name.to_owned(), "rdma_transport")).collect();
        if nics.is_empty() {
            let near = matrix.locations().flat_map(|(_, nics)| nics.iter());
            let mut names: Vec<_> = near.map(|name| (name.to_owned(), "topology")).collect();
            names.sort_unstable();
            names.dedup();
            nics = names;
        }
        Ok(Self { nics, matrix })
    }

    fn json(&self) -> String {
        let nic = |(name, source): &(String, &str)| json!({"device": name, "source": source});
        let nics: Vec<Value> = self.nics.iter().map(nic).collect();
        json!({"local_nics": nics, "topology": self.matrix}).to_string()
    }

    fn text(&self) -> String {
        let mut text = String::from("NICs:");
        for (name, source) in &self.nics {
            text.push_str(&format!("\n  {name} ({source})"));
        }
        text.push_str(&format!("\nnear to memory: {}\n", self.matrix.to_json()));
        text
    }
}
