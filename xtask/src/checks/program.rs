//! Contents of the released program.

use crate::project::Project;
use crate::report::{Outcome, of_findings};
use std::fs;
use std::process::Command;
use std::time::Instant;

/// A name from the table of broken variants, and so contained in a program with the variants.
const VARIANT: &[u8] = b"ReplacedByRequest";

/// Checks that a program built in the workspace has no broken variant: it reports so, and contains
/// no name of one.
pub(crate) fn without_variants(project: &Project, deadline: Instant) -> Outcome {
    let build = project.cargo(&["build", "--bin", "handfast", "--release"]);
    project.run(build, "program", deadline)?;
    let program = project.target().join("release/handfast");
    let mut findings = Vec::new();
    match fs::read(&program) {
        Ok(bytes) if contains(&bytes, VARIANT) => {
            findings.push("a name of a broken variant is in the program".to_owned());
        }
        Ok(_) => {}
        Err(error) => findings.push(format!("{}: {error}", program.display())),
    }
    // Outside of a checkout, in which the program would build the variants with cargo.
    let outside = std::env::temp_dir();
    match Command::new(&program).args(["sim", "variants"]).current_dir(outside).output() {
        Ok(output) if output.status.code() == Some(2) && output.stdout.is_empty() => {}
        Ok(output) => findings.push(format!("'sim variants' ended with {}", output.status)),
        Err(error) => findings.push(format!("{}: {error}", program.display())),
    }
    of_findings(&findings, "no variant in the program")
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::{VARIANT, contains};

    #[test]
    fn a_name_in_a_program_is_found_and_part_of_one_is_not() {
        let with = [b"\0\x7fELF".as_slice(), VARIANT, b"\0"].concat();
        assert!(contains(&with, VARIANT));
        assert!(!contains(&with[..with.len() - 2], VARIANT));
    }
}
