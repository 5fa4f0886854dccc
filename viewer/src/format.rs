//! Bytes, durations and counts the way people read them.
//!
//! Three significant digits where one glance is enough; the exact number beside it, in a title, where it is not.

pub use tidegauge_snapshot::words::{count, exact_size as exact_bytes, size as bytes};

/// How far `n` is from `reference`, with a sign: "+4.00 GiB", "−512 MiB", "±0 B".
pub fn difference(n: u64, reference: u64) -> String {
    match n.cmp(&reference) {
        std::cmp::Ordering::Greater => format!("+{}", bytes(n - reference)),
        std::cmp::Ordering::Less => format!("−{}", bytes(reference - n)),
        std::cmp::Ordering::Equal => "±0 B".to_owned(),
    }
}

/// A count and its noun: "1 event", "3 events".
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// A span of microseconds: "840 µs", "12.4 ms", "3.20 s", "4 min 10 s", "2 h 5 min".
pub fn micros(us: i64) -> String {
    let sign = if us < 0 { "−" } else { "" };
    let us = us.unsigned_abs();
    let text = match us {
        0..=999 => format!("{us} µs"),
        1_000..=999_499 => format!("{} ms", three_digits(us as f64 / 1e3)),
        999_500..=59_999_999 => format!("{} s", three_digits(us as f64 / 1e6)),
        60_000_000..=3_599_999_999 => format!("{} min {} s", us / 60_000_000, us / 1_000_000 % 60),
        _ => format!("{} h {} min", count(us / 3_600_000_000), us / 60_000_000 % 60),
    };
    format!("{sign}{text}")
}

/// How long ago something was, by whole seconds, in the largest unit that fits: "2 s ago", "5 min ago".
pub fn ago(seconds: u64) -> String {
    match seconds {
        0 => "now".to_owned(),
        1..=59 => format!("{seconds} s ago"),
        60..=3_599 => format!("{} min ago", seconds / 60),
        3_600..=86_399 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} ago", counted(seconds / 86_400, "day", "days")),
    }
}

/// Parts of a whole: "6 %"; a whole of nothing has no parts.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    format!("{:.0} %", part as f64 / whole as f64 * 100.0)
}

fn three_digits(value: f64) -> String {
    // The bounds lie where rounding would add a digit: 9.995 becomes "10.00" with two decimals.
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_says_its_direction() {
        assert_eq!(difference(3 << 30, 1 << 30), "+2.00 GiB");
        assert_eq!(difference(1 << 30, 3 << 30), "−2.00 GiB");
        assert_eq!(difference(7, 7), "±0 B");
    }

    #[test]
    fn a_count_agrees_with_its_noun() {
        assert_eq!(counted(1, "event", "events"), "1 event");
        assert_eq!(counted(0, "event", "events"), "0 events");
    }

    #[test]
    fn durations_take_the_unit_that_reads_best() {
        for (us, text) in [
            (0, "0 µs"),
            (840, "840 µs"),
            (12_400, "12.4 ms"),
            (999_499, "999 ms"),
            (999_500, "1.00 s"),
            (3_200_000, "3.20 s"),
            (250_000_000, "4 min 10 s"),
            (7_500_000_000, "2 h 5 min"),
            (-1_500, "−1.50 ms"),
        ] {
            assert_eq!(micros(us), text);
        }
    }

    #[test]
    fn ages_are_told_in_one_unit() {
        assert_eq!(ago(0), "now");
        assert_eq!(ago(2), "2 s ago");
        assert_eq!(ago(119), "1 min ago");
        assert_eq!(ago(86_400), "1 day ago");
        assert_eq!(ago(200_000), "2 days ago");
    }
}
