//! Runs the same jobs once for each combination of values, its cells, and prints tables: a row for each case, a column for
//! each value of the last key, and how far it is from the first column.
//!
//! Each round has every cell once, in random order. A gain comes from the ratios of the rounds, so that a machine that gets
//! slower slows all cells.

mod grid;
mod cell;
mod rounds;
mod results;
mod shown;
mod csv;
mod text;
mod table;
mod json;

pub use cell::Cell;
pub use csv::csv;
pub use grid::{Axis, Grid, MAX_CELLS};
pub use json::json;
pub use results::{CellFigure, FigureCells, JobCells, Results};
pub use rounds::{Conditions, run};
pub use shown::ShownFigure;
pub(crate) use table::figure_table;
pub(crate) use text::summary;
pub use text::{markdown, text};
