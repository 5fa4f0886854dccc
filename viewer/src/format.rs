//! Bytes, durations and counts the way people read them.
//!
//! Three significant digits where one glance is enough; the exact number beside it, in a title, where it is not.

/// The units of memory, each 1024 of the one before.
const BYTE_UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// Bytes with a binary unit and three significant digits.
///
/// ```
/// use tidegauge_viewer::format::bytes;
/// assert_eq!(bytes(512), "512 B");
/// assert_eq!(bytes(3 << 19), "1.50 MiB");
/// assert_eq!(bytes(65_712_345_678), "61.2 GiB");
/// ```
pub fn bytes(n: u64) -> String {
    if n < 1024 {
        return format!("{} B", count(n));
    }
    let mut value = n as f64;
    let mut unit = 0;
    // 999.5 would be shown as 1000: four digits where the next unit needs three.
    while value >= 999.5 && unit + 1 < BYTE_UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), BYTE_UNITS[unit])
}

/// Bytes to the last one, for titles and for copying.
pub fn exact_bytes(n: u64) -> String {
    if n == 1 { "1 byte".to_owned() } else { format!("{} bytes", count(n)) }
}

/// How far `n` is from `reference`, with a sign: "+4.00 GiB", "−512 MiB", "±0 B".
pub fn difference(n: u64, reference: u64) -> String {
    match n.cmp(&reference) {
        std::cmp::Ordering::Greater => format!("+{}", bytes(n - reference)),
        std::cmp::Ordering::Less => format!("−{}", bytes(reference - n)),
        std::cmp::Ordering::Equal => "±0 B".to_owned(),
    }
}

/// A count with its thousands set apart: "18,204".
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
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
    if value < 0.9995 {
        format!("{value:.3}")
    } else if value < 9.995 {
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
    fn bytes_have_three_significant_digits_at_every_border() {
        for (n, text) in [
            (0, "0 B"),
            (1, "1 B"),
            (1023, "1,023 B"),
            (1024, "1.00 KiB"),
            (10_234, "9.99 KiB"),
            (10_235, "10.0 KiB"),
            (1_023_000, "999 KiB"),
            (1_023_900, "0.976 MiB"),
            (1 << 20, "1.00 MiB"),
            (61 << 30, "61.0 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(bytes(n), text, "{n}");
        }
    }

    #[test]
    fn a_difference_says_its_direction() {
        assert_eq!(difference(3 << 30, 1 << 30), "+2.00 GiB");
        assert_eq!(difference(1 << 30, 3 << 30), "−2.00 GiB");
        assert_eq!(difference(7, 7), "±0 B");
    }

    #[test]
    fn counts_are_set_in_thousands() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(18_204_331), "18,204,331");
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
