//! The known word nearest to a misspelt one, for error messages.

/// The candidate with the smallest edit distance, if the distance is small enough for a typing error.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A longer word is not a typing error, and the computation is quadratic in its length.
    const MAX_WORD_BYTES: usize = 64;
    if word.len() > MAX_WORD_BYTES {
        return None;
    }
    let (distance, best) = candidates
        .map(|candidate| (distance(word.as_bytes(), candidate.as_bytes()), candidate))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= word.len().max(3) / 2 + 1).then_some(best)
}

/// Edit distance; swapping two neighbours counts as one edit.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = change.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_finds_the_word_and_nonsense_finds_none() {
        let words = || ["iodepth", "numjobs", "runtime"].into_iter();
        assert_eq!(nearest("iodpeth", words()), Some("iodepth"));
        assert_eq!(nearest("numjob", words()), Some("numjobs"));
        assert_eq!(nearest("run_time", words()), Some("runtime"));
        assert_eq!(nearest("qqqqqqqqqqqqqqq", words()), None);
    }

    #[test]
    fn distances_are_those_of_the_textbook() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("ab", "ba", 1),
            ("same", "same", 0),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), expected, "{a} {b}");
        }
    }
}
