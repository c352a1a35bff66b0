//! Tables and texts for people.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

/// A rule under the headings, and nothing else: rows stay easy to read and to cut.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// A column: its heading, and whether it holds numbers.
pub(crate) enum Column {
    Text(&'static str),
    Number(&'static str),
}

/// Rows under headings; numbers stand at the right.
pub(crate) fn table(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(columns.iter().map(|column| match column {
        Column::Text(name) | Column::Number(name) => *name,
    }));
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    for (column, shown) in columns.iter().zip(table.column_iter_mut()) {
        if matches!(column, Column::Number(_)) {
            shown.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// A list of named values, one a line.
pub(super) fn list(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = rows
        .iter()
        .map(|(name, value)| format!("{name:<width$}  {}", printable(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// An instant to the second, which is what people read; documents have it to the microsecond.
pub(super) fn to_second(at: recoup::Timestamp) -> String {
    let whole = at.to_string();
    match whole.split_once('.') {
        Some((second, _)) => format!("{second}Z"),
        None => whole,
    }
}

/// A text without control characters: what a worker reports must not steer the terminal of who reads it.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// A count with its noun.
pub(super) fn counted(count: u64, noun: &str) -> String {
    if count == 1 {
        format!("1 {noun}")
    } else {
        format!("{count} {noun}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_instants_to_the_second() {
        for text in ["2026-11-29T10:00:59.999999Z", "2026-11-29T10:00:59Z"] {
            let at = recoup::Timestamp::parse(text).expect(text);
            assert_eq!(to_second(at), "2026-11-29T10:00:59Z");
        }
    }
}
