//! The combinations of a sweep: `iodepth=1,64` over `engine=uringfs,ring` has four cells, in two rows and two columns.

use crate::Error;
use crate::job::find_key;

/// The most cells of a sweep.
pub const MAX_CELLS: usize = 1_000;

/// A key and the values that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// The key of a side.
    pub key: String,
    /// Its values, each once.
    pub values: Vec<String>,
}

impl Axis {
    /// Parses `KEY=VALUE,VALUE...`.
    fn parse(list: &str) -> Result<Self, Error> {
        let refuse = |why: &str| Err(Error::input(format!("--over {list}: {why}")));
        let Some((key, values)) = list.split_once('=') else {
            return refuse("is not KEY=VALUE,VALUE..., as in iodepth=1,64");
        };
        let values: Vec<String> = values.split(',').map(str::to_owned).collect();
        if values.iter().any(String::is_empty) {
            return refuse("a value is empty; values are separated by single commas");
        }
        if let Some(twice) = (1..values.len()).find(|at| values[..*at].contains(&values[*at])) {
            return refuse(&format!("{} is there twice", values[twice]));
        }
        Ok(Self { key: key.to_owned(), values })
    }

    /// The name under which a job has the key.
    fn name(&self) -> &str {
        let name = if self.key == "target" { "filename" } else { &self.key };
        find_key(name).map_or(name, |key| key.name)
    }
}

/// The cells, row by row: the last key changes from column to column, the others from row to row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    axes: Vec<Axis>,
}

impl Grid {
    /// The product of these lists, each `KEY=VALUE,VALUE...`.
    ///
    /// # Errors
    /// A list has no values, or one twice; a key is in two lists; or there are more than [`MAX_CELLS`] cells.
    pub fn parse(lists: &[String]) -> Result<Self, Error> {
        let axes = lists.iter().map(|list| Axis::parse(list)).collect::<Result<Vec<_>, _>>()?;
        if axes.is_empty() {
            return Err(Error::input("nothing to sweep: give --over KEY=VALUE,VALUE..."));
        }
        for (index, axis) in axes.iter().enumerate() {
            if axes[..index].iter().any(|other| other.name() == axis.name()) {
                let line = format!("--over {}: this key is in two lists; join them", axis.key);
                return Err(Error::input(line));
            }
        }
        let cells =
            axes.iter().fold(1_usize, |cells, axis| cells.saturating_mul(axis.values.len()));
        if cells > MAX_CELLS {
            let line =
                format!("--over: {cells} cells are more than {MAX_CELLS}; leave out some values");
            return Err(Error::input(line));
        }
        Ok(Self { axes })
    }

    /// The keys with their values.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// The number of cells.
    pub fn cells(&self) -> usize {
        self.axes.iter().map(|axis| axis.values.len()).product()
    }

    /// The number of columns: of values of the last key.
    pub fn columns(&self) -> usize {
        self.axes.last().map_or(1, |axis| axis.values.len())
    }

    /// The keys of a cell and their values, in the order of the lists.
    pub fn keys(&self, cell: usize) -> Vec<(&str, &str)> {
        let mut rest = cell;
        let mut keys = Vec::with_capacity(self.axes.len());
        for axis in self.axes.iter().rev() {
            keys.push((&*axis.key, &*axis.values[rest % axis.values.len()]));
            rest /= axis.values.len();
        }
        keys.reverse();
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(lists: &[&str]) -> Result<Grid, String> {
        let lists: Vec<String> = lists.iter().map(|list| (*list).to_owned()).collect();
        Grid::parse(&lists).map_err(|error| error.to_string())
    }

    #[test]
    fn the_last_key_changes_from_cell_to_cell() {
        let grid = grid(&["bs=4k,64k", "iodepth=1,8,64"]).unwrap();
        assert_eq!((grid.cells(), grid.columns()), (6, 3));
        assert_eq!(grid.keys(0), [("bs", "4k"), ("iodepth", "1")]);
        assert_eq!(grid.keys(2), [("bs", "4k"), ("iodepth", "64")]);
        assert_eq!(grid.keys(3), [("bs", "64k"), ("iodepth", "1")]);
    }

    #[test]
    fn one_list_is_one_row() {
        let grid = grid(&["target=null:1g,a=b"]).unwrap();
        assert_eq!((grid.cells(), grid.columns()), (2, 2));
        assert_eq!(grid.keys(1), [("target", "a=b")]);
    }

    #[test]
    fn unusable_lists_are_refused() {
        let many: Vec<String> = (0..40).map(|value| value.to_string()).collect();
        let many = many.join(",");
        let (depths, runs) = (format!("iodepth={many}"), format!("numjobs={many}"));
        for (lists, part) in [
            (&[][..], "nothing to sweep"),
            (&["iodepth"], "--over iodepth: is not KEY=VALUE"),
            (&["iodepth="], "a value is empty"),
            (&["iodepth=1,,2"], "a value is empty"),
            (&["iodepth=1,2,1"], "1 is there twice"),
            (&["bs=4k", "blocksize=8k"], "--over blocksize: this key is in two lists"),
            (&["target=a", "filename=b"], "in two lists"),
            (&["direct.simple_read=on", "direct.simple_read=off"], "in two lists"),
            (&[&depths, &runs], "1600 cells are more than 1000"),
        ] {
            let error = grid(lists).unwrap_err();
            assert!(error.contains(part), "{lists:?}: {error}");
        }
    }
}
