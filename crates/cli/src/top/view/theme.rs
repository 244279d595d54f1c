//! How statuses look. Every status has a sign or a word of its own: colour only helps. With `NO_COLOR` there is none.

use ratatui::style::{Color, Modifier, Style};

#[derive(Clone, Copy, Debug)]
pub struct Theme {
    pub has_colour: bool,
}

impl Theme {
    /// Colours, unless `NO_COLOR` is set to something.
    pub fn from_environment() -> Self {
        Self { has_colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    /// The sixteen colours of the terminal, which a person has chosen to be readable on its background.
    fn colour(self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub fn plain(self) -> Style {
        Style::new()
    }

    pub fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Less important text.
    pub fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// The selected row of a pane that has not the focus.
    pub fn marked(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub fn focus(self) -> Style {
        self.colour(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub fn good(self) -> Style {
        self.colour(Color::Green)
    }

    pub fn warning(self) -> Style {
        self.colour(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub fn bad(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub fn slot(self, status: &str, is_hot: bool) -> Style {
        match status {
            "busy" => self.colour(Color::Green),
            "idle" if is_hot => self.colour(Color::Cyan),
            "idle" => self.colour(Color::Blue),
            "creating" => self.colour(Color::Yellow),
            "error" => self.bad(),
            "draining" => self.colour(Color::Magenta),
            _ => self.plain(),
        }
    }

    pub fn bot(self, status: &str) -> Style {
        match status {
            "active" => self.colour(Color::Green),
            "reserved" | "deploying" | "starting" => self.colour(Color::Cyan),
            "awaiting_admission" => self.colour(Color::Yellow),
            "needs_help" | "failed" => self.bad(),
            "stopping" => self.colour(Color::Magenta),
            "queued" => self.colour(Color::Blue),
            _ => self.plain(),
        }
    }
}

/// The sign of a slot, in bars and in the grid.
pub fn slot_sign(status: &str, is_hot: bool) -> char {
    match status {
        "busy" => '█',
        "idle" if is_hot => '▓',
        "idle" => '░',
        "creating" => '+',
        "error" => '!',
        "draining" => '~',
        _ => '?',
    }
}

/// The sign of a slot that the pool may have and has not.
pub const NO_SLOT: char = '·';
