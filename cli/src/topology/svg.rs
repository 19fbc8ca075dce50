//! The machine as a picture: NUMA nodes side by side, NICs and accelerators in them, and a line from
//! each accelerator to every NIC that is preferred for it.

use handfast::topology::{Machine, PriorityMatrix};
use std::fmt::Write as _;

const MARGIN: usize = 24;
const COLUMN: usize = 300;
const GAP: usize = 32;
const HEAD: usize = 64;
const ROW: usize = 44;
const BOX_WIDTH: usize = 116;
const BOX_HEIGHT: usize = 32;
/// Letters that fit into a box.
const LETTERS: usize = 13;

/// A device in its column.
struct Placed<'a> {
    name: &'a str,
    note: String,
    class: &'static str,
    x: usize,
    y: usize,
}

pub(super) fn draw(machine: &Machine, matrix: &PriorityMatrix) -> String {
    let unknown =
        machine.nics.iter().map(|nic| nic.numa).chain(machine.gpus.iter().map(|gpu| gpu.numa));
    let numbers = machine.nodes.iter().map(|node| node.number);
    let known: Vec<u32> = numbers.collect();
    let lost = |numa: Option<u32>| numa.is_none_or(|node| !known.contains(&node));
    let mut columns: Vec<Option<u32>> = known.iter().copied().map(Some).collect();
    if unknown.into_iter().any(lost) {
        columns.push(None);
    }
    let of =
        |numa: Option<u32>| columns.iter().position(|at| *at == numa).unwrap_or(columns.len() - 1);
    let (gpus, nics) = (gpus(machine, of), nics(machine, of));
    let rows =
        gpus.iter().chain(&nics).map(|placed| placed.y).max().map_or(1, |y| (y - HEAD) / ROW + 1);
    let height = HEAD + rows * ROW + MARGIN;
    let width = 2 * MARGIN + columns.len() * (COLUMN + GAP) - GAP;
    let mut svg = head(width, height);
    for (at, column) in columns.iter().enumerate() {
        let x = MARGIN + at * (COLUMN + GAP);
        let title =
            column.map_or("NUMA node unknown".to_owned(), |node| format!("NUMA node {node}"));
        let _ = writeln!(
            svg,
            "<rect class=\"node\" x=\"{x}\" y=\"12\" width=\"{COLUMN}\" height=\"{}\" rx=\"8\"/>\
             <text class=\"title\" x=\"{}\" y=\"38\">{title}</text>",
            height - MARGIN,
            x + 16
        );
    }
    for gpu in &gpus {
        let preferred = matrix.nics(gpu.name).preferred;
        for nic in nics.iter().filter(|nic| preferred.iter().any(|name| name == nic.name)) {
            let (from, to) = (gpu.x + BOX_WIDTH, nic.x);
            let (y, end) = (gpu.y + BOX_HEIGHT / 2, nic.y + BOX_HEIGHT / 2);
            let _ = writeln!(svg, "<path class=\"near\" d=\"M{from} {y}L{to} {end}\"/>");
        }
    }
    gpus.iter().chain(&nics).for_each(|placed| device(&mut svg, placed));
    svg.push_str("</svg>\n");
    svg
}

fn gpus<'a>(machine: &'a Machine, column: impl Fn(Option<u32>) -> usize) -> Vec<Placed<'a>> {
    let mut rows = Rows::default();
    let place = |gpu: &'a handfast::topology::Gpu| {
        let (x, y) = rows.next(column(gpu.numa), 16);
        Placed { name: &gpu.location, note: gpu.pci.clone(), class: "gpu", x, y }
    };
    machine.gpus.iter().map(place).collect()
}

fn nics<'a>(machine: &'a Machine, column: impl Fn(Option<u32>) -> usize) -> Vec<Placed<'a>> {
    let mut rows = Rows::default();
    let place = |nic: &'a handfast::topology::Nic| {
        let (x, y) = rows.next(column(nic.numa), COLUMN - BOX_WIDTH - 16);
        let class = if nic.active { "nic" } else { "nic off" };
        let state = if nic.active { "" } else { ", no active port" };
        Placed { name: &nic.name, note: format!("{} {}{state}", nic.kind, nic.pci), class, x, y }
    };
    machine.nics.iter().map(place).collect()
}

/// The number of devices in each column.
#[derive(Default)]
struct Rows(Vec<usize>);

impl Rows {
    fn next(&mut self, column: usize, inset: usize) -> (usize, usize) {
        if self.0.len() <= column {
            self.0.resize(column + 1, 0);
        }
        let row = self.0[column];
        self.0[column] += 1;
        (MARGIN + column * (COLUMN + GAP) + inset, HEAD + row * ROW)
    }
}

fn device(svg: &mut String, placed: &Placed<'_>) {
    let Placed { name, note, class, x, y } = placed;
    let short: String = match name.chars().count() > LETTERS {
        true => name.chars().take(LETTERS - 1).chain(['…']).collect(),
        false => (*name).to_owned(),
    };
    let _ = writeln!(
        svg,
        "<g class=\"{class}\"><title>{} {}</title>\
         <rect x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"5\"/>\
         <text x=\"{}\" y=\"{}\">{}</text></g>",
        escaped(name),
        escaped(note),
        x + BOX_WIDTH / 2,
        y + 21,
        escaped(&short)
    );
}

fn head(width: usize, height: usize) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"14\">\n<style>\
         .page{{fill:#fff}}.node{{fill:#f4f5f7;stroke:#c3c7cf}}.title{{font-weight:bold;fill:#222}}\
         g text{{text-anchor:middle;fill:#111}}.gpu rect{{fill:#d7ead9;stroke:#4b8b57}}\
         .nic rect{{fill:#d6e4f5;stroke:#3f6fa8}}.off rect{{fill:#eee;stroke:#999;stroke-dasharray:4 3}}\
         .near{{stroke:#c9772b;stroke-width:2;fill:none}}</style>\n\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\"/>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
