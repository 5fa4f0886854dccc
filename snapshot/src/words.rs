//! Bytes and counts the way people read them: one rule for pages, findings, logs and the command line.

/// The units of memory, each 1024 of the one before.
const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Bytes in the largest unit that is reached, with three significant digits.
///
/// Further digits are cut, not rounded: what is just below a limit must not read as the limit, nor a level as
/// more than there was.
///
/// ```
/// use tidegauge_snapshot::words::size;
/// assert_eq!(size(512), "512 B");
/// assert_eq!(size(3 << 19), "1.50 MiB");
/// assert_eq!(size(65_712_345_678), "61.1 GiB");
/// assert_eq!(size((80 << 30) - 1), "79.9 GiB");
/// ```
pub fn size(bytes: u64) -> String {
    let Some(unit) = (bytes.max(1).ilog2() / 10).checked_sub(1) else {
        return format!("{} B", count(bytes));
    };
    let shift = 10 * (unit + 1);
    let whole = bytes >> shift;
    let tail = |scale: u128| ((u128::from(bytes) * scale) >> shift) % scale;
    let number = match whole {
        0..=9 => format!("{whole}.{:02}", tail(100)),
        10..=99 => format!("{whole}.{}", tail(10)),
        // Up to 1,023 in every unit.
        _ => count(whole),
    };
    format!("{number} {}", UNITS[unit as usize])
}

/// Bytes to the last one, for titles and for copying: "1,536 bytes".
pub fn exact_size(bytes: u64) -> String {
    counted(bytes, "byte")
}

/// A count with its thousands set apart: "12,345,678".
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A count and its noun: "1 block", "2 blocks".
pub fn counted(n: u64, noun: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(n))
}

/// The name of a pool by its numbers: "default", "graph 1" of a CUDA graph, "mempool 2" of a `MemPool`.
pub fn pool(pool: (u64, u64)) -> String {
    match pool {
        (0, 0) => "default".to_owned(),
        (graph, 0) => format!("graph {graph}"),
        (0, mempool) => format!("mempool {mempool}"),
        (a, b) => format!("pool {a}, {b}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_at_every_border_and_never_say_more_than_there_is() {
        for (bytes, text) in [
            (0, "0 B"),
            (1, "1 B"),
            (1023, "1,023 B"),
            (1024, "1.00 KiB"),
            (10_239, "9.99 KiB"),
            (10_240, "10.0 KiB"),
            (102_399, "99.9 KiB"),
            (102_400, "100 KiB"),
            ((1 << 20) - 1, "1,023 KiB"),
            (1 << 20, "1.00 MiB"),
            ((1 << 30) - 1, "1,023 MiB"),
            (80 << 30, "80.0 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(size(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn counts_are_grouped_and_agree_with_their_noun() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(18_204_331), "18,204,331");
        assert_eq!(counted(1, "block"), "1 block");
        assert_eq!(counted(100, "block"), "100 blocks");
        assert_eq!(exact_size(1), "1 byte");
        assert_eq!(exact_size(1536), "1,536 bytes");
    }
}
