//! Bytes and counts the way people read them.

/// "1.50 MiB"
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 2)) > 0 {
        unit += 1;
    }
    let hundredths = (u128::from(bytes) * 100) >> (10 * (unit + 1));
    format!("{}.{:02} {}", hundredths / 100, hundredths % 100, UNITS[unit])
}

/// "12,345,678"
pub(crate) fn count(n: u64) -> String {
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

/// "1 block", "2 blocks"
pub(crate) fn counted(n: u64, noun: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_largest_unit_that_is_reached() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1024), "1.00 KiB");
        assert_eq!(size(1536 << 10), "1.50 MiB");
        assert_eq!(size(80 << 30), "80.00 GiB");
        assert_eq!(size((1 << 20) - 1), "1023.99 KiB");
        assert_eq!(size(u64::MAX), "16383.99 PiB");
    }

    #[test]
    fn counts_are_grouped_and_agree_with_their_noun() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1234567), "1,234,567");
        assert_eq!(counted(1, "block"), "1 block");
        assert_eq!(counted(100, "block"), "100 blocks");
    }
}
