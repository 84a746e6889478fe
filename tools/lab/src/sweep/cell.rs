//! One cell of a sweep: the jobs with its values, and what runs them.

use super::grid::Grid;
use crate::Error;
use crate::compare::{Side, SideSource};
use crate::job::{JobSet, UnknownKeys, VariableLookup, check_file};
use std::path::PathBuf;

/// One cell.
#[derive(Debug)]
pub struct Cell {
    /// Its keys as they were given, for messages: `--over iodepth=64 --over engine=ring`.
    pub label: String,
    /// The keys of every cell, as they were given.
    pub(super) shared_keys: Vec<String>,
    /// The side that runs the jobs.
    pub(super) side: Side,
    /// The jobs.
    pub(super) set: JobSet,
}

impl Cell {
    /// The jobs with the values of the cell.
    pub fn jobs(&self) -> &JobSet {
        &self.set
    }

    /// All cells, in the order of the grid. `keys` are the keys of every cell, `KEY=VALUE` each; those of the grid override
    /// them.
    ///
    /// # Errors
    /// A job file cannot be read; or a cell has an invalid key or value, and the error names the cell.
    pub fn all(
        grid: &Grid,
        keys: &[String],
        files: &[PathBuf],
        lookup: VariableLookup<'_>,
        unknown: UnknownKeys,
    ) -> Result<Vec<Self>, Error> {
        // An error in the keys of every cell names `--set`, and one in a file names the file.
        Side::parse(keys).map_err(|error| error.at("--set"))?;
        files.iter().try_for_each(|path| check_file(path))?;
        let cell = |index| {
            let own = grid.keys(index).into_iter().map(|(key, value)| format!("{key}={value}"));
            let own: Vec<String> = own.collect();
            let label = format!("--over {}", own.join(" --over "));
            let cell = || -> Result<(Side, JobSet), Error> {
                let side = Side::parse(&[keys, &own].concat())?;
                if matches!(side.source, SideSource::Files(_)) {
                    return Err(Error::input(
                        "results= is of runs that have ended; bench compare reads it",
                    ));
                }
                let set = side.jobs(files, lookup, unknown)?;
                Ok((side, set))
            };
            match cell() {
                Ok((side, set)) => Ok(Self { label, shared_keys: keys.to_vec(), side, set }),
                Err(error) => Err(error.at(label)),
            }
        };
        (0..grid.cells()).map(cell).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineKind;

    fn cells(lists: &[&str], keys: &[&str]) -> Result<Vec<Cell>, String> {
        let owned =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[x]\nsize=1m\niodepth=7\n").unwrap();
        let grid = Grid::parse(&owned(lists)).unwrap();
        let files = [file.path().to_owned()];
        Cell::all(&grid, &owned(keys), &files, &|_| None, UnknownKeys::Refuse)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn each_cell_has_its_values_and_those_of_all() {
        let cells = cells(&["iodepth=1,2", "engine=psync,ring"], &["bs=8k", "engine=uringfs"]);
        let cells = cells.unwrap();
        let depths: Vec<_> = cells.iter().map(|cell| cell.set.jobs[0].options.depth).collect();
        assert_eq!(depths, [1, 1, 2, 2]);
        let engines: Vec<_> = cells.iter().map(|cell| cell.side.engine().unwrap()).collect();
        use EngineKind::{Psync, Ring};
        assert_eq!(engines, [Psync, Ring, Psync, Ring]);
        assert!(cells.iter().all(|cell| cell.set.jobs[0].options.largest_block() == 8192));
        assert_eq!(cells[3].label, "--over iodepth=2 --over engine=ring");
    }

    #[test]
    fn a_value_that_is_none_is_named_with_its_cell() {
        for (lists, keys, part) in [
            (&["iodepth=1,0"][..], &[][..], "--over iodepth=0: "),
            (&["iodepth=1", "engine=ring,fyo"], &[], "--over iodepth=1 --over engine=fyo: unknown"),
            (&["direct.simple_reed=on,off"], &[], "--over direct.simple_reed=on: "),
            (&["engine=uringfs,ring"], &["direct.simple_read=on"], "only engine uringfs"),
            (&["iodepth=1"], &["engine=fyo"], "--set: unknown engine"),
            (&["results=a.json"], &[], "--over results=a.json: results= is of runs"),
            (&["name=a,b"], &[], "--over name=a: name= renames"),
        ] {
            let error = cells(lists, keys).unwrap_err();
            assert!(error.contains(part), "{lists:?}: {error}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_and_no_cell() {
        let grid = Grid::parse(&["iodepth=1,2".into()]).unwrap();
        for path in ["/nonexistent/job.fio", "/"] {
            let error = Cell::all(&grid, &[], &[path.into()], &|_| None, UnknownKeys::Refuse);
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(&format!("job file {path}: ")), "{error}");
        }
    }
}
