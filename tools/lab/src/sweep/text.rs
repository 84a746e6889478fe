//! Prints a sweep for people: as text for a terminal, and as Markdown for a page or an issue.

use super::results::Results;
use super::shown::ShownFigure;
use super::table::{Table, tables};
use comfy_table::{CellAlignment, presets};

/// The tables of a figure as text.
pub fn text(results: &Results, shown: ShownFigure) -> String {
    let mut text = format!("{}\n", summary(results));
    for table in tables(results, shown) {
        text += &format!("\n{}\n", table.title);
        if !table.header.is_empty() {
            text += &format!("{}\n", aligned(table));
        }
    }
    text + &list(results, "")
}

/// The tables of a figure as Markdown.
pub fn markdown(results: &Results, shown: ShownFigure) -> String {
    let mut text = String::new();
    for table in tables(results, shown) {
        text += &format!("{}\n\n", table.title);
        if table.header.is_empty() {
            continue;
        }
        let numbers = "---:|".repeat(table.header.len() - 1);
        text += &format!("{}|---|{numbers}\n", markdown_row(&table.header));
        table.rows.iter().for_each(|row| text += &markdown_row(row));
        text += "\n";
    }
    text + &summary(results) + "\n" + &list(results, "- ")
}

fn aligned(table: Table) -> comfy_table::Table {
    let mut aligned = comfy_table::Table::new();
    aligned.load_preset(presets::NOTHING);
    aligned.set_header(table.header);
    aligned.add_rows(table.rows);
    for column in aligned.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    aligned
}

fn markdown_row(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// The rounds in words.
pub(crate) fn summary(results: &Results) -> String {
    let Results { rounds, seconds, seed, grid, .. } = results;
    let cells = grid.cells();
    format!(
        "rounds: {rounds}, each of {cells} cells in random order (--seed {seed}), in {seconds:.0} s"
    )
}

/// The lines below the tables, each with a mark in front; a blank line precedes them.
fn list(results: &Results, mark: &str) -> String {
    let mut lines: Vec<String> =
        results.all_notes().iter().map(|note| format!("note: {note}")).collect();
    if !results.files_made.is_empty() {
        lines.push(format!("Laid out {}", results.files_made.join(", ")));
    }
    if results.incomplete {
        lines.push(format!("Incomplete: stopped after round {}", results.rounds));
    }
    let lines: String = lines.iter().map(|line| format!("{mark}{line}\n")).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::results::tests::results;

    #[test]
    fn the_text_has_an_aligned_table_and_lines_below() {
        let text = text(&results(6), "rate".parse().unwrap());
        let summary = "rounds: 6, each of 6 cells in random order (--seed 7), in 12 s\n\n";
        assert!(text.starts_with(summary), "{text}");
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(rows[0], "job `x`: rate");
        assert!(rows[1].trim_start().starts_with("case ") && rows[1].contains("engine=uringfs"));
        assert!(
            rows[2].trim_start().starts_with("bs=4k ") && rows[2].contains("+12.0 % [12.0, 12.0]")
        );
        let ends: Vec<Option<usize>> = [(1, "engine=uringfs"), (2, "97.5 k/s"), (3, "975.0 /s")]
            .map(|(row, text): (usize, &str)| rows[row].find(text).map(|at| at + text.len()))
            .to_vec();
        assert!(ends[0].is_some() && ends.iter().all(|end| *end == ends[0]), "{text}");
        let end = "Laid out x.0.0\nIncomplete: stopped after round 6\n";
        assert!(text.contains("\n\nnote: a note\n") && text.ends_with(end), "{text}");
    }

    #[test]
    fn markdown_escapes_the_lines_of_its_tables() {
        let text = markdown(&results(6), "rate".parse().unwrap());
        let table = "job `x`: rate\n\n\
                     | case | engine=uringfs | engine=ring | gain | engine=exec\\|\"x\" | gain |\n\
                     |---|---:|---:|---:|---:|---:|\n\
                     | bs=4k | 97.5 k/s | 109 k/s | +12.0 % [12.0, 12.0] | 48.8 k/s | -50.0 % [-50.0, -50.0] |\n";
        assert!(text.starts_with(table), "{text}");
        assert!(text.contains("(--seed 7), in 12 s\n\n- note: a note\n"), "{text}");
        let none = markdown(&results(6), "cpu".parse().unwrap());
        assert!(none.starts_with("job `x`: no cell has the figure cpu\n\nrounds: 6"), "{none}");
    }
}
