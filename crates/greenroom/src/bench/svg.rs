//! Small line plots as SVG: self-contained, with labelled axes.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 60.0;
pub(super) const COLOURS: [&str; 4] = ["#1f6feb", "#d1242f", "#1a7f37", "#8250df"];

#[derive(Clone, Debug)]
pub struct Plot {
    pub title: String,
    pub x_label: String,
    pub y_label: String,
    pub x_scale: Scale,
    pub lines: Vec<Line>,
    /// Vertical lines with a label, where something changed.
    pub marks: Vec<(f64, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    /// Powers of ten.
    Logarithmic,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

impl Plot {
    pub fn to_svg(&self) -> String {
        let xs = self.lines.iter().flat_map(|line| &line.points).map(|point| point.0);
        let xs = xs.chain(self.marks.iter().map(|mark| mark.0));
        let (low, high) = xs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        let ys = self.lines.iter().flat_map(|line| &line.points).map(|point| point.1);
        let top = round_up(ys.fold(0.0, f64::max));
        let position = |x: f64| match self.x_scale {
            Scale::Linear => (x - low) / (high - low).max(f64::MIN_POSITIVE),
            Scale::Logarithmic => (x.log10() - low.log10()) / (high.log10() - low.log10()).max(f64::MIN_POSITIVE),
        };
        let (across, down) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let project = |(x, y): (f64, f64)| (LEFT + position(x) * across, TOP + (1.0 - y / top) * down);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        );
        let mut text = |x: f64, y: f64, anchor: &str, more: &str, label: &str| {
            let label = escaped(label);
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{label}</text>");
        };
        text(WIDTH / 2.0, 22.0, "middle", " font-size=\"15\"", &self.title);
        text(LEFT + across / 2.0, HEIGHT - 14.0, "middle", "", &self.x_label);
        let middle = TOP + down / 2.0;
        text(20.0, middle, "middle", &format!(" transform=\"rotate(-90 20 {middle:.1})\""), &self.y_label);
        for (x, label) in x_ticks(low, high, self.x_scale) {
            text(project((x, 0.0)).0, HEIGHT - BOTTOM + 20.0, "middle", "", &label);
        }
        for part in 0..=4 {
            let y = top * f64::from(part) / 4.0;
            text(LEFT - 8.0, project((low, y)).1 + 4.0, "end", "", &shown(y));
        }
        for (number, line) in self.lines.iter().enumerate() {
            let fill = format!(" fill=\"{}\"", COLOURS[number % COLOURS.len()]);
            text(WIDTH - RIGHT - 8.0, TOP + 16.0 + 18.0 * number as f64, "end", &fill, &line.name);
        }
        for (x, label) in &self.marks {
            text(project((*x, 0.0)).0 + 4.0, TOP + down - 8.0, "start", " fill=\"#57606a\"", label);
        }
        for part in 0..=4 {
            let y = project((low, top * f64::from(part) / 4.0)).1;
            let (end, colour) = (WIDTH - RIGHT, if part == 0 { "#24292f" } else { "#d8dee4" });
            let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"{colour}\"/>");
        }
        for (x, _) in &self.marks {
            let (x, end) = (project((*x, 0.0)).0, TOP + down);
            let _ = writeln!(svg, "<path d=\"M{x:.1} {TOP}V{end}\" stroke=\"#57606a\" stroke-dasharray=\"4 4\"/>");
        }
        for (number, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let points: Vec<(f64, f64)> = line.points.iter().copied().map(project).collect();
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let path = path.join(" ");
            let _ = writeln!(svg, "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
            for (x, y) in points {
                let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The next larger value that is 1, 2, 4, 5 or 8 times a power of ten.
pub(super) fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let digit = [1.0, 2.0, 4.0, 5.0, 8.0].into_iter().find(|digit| digit * power >= value);
    digit.unwrap_or(10.0) * power
}

fn x_ticks(low: f64, high: f64, scale: Scale) -> Vec<(f64, String)> {
    match scale {
        Scale::Logarithmic => {
            let powers = (low.log10().ceil() as i32)..=(high.log10().floor() as i32);
            powers.map(|power| 10f64.powi(power)).map(|x| (x, shown(x))).collect()
        }
        Scale::Linear => {
            (0..=6).map(|part| low + (high - low) * f64::from(part) / 6.0).map(|x| (x, shown(x))).collect()
        }
    }
}

/// With commas between thousands.
pub fn shown(number: f64) -> String {
    if number.abs() < 10.0 && number.fract() != 0.0 {
        return format!("{number:.2}");
    }
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(x_scale: Scale, points: Vec<(f64, f64)>) -> String {
        let lines = vec![Line { name: "a < b".into(), points }];
        let marks = vec![(100.0, "here".into())];
        let (x_label, y_label) = ("slots".into(), "pairs/s".into());
        Plot { title: "t".into(), x_label, y_label, x_scale, lines, marks }.to_svg()
    }

    #[test]
    fn a_plot_has_its_labels_its_ticks_and_a_point_for_each_value() {
        let svg = plot(Scale::Logarithmic, vec![(100.0, 3_000.0), (10_000.0, 2_500.0), (1_000_000.0, 1_000.0)]);
        for part in [">slots<", ">pairs/s<", ">a &lt; b<", ">1,000,000<", ">10,000<", ">here<", ">4,000<"] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
        // Equal factors have equal distances: the geometric middle is in the middle.
        assert!(svg.contains("<circle cx=\"390.0\""), "{svg}");
        assert!(svg.starts_with("<svg xmlns") && svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn a_plot_of_one_point_or_none_is_a_plot_too() {
        for points in [vec![], vec![(100.0, 0.0)]] {
            let svg = plot(Scale::Linear, points);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn numbers_are_shown_with_commas() {
        let shown: Vec<String> = [0.0, 0.5, 999.0, 1_000.0, 1_234_567.0].into_iter().map(shown).collect();
        assert_eq!(shown, ["0", "0.50", "999", "1,000", "1,234,567"]);
    }
}
