//! `cargo xtask scale`: fleets of the simulation, their figures and plots.

// Figures are only reported.
#![allow(clippy::float_arithmetic)]

use crate::project::Project;
use anyhow::{Context, Result, bail};
use minijinja::{Environment, Value as Text};
use plotters::prelude::{
    BLUE, ChartBuilder, IntoDrawingArea, IntoFont, LineSeries, RED, SVGBackend,
    SeriesLabelPosition, WHITE,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Run fleets of up to 10000 nodes in virtual time, and write docs/scale.md with its plots
///
/// Takes ten minutes and 3 GB of memory. With --quick the fleets have a tenth of the nodes, and the page
/// is written below cargo's target folder.
///
/// Exit code: 0 if every oracle held, 1 if one did not.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A tenth of the nodes, and a page elsewhere
    #[arg(long)]
    quick: bool,
}

const PAGE: &str = include_str!("scale/page.md");
const BUILD_BUDGET: Duration = Duration::from_secs(1_800);
/// Incidents of the large fleet.
const INCIDENTS: [&str; 6] = ["none", "loss", "outage", "waves", "rolling", "rack"];
/// Sizes of the fleets of equal degree.
const SIZES: [u32; 4] = [10, 100, 1_000, 10_000];
const DEGREE: u32 = 8;
/// Width and height of a plot.
const PIXELS: (u32, u32) = (860, 300);

pub(crate) fn run(project: &Project, arguments: &Arguments) -> Result<bool> {
    let build = project.cargo(&["build", "--release", "-p", "handfast-cli"]);
    project.run(build, "scale-build", Instant::now() + BUILD_BUDGET)?;
    let program = project.target().join("release/handfast");
    let share = if arguments.quick { 10 } else { 1 };
    let folder = match arguments.quick {
        true => project.target().join("scale"),
        false => project.root().join("docs"),
    };
    fs::create_dir_all(folder.join("images"))?;
    let fleet = |nodes: u32, peers: u32, incident: &str| fleet(&program, nodes, peers, incident);
    let mut sizes = Vec::new();
    for nodes in SIZES {
        sizes.push(fleet((nodes / share).max(10), DEGREE, "none")?);
    }
    let mut large = Vec::new();
    for incident in INCIDENTS {
        let ran = fleet(10_000 / share, 16, incident)?;
        plot(&ran, &folder.join(format!("images/scale-{incident}.svg")))?;
        large.push(ran);
    }
    let mut dense = Vec::new();
    for incident in ["none", "waves"] {
        dense.push(fleet(10_000 / share, 64, incident)?);
    }
    let held = sizes.iter().chain(&large).chain(&dense).all(|ran| ran["broken"].is_null());
    let facts = json!({ "quick": arguments.quick, "sizes": sizes, "large": large, "dense": dense });
    fs::write(folder.join("scale.md"), page(&facts)?)?;
    Ok(held)
}

/// Runs a fleet, and returns its line of JSON without the course of the run's numbers.
fn fleet(program: &Path, nodes: u32, peers: u32, incident: &str) -> Result<Value> {
    let [nodes, peers] = [nodes, peers].map(|count| count.to_string());
    let words =
        ["sim", "fleet", "--json", "--nodes", &nodes, "--peers", &peers, "--incident", incident];
    anstream::eprintln!("handfast {}", words.join(" "));
    let output = std::process::Command::new(program).args(words).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(line) = text.lines().next() else {
        bail!("no output: {}", String::from_utf8_lossy(&output.stderr));
    };
    serde_json::from_str(line).context("its line of JSON")
}

/// The numbers of a course, for each node and 100 ms.
fn course(ran: &Value, name: &str) -> Vec<(f64, f64)> {
    let nodes = ran["nodes"].as_f64().unwrap_or(1.0);
    let numbers = ran[name].as_array().map_or(&[][..], Vec::as_slice);
    let point =
        |(at, number): (usize, &Value)| (at as f64 / 10.0, number.as_f64().unwrap_or(0.0) / nodes);
    numbers.iter().enumerate().map(point).collect()
}

/// Draws the unmet demands and the calls of a run over its time.
fn plot(ran: &Value, to: &Path) -> Result<()> {
    let (unmet, calls) = (course(ran, "course_unmet"), course(ran, "course_calls"));
    let most = unmet.iter().chain(&calls).map(|(_, number)| *number).fold(1.0, f64::max);
    let end = unmet.last().map_or(1.0, |(at, _)| *at);
    let area = SVGBackend::new(to, PIXELS).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .caption(ran["incident"].as_str().unwrap_or_default(), ("sans-serif", 18))
        .build_cartesian_2d(0.0..end, 0.0..most * 1.3)?;
    let words = ("sans-serif", 13).into_font();
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_y_mesh()
        .label_style(words.clone())
        .x_desc("seconds")
        .y_desc("for each node")
        .draw()?;
    chart
        .draw_series(LineSeries::new(unmet, &RED))?
        .label("unmet demands")
        .legend(|(x, y)| plotters::prelude::PathElement::new([(x, y), (x + 18, y)], RED));
    chart
        .draw_series(LineSeries::new(calls, &BLUE))?
        .label("calls in 100 ms")
        .legend(|(x, y)| plotters::prelude::PathElement::new([(x, y), (x + 18, y)], BLUE));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE)
        .label_font(words)
        .draw()?;
    area.present()?;
    Ok(())
}

fn page(facts: &Value) -> Result<String> {
    let mut environment = Environment::new();
    environment.add_filter("fixed", |number: f64, digits: usize| format!("{number:.digits$}"));
    environment.add_template("page", PAGE)?;
    let page = environment.get_template("page")?;
    Ok(page.render(Text::from_serialize(facts))? + "\n")
}
