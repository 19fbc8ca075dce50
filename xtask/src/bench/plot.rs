//! The ratios to the raw stream as bars.

use super::figures::{Figures, Row};
use super::page::size;
use std::fmt::Write as _;

const WIDTH: usize = 760;
const HEIGHT: usize = 320;
const LEFT: usize = 48;
const TOP: usize = 40;
const BOTTOM: usize = 56;
/// The largest ratio that is drawn; bars past it end there with an open top.
const RATIO_MAX: f64 = 2.0;
/// Colours of the series, told apart by readers who see no red or green as well.
const COLOURS: [&str; 4] = ["#1b4965", "#5fa8d3", "#b56576", "#e8a598"];
const SERIES: [(&str, u64); 4] = [("write", 1), ("write", 32), ("read", 1), ("read", 32)];

/// One group of bars per size: what one thread reached of the raw stream of that block size.
pub(super) fn ratios(figures: &Figures) -> String {
    let single = |row: &&Row| row.workload.threads == 1;
    let mut sizes: Vec<u64> =
        figures.rows.iter().filter(single).map(|it| it.workload.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let plot_height = HEIGHT - TOP - BOTTOM;
    let y = |ratio: f64| TOP as f64 + plot_height as f64 * (1.0 - ratio.min(RATIO_MAX) / RATIO_MAX);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         fill=\"#ffffff\"/>\n<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">Rate, one thread: ratio to \
         a raw TCP stream of the same block size</text>\n"
    );
    for halves in 0..=4 {
        let mark = f64::from(halves) / 2.0;
        let (y, stroke) = (y(mark), if halves == 2 { "#222222" } else { "#cccccc" });
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{stroke}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mark:.1}</text>",
            LEFT - 8,
            y + 4.0
        );
    }
    let group = (WIDTH - LEFT) / sizes.len().max(1);
    let bar = group / (SERIES.len() + 2);
    for (place, bytes) in sizes.iter().enumerate() {
        let left = LEFT + place * group + bar;
        for (index, (operation, batch)) in SERIES.into_iter().enumerate() {
            let is_it = |row: &&Row| {
                let it = row.workload;
                (it.operation, it.size, it.batch, it.threads) == (operation, *bytes, batch, 1)
            };
            let Some(ratio) = figures.rows.iter().find(is_it).and_then(Row::ratio) else {
                continue;
            };
            let (x, top) = (left + index * bar, y(ratio));
            let height = (TOP + plot_height) as f64 - top;
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{top:.1}\" width=\"{}\" height=\"{height:.1}\" fill=\"{}\">\
                 <title>{operation}, {}, {batch} at a time: {ratio:.2}</title></rect>\
                 <text x=\"{}\" y=\"{:.1}\" font-size=\"10\" text-anchor=\"middle\">{ratio:.2}</text>",
                bar - 3,
                COLOURS[index],
                size(*bytes),
                x + (bar - 3) / 2,
                top - 3.0
            );
        }
        let (x, y) = (left + SERIES.len() * bar / 2, TOP + plot_height + 18);
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
            size(*bytes)
        );
    }
    legend(&mut svg);
    svg + "</svg>\n"
}

fn legend(svg: &mut String) {
    for (index, (operation, batch)) in SERIES.into_iter().enumerate() {
        let (x, y) = (LEFT + index * 170, HEIGHT - 14);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"{y}\">{operation}, {batch} at a time</text>",
            y - 10,
            COLOURS[index],
            x + 18
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::measured;
    use super::*;

    #[test]
    fn every_single_threaded_workload_has_a_bar_inside_the_picture() {
        let mut figures = measured();
        for row in figures.rows.iter_mut().filter(|row| row.workload.batch == 1) {
            row.rates = vec![100.0; 3];
        }
        let svg = ratios(&figures);
        assert_eq!(svg.matches("<title>").count(), 16, "{svg}");
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
        let tops = svg.split(" y=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let tops: Vec<f64> = tops.filter_map(|top| top.parse().ok()).collect();
        assert!(tops.iter().all(|top| (0.0..HEIGHT as f64).contains(top)), "{tops:?}");
    }

    #[test]
    fn a_run_without_figures_is_an_empty_picture() {
        let svg = ratios(&Figures::new(true, None));
        assert!(svg.ends_with("</svg>\n") && !svg.contains("<title>"));
    }
}
