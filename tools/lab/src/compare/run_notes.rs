//! The notes of runs, by which a comparison shows that its sides do different work: a key without effect, another queue.

use super::figures::JobFigures;

/// The notes of the runs of some members, each once. The first members are the sides that are compared.
#[derive(Debug)]
pub(crate) struct RunNotes {
    sides: usize,
    /// Each with its members, in the order of their numbers.
    notes: Vec<(String, Vec<usize>)>,
}

impl RunNotes {
    /// Of members of which so many are sides; further ones, such as a control, are not.
    pub fn new(sides: usize) -> Self {
        Self { sides, notes: Vec::new() }
    }

    /// Adds the notes of a run of a member.
    pub fn add(&mut self, member: usize, run: &[JobFigures]) {
        for note in run.iter().flat_map(|job| &job.notes) {
            self.add_note(member, queue_of(note).unwrap_or(note));
        }
    }

    /// Adds a note about all runs of a member.
    pub fn add_note(&mut self, member: usize, note: &str) {
        let at = self.notes.iter().position(|(known, _)| known == note).unwrap_or_else(|| {
            self.notes.push((note.to_owned(), Vec::new()));
            self.notes.len() - 1
        });
        let members = &mut self.notes[at].1;
        if let Err(place) = members.binary_search(&member) {
            members.insert(place, member);
        }
    }

    /// The notes. One that not all sides have begins with the name of the members that have it. The queue of all sides is no note.
    pub fn lines(&self, name: impl Fn(&[usize]) -> String) -> impl Iterator<Item = String> {
        self.notes.iter().filter_map(move |(note, members)| {
            let is_shared = (0..self.sides).all(|side| members.contains(&side));
            match is_shared {
                true if queue_of(note).is_some() => None,
                true => Some(note.clone()),
                false => Some(format!("{}: {note}", name(members))),
            }
        })
    }
}

/// The part of a note about a queue that has the device and the queue. The reason after it has measured numbers, which differ in
/// each run.
fn queue_of(note: &str) -> Option<&str> {
    let begin = note.find(": queue ")? + ": queue ".len();
    let end = note[begin..].find(": ").map_or(note.len(), |length| begin + length);
    Some(&note[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(notes: &[&str]) -> Vec<JobFigures> {
        let notes = notes.iter().map(|note| (*note).to_owned()).collect();
        vec![JobFigures { notes, ..JobFigures::default() }]
    }

    fn lines(notes: &RunNotes) -> Vec<String> {
        notes.lines(|members| format!("{members:?}")).collect()
    }

    #[test]
    fn a_note_that_not_all_sides_have_names_its_members() {
        let mut notes = RunNotes::new(2);
        notes.add(2, &run(&["control"]));
        notes.add(0, &run(&["both", "first"]));
        for _ in 0..3 {
            notes.add(1, &run(&["both", "second"]));
            notes.add(2, &run(&["second"]));
        }
        assert_eq!(lines(&notes), ["[2]: control", "both", "[0]: first", "[1, 2]: second"]);
    }

    #[test]
    fn queues_are_noted_where_they_differ_without_what_was_measured() {
        let mut notes = RunNotes::new(2);
        notes.add(0, &run(&["/d: queue ring: ring does 100 k reads per second: 1 of 3"]));
        notes.add(1, &run(&["/d: queue ring: ring does 101 k reads per second"]));
        assert!(lines(&notes).is_empty());
        notes.add(1, &run(&["/d: queue ring, polled: ring.polled"]));
        assert_eq!(lines(&notes), ["[1]: /d: queue ring, polled"]);
    }
}
