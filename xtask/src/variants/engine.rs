//! Broken variants of the engine's input and output. One build has them all; each is found by the
//! simulation of the engine from the seed that its table names.

use super::Patched;
use super::built::{Built, Run};
use crate::project::Project;
use crate::report::Outcome;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
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
/// The variable that names the seed of the test.
const SEED: &str = "HANDFAST_SIMULATED";
/// The test that plays a seed.
const TEST: &str = "seed_passes";
/// The program that has it.
const SWEEPS: &str = "engine/sweeps";
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
    /// The crates that the patch changes.
    pub(super) changes: BTreeSet<String>,
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
    let built = Built::new(project, deadline)?;
    let play = |variant: &str, seed: u64| {
        built.run(Run {
            program: SWEEPS,
            variant,
            arguments: &["--exact", TEST],
            variable: Some((SEED, seed.to_string())),
            log: format!("engine-variant-{variant}"),
            deadline,
        })
    };
    let mut seeds: Vec<u64> = chosen.iter().map(|row| row.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    for seed in &seeds {
        let passed = play(PLAIN, *seed)?.output;
        let is_played = passed.contains(&format!("{TEST} ... ok"));
        ensure!(is_played, "seed {seed} without a variant:\n{passed}");
    }
    let mut unnoticed = Vec::new();
    for Row { variant, seed, oracle, .. } in &chosen {
        let ended = play(variant, *seed)?;
        if ended.failed.is_empty() {
            unnoticed.push(format!("seed {seed} passes with {variant}"));
        } else if !ended.output.contains(&format!(" {oracle}: ")) {
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
        let (oracle, other) = (field("oracle")?, field("other test")?);
        let changes = changed_by(project, &variant)?;
        Ok(Row { variant, seed, oracle, other, changes })
    });
    let rows: Vec<Row> = rows.collect::<Result<_>>()?;
    for patch in super::patches(&project.root().join(VARIANTS.patches))? {
        let name = super::file_name(&patch).trim_end_matches(".patch").to_owned();
        let is_known = name.starts_with("00-") || rows.iter().any(|row| row.variant == name);
        ensure!(is_known, "{TABLE} has no row for {name}");
    }
    Ok(rows)
}

/// The crates that a patch changes, by their folders.
fn changed_by(project: &Project, variant: &str) -> Result<BTreeSet<String>> {
    let patch = project.root().join(VARIANTS.patches).join(format!("{variant}.patch"));
    let text = fs::read_to_string(&patch).with_context(|| patch.display().to_string())?;
    let files = text.lines().filter_map(|line| line.strip_prefix("+++ b/"));
    Ok(files.filter_map(|file| file.split('/').next()).map(str::to_owned).collect())
}
