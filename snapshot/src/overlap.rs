//! Two snapshots of one process taken without clearing the history in between hold the same events twice.

use crate::Snapshot;
use crate::model::{Action, Device};

/// One event's time differs by less than this between two snapshots, which measure the clock anew; microseconds.
const SAME_MOMENT: u64 = 1000;

/// So many equal events at equal times are no accident, even without the marker that a snapshot leaves.
const ENOUGH: usize = 64;

/// How many of the first events of a later snapshot an earlier one of the same process holds already; 0 when the
/// history was cleared in between.
///
/// Events are compared by action, address, size and stream, and their times as far as they are exact. Training repeats
/// itself to the byte, so without times (torch_npu, torch before 2.2) only an overlap counts that ends at a `snapshot`
/// event: taking a snapshot leaves one that only the next one holds.
pub fn overlap(earlier: (&Snapshot, &Device), later: (&Snapshot, &Device)) -> usize {
    let (text, pattern) = (keys(earlier), keys(later));
    let text = &text[text.len().saturating_sub(pattern.len())..];
    let is_true = |n: &usize| {
        let is_marked = later.0.trace.action[later.1.events.clone()].get(*n) == Some(&Action::SNAPSHOT);
        match are_one_moment(earlier, later, *n) {
            Some(is_one) => is_one && (is_marked || *n >= ENOUGH),
            None => is_marked,
        }
    };
    shared(text, &pattern).into_iter().find(is_true).unwrap_or(0)
}

/// Whether the last `n` events of one and the first `n` of the other happened at the same times; unknown without times.
fn are_one_moment(
    (earlier, before): (&Snapshot, &Device),
    (later, after): (&Snapshot, &Device),
    n: usize,
) -> Option<bool> {
    let first = (earlier.trace.time_us(before.events.end - n)?, later.trace.time_us(after.events.start)?);
    let last =
        (earlier.trace.time_us(before.events.end - 1)?, later.trace.time_us(after.events.start + n - 1)?);
    Some([first, last].iter().all(|(a, b)| a.abs_diff(*b) < SAME_MOMENT))
}

/// What makes an event the same in two snapshots.
type Key<'a> = (&'a str, u64, u64, u64);

fn keys<'a>((snapshot, device): (&'a Snapshot, &Device)) -> Vec<Key<'a>> {
    let trace = &snapshot.trace;
    let key = |event: usize| {
        let stream = snapshot.streams.get(trace.stream[event] as usize).copied().unwrap_or(0);
        (snapshot.action_name(trace.action[event]), trace.address[event], trace.size[event], stream)
    };
    device.events.clone().map(key).collect()
}

/// Lengths of all ends of `text` that `pattern` begins with, longest first (Knuth, Morris and Pratt 1977).
fn shared<T: PartialEq>(text: &[T], pattern: &[T]) -> Vec<usize> {
    let mut fallback = vec![0; pattern.len()];
    let advance = |mut matched: usize, fallback: &[usize], item: &T| {
        while matched > 0 && (matched == pattern.len() || pattern[matched] != *item) {
            matched = fallback[matched - 1];
        }
        if pattern.get(matched).is_some_and(|wanted| wanted == item) { matched + 1 } else { 0 }
    };
    for at in 1..pattern.len() {
        fallback[at] = advance(fallback[at - 1], &fallback, &pattern[at]);
    }
    let longest = text.iter().fold(0, |matched, item| advance(matched, &fallback, item));
    std::iter::successors(Some(longest).filter(|n| *n > 0), |n| Some(fallback[*n - 1]).filter(|n| *n > 0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ends_that_are_a_beginning_are_found() {
        let shared = |text: &str, pattern: &str| shared(text.as_bytes(), pattern.as_bytes());
        assert_eq!(shared("xxabcab", "abcabd"), [5, 2]);
        assert_eq!(shared("abab", "ababab"), [4, 2]);
        assert!(shared("abc", "xyz").is_empty());
        assert_eq!(shared("aaaa", "aa"), [2, 1]);
        assert!(shared("", "a").is_empty());
    }
}
