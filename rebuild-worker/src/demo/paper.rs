//! Text for a terminal: aligned columns, sparing colour.
//!
//! Colour is used only on a terminal, and not where `NO_COLOR` is set (<https://no-color.org>) or the terminal is dumb. Widths are
//! counted in characters: everything shown here is one column wide a character.

use std::fmt::Write;
use std::io::IsTerminal;

/// How a piece of text is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Title,
    Faint,
    Good,
    Odd,
    Bad,
}

impl Style {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Title => "1",
            Self::Faint => "2",
            Self::Good => "32",
            Self::Odd => "33",
            Self::Bad => "1;31",
        }
    }
}

/// Where text is collected before it is printed.
#[derive(Debug, Default)]
pub(super) struct Paper {
    pub(super) text: String,
    is_coloured: bool,
}

/// A cell of a table.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(super) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self {
            text: text.into(),
            style,
        }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::styled(text, Style::Plain)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::styled(text, Style::Plain)
    }
}

/// How far tables are set in.
const INDENT: &str = "  ";

impl Paper {
    /// Coloured if stdout is a terminal that wants it.
    pub(super) fn for_stdout() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_coloured = std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb;
        Self {
            text: String::new(),
            is_coloured,
        }
    }

    fn push(&mut self, text: &str, style: Style) {
        let code = style.code();
        if self.is_coloured && !code.is_empty() && !text.is_empty() {
            let _ = write!(self.text, "\u{1b}[{code}m{text}\u{1b}[0m");
        } else {
            self.text.push_str(text);
        }
    }

    /// A line of pieces.
    pub(super) fn line(&mut self, pieces: &[(&str, Style)]) {
        if !pieces.is_empty() {
            self.text.push_str(INDENT);
        }
        for (text, style) in pieces {
            self.push(text, *style);
        }
        self.text.push('\n');
    }

    /// A heading, and what the section shows.
    pub(super) fn section(&mut self, title: &str, explained: &str) {
        self.text.push('\n');
        self.push(title, Style::Title);
        self.push("  ", Style::Plain);
        self.push(explained, Style::Faint);
        self.text.push('\n');
    }

    /// Columns under a faint header. `columns` names each and says whether it is aligned to the right.
    pub(super) fn table(&mut self, columns: &[(&str, Align)], rows: &[Vec<Cell>]) {
        let width = |column: usize| {
            let cells = rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(Cell::width);
            cells
                .chain([columns[column].0.chars().count()])
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        let header = columns
            .iter()
            .map(|(name, _)| Cell::styled(*name, Style::Faint))
            .collect();
        for row in std::iter::once(&header).chain(rows) {
            self.row(columns, &widths, row);
        }
    }

    fn row(&mut self, columns: &[(&str, Align)], widths: &[usize], row: &[Cell]) {
        let mut gap = INDENT.to_owned();
        for ((cell, width), (_, align)) in row.iter().zip(widths).zip(columns) {
            let room = " ".repeat(width.saturating_sub(cell.width()));
            if *align == Align::Right {
                gap.push_str(&room);
            }
            // Written with the next text, so that no line ends in spaces.
            if !cell.text.is_empty() {
                self.text.push_str(&gap);
                self.push(&cell.text, cell.style);
                gap.clear();
            }
            if *align == Align::Left {
                gap.push_str(&room);
            }
            gap.push_str(INDENT);
        }
        self.text.push('\n');
    }
}

/// Where a column's text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// A number with its thousands parted: `12,345`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_without_spaces() {
        let mut paper = Paper::default();
        let columns = [
            ("name", Align::Left),
            ("amount", Align::Right),
            ("why", Align::Left),
        ];
        let rows = [
            vec!["a".into(), "-0.65".into(), "".into()],
            vec!["längst".into(), "".into(), Cell::styled("late", Style::Odd)],
        ];
        paper.table(&columns, &rows);
        let expected = "  name    amount  why\n  a        -0.65\n  längst          late\n";
        assert_eq!(paper.text, expected);
    }

    #[test]
    fn thousands_are_parted() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1_234), "1,234");
        assert_eq!(grouped(123_456), "123,456");
    }
}
