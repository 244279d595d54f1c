//! Draws bar charts as SVG: two or more bars beside each other, for each case.

use std::fmt::Write;

use super::svg::{COLOURS, escaped, round_up, shown};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 44.0;

#[derive(Clone, Debug)]
pub struct BarChart {
    pub title: String,
    pub y_label: String,
    /// The name of each bar of a group.
    pub names: Vec<String>,
    pub groups: Vec<Group>,
}

/// The bars of one case, in the order of the names.
#[derive(Clone, Debug)]
pub struct Group {
    pub label: String,
    pub values: Vec<f64>,
}

impl BarChart {
    pub fn to_svg(&self) -> String {
        let values = self.groups.iter().flat_map(|group| &group.values).copied();
        let top = round_up(values.filter(|value| value.is_finite()).fold(0.0, f64::max));
        let (across, down) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let height = |value: f64| if value.is_finite() { value.max(0.0) / top * down } else { 0.0 };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        );
        let mut text = |x: f64, y: f64, anchor: &str, more: &str, content: &str| {
            let content = escaped(content);
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{content}</text>");
        };
        text(WIDTH / 2.0, 22.0, "middle", " font-size=\"15\"", &self.title);
        let middle = TOP + down / 2.0;
        text(20.0, middle, "middle", &format!(" transform=\"rotate(-90 20 {middle:.1})\""), &self.y_label);
        for (number, name) in self.names.iter().enumerate() {
            let fill = format!(" fill=\"{}\"", COLOURS[number % COLOURS.len()]);
            text(LEFT + 160.0 * number as f64, 46.0, "start", &fill, name);
        }
        for part in 0..=4 {
            let value = top * f64::from(part) / 4.0;
            text(LEFT - 8.0, TOP + down - height(value) + 4.0, "end", "", &shown(value));
        }
        let group_width = across / self.groups.len().max(1) as f64;
        let bar = |group: usize, number: usize, of: usize| {
            let width = group_width * 0.7 / of.max(1) as f64;
            (LEFT + group_width * (group as f64 + 0.15) + width * number as f64, width)
        };
        for (at, group) in self.groups.iter().enumerate() {
            text(LEFT + group_width * (at as f64 + 0.5), HEIGHT - BOTTOM + 22.0, "middle", "", &group.label);
            for (number, value) in group.values.iter().enumerate() {
                let (x, width) = bar(at, number, group.values.len());
                text(x + width / 2.0, TOP + down - height(*value) - 5.0, "middle", "", &shown(*value));
            }
        }
        for part in 0..=4 {
            let y = TOP + down - height(top * f64::from(part) / 4.0);
            let (end, colour) = (WIDTH - RIGHT, if part == 0 { "#24292f" } else { "#d8dee4" });
            let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"{colour}\"/>");
        }
        for (at, group) in self.groups.iter().enumerate() {
            for (number, value) in group.values.iter().enumerate() {
                let ((x, width), high) = (bar(at, number, group.values.len()), height(*value));
                let (y, colour) = (TOP + down - high, COLOURS[number % COLOURS.len()]);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{high:.1}\" fill=\"{colour}\"/>"
                );
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_bar_and_its_value_for_each_figure() {
        let group = |label: &str, values: Vec<f64>| Group { label: label.into(), values };
        let chart = BarChart {
            title: "pairs".into(),
            y_label: "pairs/s".into(),
            names: vec!["Greenroom".into(), "a < b".into()],
            groups: vec![group("32 clients", vec![6_000.0, 4_000.0]), group("256 clients", vec![8_000.0, 2_000.0])],
        };
        let svg = chart.to_svg();
        for part in [">32 clients<", ">256 clients<", ">Greenroom<", ">a &lt; b<", ">6,000<", ">8,000<"] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        // The background is a rectangle too. The largest bar has the height of the chart, and the others are in
        // proportion.
        assert_eq!(svg.matches("<rect").count(), 5);
        assert!(svg.contains("height=\"292.0\"") && svg.contains("height=\"73.0\""), "{svg}");
    }

    #[test]
    fn a_chart_without_figures_is_still_valid() {
        let (title, y_label) = ("t".to_owned(), "y".to_owned());
        let empty = BarChart { title, y_label, names: vec![], groups: vec![] };
        let broken = BarChart { groups: vec![Group { label: "x".into(), values: vec![f64::NAN] }], ..empty.clone() };
        for chart in [empty, broken] {
            let svg = chart.to_svg();
            assert!(!svg.contains("height=\"NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
