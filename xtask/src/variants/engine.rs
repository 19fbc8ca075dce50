//! Broken variants of the engine's input and output. One build has them all; each is found by the
//! simulation of the engine from the seed that its table names.

use super::{Patched, cargo_with};
use crate::features::Features;
use crate::project::Project;
use crate::report::Outcome;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::time::{Duration, Instant};

/// The patches, which change one place each.
pub(super) const VARIANTS: Patched = Patched {
    patches: "sim-tests/engine-variants",
    crates: &["transport", "transport-tcp", "engine"],
    folder: "engine-variants",
};
/// Each variant, the seed and the oracle that find it, and another test that it turns red, [`NONE`] or
/// [`UNMEASURED`].
const TABLE: &str = "sim-tests/engine-variants.tsv";
/// The variable that names the variant of a process.
pub(super) const PLANTED: &str = "HANDFAST_PLANTED";
/// The variable that names the seed of the test.
const SEED: &str = "HANDFAST_SIMULATED";
/// The test that plays a seed.
const TEST: &str = "seed_passes";
/// cargo's line about a test binary in which a test failed.
const RED: &str = "test result: FAILED";
/// The name of no variant.
pub(super) const PLAIN: &str = "none";
/// The table's word for a variant that passes every other test.
pub(super) const NONE: &str = "none";
/// The table's word for a variant with which no other test has run.
pub(super) const UNMEASURED: &str = "unmeasured";
/// Time for a command without a deadline of its own.
const PATIENCE: Duration = Duration::from_secs(1_800);

/// A row of the table.
pub(super) struct Row {
    pub(super) variant: String,
    seed: u64,
    oracle: String,
    /// Program and name of the test.
    pub(super) other: String,
}

/// Plays the seed of each variant, which finds it, and without a variant, which finds nothing.
pub(crate) fn step(project: &Project, deadline: Instant) -> Outcome {
    find(project, &[], Some(deadline))
}

/// As [`step`], for variants of these names, or all.
pub(super) fn find(project: &Project, names: &[String], deadline: Option<Instant>) -> Outcome {
    let deadline = deadline.unwrap_or_else(|| Instant::now() + PATIENCE);
    let rows = table(project)?;
    for name in names {
        ensure!(rows.iter().any(|row| row.variant == *name), "{TABLE} has no {name}");
    }
    let chosen = rows.iter().filter(|row| names.is_empty() || names.contains(&row.variant));
    let chosen: Vec<&Row> = chosen.collect();
    let features = Features::available(project, deadline);
    let test = ["--test", "sweeps", "--", "--exact", TEST];
    let words: Vec<&str> = ["test", "--workspace"].into_iter().chain(features.words()).collect();
    let play = |variant: &str, seed: u64| -> Result<String> {
        let mut command = cargo_with(project, &VARIANTS, &[&words[..], &test].concat())?;
        features.apply(&mut command);
        command.env(PLANTED, variant).env(SEED, seed.to_string());
        project.run(command, &format!("engine-variant-{variant}"), deadline)
    };
    let mut seeds: Vec<u64> = chosen.iter().map(|row| row.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    for seed in &seeds {
        let passed = play(PLAIN, *seed).with_context(|| format!("seed {seed}, no variant"))?;
        ensure!(passed.contains(&format!("{TEST} ... ok")), "{TEST} does not run");
    }
    let mut unnoticed = Vec::new();
    for Row { variant, seed, oracle, .. } in &chosen {
        match play(variant, *seed) {
            Ok(_) => unnoticed.push(format!("seed {seed} passes with {variant}")),
            Err(error) => ensure!(format!("{error:#}").contains(RED), "{variant}: {error:#}"),
        }
        let log = project.scratch().join(format!("engine-variant-{variant}.log"));
        if !fs::read_to_string(log)?.contains(&format!(" {oracle}: ")) {
            unnoticed.push(format!("{oracle} does not fail at seed {seed} with {variant}"));
        }
    }
    if !unnoticed.is_empty() {
        bail!("variants of the engine that go unnoticed:\n{}", unnoticed.join("\n"));
    }
    Ok(format!("{} variants of the engine found by {} seeds", chosen.len(), seeds.len()))
}

/// Reads the table, which has a row for each patch.
pub(super) fn table(project: &Project) -> Result<Vec<Row>> {
    let text = fs::read_to_string(project.root().join(TABLE)).context(TABLE)?;
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let rows = rows.map(|line| {
        let mut fields = line.split('\t');
        let mut field = |name: &str| {
            let field = fields.next().filter(|field| !field.is_empty()).map(str::to_owned);
            field.with_context(|| format!("{TABLE}: no {name} in '{line}'"))
        };
        let (variant, seed) = (field("variant")?, field("seed")?);
        let seed = seed.parse().with_context(|| format!("{TABLE}: the seed of '{line}'"))?;
        Ok(Row { variant, seed, oracle: field("oracle")?, other: field("other test")? })
    });
    let rows: Vec<Row> = rows.collect::<Result<_>>()?;
    for patch in super::patches(&project.root().join(VARIANTS.patches))? {
        let name = super::file_name(&patch).trim_end_matches(".patch").to_owned();
        let is_known = name.starts_with("00-") || rows.iter().any(|row| row.variant == name);
        ensure!(is_known, "{TABLE} has no row for {name}");
    }
    Ok(rows)
}
