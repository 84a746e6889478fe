//! The choice of the next of a job's files: fio's `file_service_type`.

use super::distribution::Distribution;
use super::value::{count, distribution};

/// The order of files.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FileOrder {
    /// In turn.
    RoundRobin,
    /// The next one when all blocks of one have been visited.
    Sequential,
    /// At random, uniformly or not.
    Random(Distribution),
}

/// The order of files, and the length of a turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FileService {
    /// The order of files.
    pub order: FileOrder,
    /// I/Os to a file before the next is chosen.
    pub ios: u32,
}

impl Default for FileService {
    fn default() -> Self {
        Self { order: FileOrder::RoundRobin, ios: 1 }
    }
}

/// Parses `roundrobin`, `random`, `sequential`, each with a number of I/Os (`random:8`), `zipf:THETA` or
/// `pareto:H`.
pub fn file_service(text: &str) -> Result<FileService, String> {
    let (name, parameter) = match text.split_once(':') {
        Some((name, parameter)) => (name, Some(parameter)),
        None => (text, None),
    };
    let order = match name {
        "roundrobin" => FileOrder::RoundRobin,
        "sequential" => FileOrder::Sequential,
        "random" => FileOrder::Random(Distribution::Uniform),
        "zipf" | "pareto" => {
            return Ok(FileService { order: FileOrder::Random(distribution(text)?), ios: 1 });
        }
        _ => {
            return Err(format!(
                "`{text}` is not one of roundrobin, sequential, random, zipf:THETA, pareto:H"
            ));
        }
    };
    let ios = match parameter.map(count).transpose()? {
        None => 1,
        Some(ios @ 1..=0xffff_ffff) => ios as u32,
        Some(ios) => return Err(format!("{ios} is out of range: 1 to {}", u32::MAX)),
    };
    Ok(FileService { order, ios })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_turns_are_parsed() {
        let random = |distribution| FileOrder::Random(distribution);
        for (text, order, ios) in [
            ("roundrobin", FileOrder::RoundRobin, 1),
            ("roundrobin:4", FileOrder::RoundRobin, 4),
            ("sequential", FileOrder::Sequential, 1),
            ("random:8", random(Distribution::Uniform), 8),
            ("zipf:1.2", random(Distribution::Zipf(1.2)), 1),
            ("pareto", random(Distribution::Pareto(0.2)), 1),
        ] {
            assert_eq!(file_service(text), Ok(FileService { order, ios }), "{text}");
        }
        for text in ["", "normal", "random:0", "random:x", "roundrobin:", "zipf:1"] {
            assert!(file_service(text).is_err(), "{text}");
        }
    }
}
