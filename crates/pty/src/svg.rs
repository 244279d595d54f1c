//! A screen as a picture: an SVG with the colours of a dark terminal, as text that can be searched.

use std::fmt::Write;

use vt100::{Cell, Color, Screen};

const CELL_WIDTH: f64 = 8.43;
const CELL_HEIGHT: f64 = 17.0;
const FONT_SIZE: f64 = 14.0;
const MARGIN: f64 = 14.0;
const BAR: f64 = 30.0;

const BACKGROUND: &str = "#10151c";
const FOREGROUND: &str = "#d3dae3";
/// The sixteen colours of the terminal.
const COLOURS: [&str; 16] = [
    "#3b4350", "#f2686d", "#5fc98a", "#e5b75b", "#6ea8fe", "#c792ea", "#56c8d8", "#d3dae3", "#6b7686", "#ff8a8f",
    "#7fe0a5", "#f5cf7f", "#93c0ff", "#dab3f5", "#7fdde9", "#ffffff",
];

#[derive(Clone, Debug, PartialEq)]
struct Look {
    text: String,
    background: Option<String>,
    is_bold: bool,
    is_dim: bool,
    is_underlined: bool,
}

/// The picture of a screen with this title.
pub fn svg(screen: &Screen, title: &str) -> String {
    let (rows, columns) = screen.size();
    let (width, height) = (
        f64::from(columns.get()) * CELL_WIDTH + 2.0 * MARGIN,
        f64::from(rows.get()) * CELL_HEIGHT + 2.0 * MARGIN + BAR,
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         font-family=\"'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"{FONT_SIZE}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    for (at, colour) in [(20, COLOURS[1]), (40, COLOURS[3]), (60, COLOURS[2])] {
        let _ = writeln!(svg, "<circle cx=\"{at}\" cy=\"18\" r=\"6\" fill=\"{colour}\"/>");
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.0}\" y=\"23\" text-anchor=\"middle\" fill=\"{}\">{}</text>",
        width / 2.0,
        COLOURS[8],
        escaped(title)
    );
    for row in 0..rows.get() {
        draw_row(&mut svg, screen, row, columns.get());
    }
    svg.push_str("</svg>\n");
    svg
}

/// Draws the cells of a row that look the same as one text.
fn draw_row(svg: &mut String, screen: &Screen, row: u16, columns: u16) {
    let mut column = 0;
    while column < columns {
        let Some(look) = screen.cell(row, column).map(look) else { return };
        let (begin, mut text) = (column, String::new());
        while let Some(cell) = screen.cell(row, column).filter(|cell| self::look(cell) == look) {
            if !cell.is_wide_continuation() {
                text.push_str(if cell.has_contents() { cell.contents() } else { " " });
            }
            column += 1;
        }
        draw_run(svg, (row, begin), column - begin, &text, &look);
    }
}

fn draw_run(svg: &mut String, (row, column): (u16, u16), length: u16, text: &str, look: &Look) {
    let (x, y) = (MARGIN + f64::from(column) * CELL_WIDTH, MARGIN + BAR + f64::from(row) * CELL_HEIGHT);
    let width = f64::from(length) * CELL_WIDTH;
    if let Some(background) = &look.background {
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{CELL_HEIGHT}\" fill=\"{background}\"/>"
        );
    }
    if text.trim().is_empty() {
        return;
    }
    let mut more = String::new();
    if look.is_bold {
        more.push_str(" font-weight=\"bold\"");
    }
    if look.is_dim {
        more.push_str(" opacity=\"0.6\"");
    }
    if look.is_underlined {
        more.push_str(" text-decoration=\"underline\"");
    }
    let _ = writeln!(
        svg,
        "<text x=\"{x:.2}\" y=\"{:.2}\" textLength=\"{width:.2}\" lengthAdjust=\"spacingAndGlyphs\" \
         xml:space=\"preserve\" fill=\"{}\"{more}>{}</text>",
        y + 13.0,
        look.text,
        escaped(text)
    );
}

fn look(cell: &Cell) -> Look {
    let (text, background) = (colour(cell.fgcolor()), colour(cell.bgcolor()));
    let (text, background) = match cell.inverse() {
        true => (background.unwrap_or_else(|| BACKGROUND.to_owned()), text.or_else(|| Some(FOREGROUND.to_owned()))),
        false => (text.unwrap_or_else(|| FOREGROUND.to_owned()), background),
    };
    Look { text, background, is_bold: cell.bold(), is_dim: cell.dim(), is_underlined: cell.underline() }
}

fn colour(colour: Color) -> Option<String> {
    match colour {
        Color::Default => None,
        Color::Idx(index) => Some(COLOURS.get(usize::from(index)).map_or(FOREGROUND, |colour| colour).to_owned()),
        Color::Rgb(red, green, blue) => Some(format!("#{red:02x}{green:02x}{blue:02x}")),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    #[test]
    fn a_picture_has_the_text_with_its_colours() {
        let (rows, columns) = (NonZeroU16::new(3).unwrap(), NonZeroU16::new(20).unwrap());
        let mut parser = vt100::Parser::new(rows, columns, 0);
        parser.process("\x1b[31;1mred <b>\x1b[0m\r\n\x1b[7mreversed\x1b[0m █".as_bytes());
        let svg = svg(parser.screen(), "a & b");
        assert!(svg.contains("fill=\"#f2686d\" font-weight=\"bold\">red &lt;b&gt;</text>"), "{svg}");
        assert!(svg.contains("fill=\"#d3dae3\"/>"), "{svg}");
        assert!(svg.contains("a &amp; b") && svg.contains('█'), "{svg}");
    }
}
