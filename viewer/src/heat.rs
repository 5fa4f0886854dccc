//! The color scale of the grid: dark for little, bright for much, even to the eye in between.
//!
//! The anchors are viridis at nine even steps; it stays in order for color-blind eyes and in gray.

/// Red, green, blue.
pub type Rgb = [u8; 3];

const ANCHORS: [Rgb; 9] = [
    [0x44, 0x01, 0x54],
    [0x47, 0x2d, 0x7b],
    [0x3b, 0x52, 0x8b],
    [0x2c, 0x72, 0x8e],
    [0x21, 0x91, 0x8c],
    [0x28, 0xae, 0x80],
    [0x5e, 0xc9, 0x62],
    [0xad, 0xdc, 0x30],
    [0xfd, 0xe7, 0x25],
];

/// A scale from one number of bytes to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// What the dark end stands for.
    pub low: u64,
    /// What the bright end stands for.
    pub high: u64,
}

impl Scale {
    /// The scale over these peaks; none without any. It spans at least a tenth of the highest, so that ranks a
    /// few bytes apart do not look like day and night.
    pub fn over(peaks: impl Iterator<Item = u64> + Clone) -> Option<Self> {
        let high = peaks.clone().max()?;
        let low = peaks.min()?.min(high - high / 10);
        Some(Self { low, high })
    }

    /// The color of a number of bytes; beyond the ends, the end's.
    pub fn color(self, bytes: u64) -> Rgb {
        let span = self.high.saturating_sub(self.low).max(1) as f64;
        let at = (bytes.saturating_sub(self.low) as f64 / span).min(1.0) * (ANCHORS.len() - 1) as f64;
        // `at` lies in 0..=8, so the index is one of the anchors and `min` keeps it off the last.
        let i = (at.floor() as usize).min(ANCHORS.len() - 2);
        let part = at - i as f64;
        let mix = |channel: usize| {
            let (a, b) = (f64::from(ANCHORS[i][channel]), f64::from(ANCHORS[i + 1][channel]));
            (a + (b - a) * part).round() as u8
        };
        [mix(0), mix(1), mix(2)]
    }
}

/// A color as CSS spells it.
pub fn css(color: Rgb) -> String {
    format!("#{:02x}{:02x}{:02x}", color[0], color[1], color[2])
}

/// Whether black or white text reads better on a color.
pub fn text_on(color: Rgb) -> &'static str {
    let luminance = relative_luminance(color);
    // Contrast to white and to black as WCAG counts it; they are equal at about 0.18.
    if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 { "#ffffff" } else { "#000000" }
}

fn relative_luminance(color: Rgb) -> f64 {
    let linear = |channel: u8| {
        let c = f64::from(channel) / 255.0;
        if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * linear(color[0]) + 0.7152 * linear(color[1]) + 0.0722 * linear(color[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_have_the_ends_colors_and_brightness_only_rises() {
        let scale = Scale { low: 100, high: 900 };
        assert_eq!(scale.color(0), ANCHORS[0]);
        assert_eq!(scale.color(100), ANCHORS[0]);
        assert_eq!(scale.color(500), ANCHORS[4]);
        assert_eq!(scale.color(900), ANCHORS[8]);
        assert_eq!(scale.color(u64::MAX), ANCHORS[8]);
        let brightness: Vec<f64> = (100..=900).map(|n| relative_luminance(scale.color(n))).collect();
        assert!(brightness.windows(2).all(|pair| pair[1] >= pair[0] - 1e-3));
    }

    #[test]
    fn text_on_any_color_of_the_scale_has_contrast_enough() {
        let scale = Scale { low: 0, high: 1_000 };
        for n in 0..=1_000 {
            let color = scale.color(n);
            let (paper, ink) =
                (relative_luminance(color), if text_on(color) == "#ffffff" { 1.0 } else { 0.0 });
            let contrast = (f64::max(paper, ink) + 0.05) / (f64::min(paper, ink) + 0.05);
            assert!(contrast >= 4.5, "{n}: {contrast}");
        }
    }

    #[test]
    fn peaks_close_together_get_colors_close_together() {
        let peaks = [1_000_u64, 1_001, 1_002];
        let scale = Scale::over(peaks.into_iter()).unwrap();
        assert_eq!(scale, Scale { low: 902, high: 1_002 });
        assert_eq!(Scale::over([5_000_u64].into_iter()).unwrap().color(5_000), ANCHORS[8]);
        assert_eq!(Scale::over(std::iter::empty()), None);
    }
}
