//! States × bytes, CSS pixels, device pixels, and the named conversions between them.

use super::viewport::Viewport;

/// Room for the axes' text around the plot, CSS pixels.
const LEFT_CSS: f64 = 48.0;
const RIGHT_CSS: f64 = 8.0;
const ABOVE_CSS: f64 = 24.0;
const BELOW_CSS: f64 = 24.0;

/// The largest picture asked for, device pixels; a larger canvas stretches it.
const MAX_PICTURE: (u32, u32) = (8_192, 4_096);

/// A rectangle in device pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rect {
    /// Left edge.
    pub left: f64,
    /// Upper edge.
    pub top: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
}

/// How a window of a trace lies on a canvas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spaces {
    /// Device pixels per CSS pixel.
    pub ratio: f64,
    /// Size of the canvas, device pixels.
    pub size_device: (u32, u32),
    /// Where the bands are drawn; its edges are whole device pixels, so that a picture stays sharp.
    pub plot: Rect,
    /// What is in view. On whole states where a state is no wider than a pixel.
    pub viewport: Viewport,
    /// Bytes at the plot's upper edge; never zero.
    pub top_bytes: u64,
}

impl Spaces {
    /// Lays a window out on a canvas of the given size in CSS pixels.
    pub fn new(size_css: (f64, f64), ratio: f64, viewport: Viewport, top_bytes: u64) -> Self {
        let device = |css: f64| (css * ratio).round().max(0.0);
        let (width, height) = (device(size_css.0), device(size_css.1));
        let (left, top) = (device(LEFT_CSS), device(ABOVE_CSS));
        let plot = Rect {
            left,
            top,
            width: (width - left - device(RIGHT_CSS)).max(1.0),
            height: (height - top - device(BELOW_CSS)).max(1.0),
        };
        let viewport = if viewport.width() >= plot.width {
            let (from, to) = viewport.states();
            viewport.window(f64::from(from), f64::from(to))
        } else {
            viewport
        };
        // Both are rounded and not negative.
        Self {
            ratio,
            size_device: (width as u32, height as u32),
            plot,
            viewport,
            top_bytes: top_bytes.max(1),
        }
    }

    /// Size of the picture of the states in view, device pixels: one of its pixels per pixel of the plot.
    pub fn picture_size(&self) -> (u32, u32) {
        let (from, to) = self.viewport.states();
        let width = self.plot.width * f64::from(to - from) / self.viewport.width();
        ((width.round() as u32).clamp(1, MAX_PICTURE.0), (self.plot.height as u32).clamp(1, MAX_PICTURE.1))
    }

    /// Where a position on the state axis lies.
    pub fn x_device_from_position(&self, position: f64) -> f64 {
        self.plot.left + self.viewport.fraction_from_position(position) * self.plot.width
    }

    /// Where the middle of a state lies.
    pub fn x_device_from_state(&self, state: u32) -> f64 {
        self.x_device_from_position(f64::from(state) + 0.5)
    }

    /// Where a level lies.
    pub fn y_device_from_bytes(&self, bytes: f64) -> f64 {
        self.plot.top + self.plot.height * (1.0 - bytes / self.top_bytes as f64)
    }

    /// The fraction of the plot's width under an x of the canvas; beyond 0..=1 when it is beside the plot.
    pub fn fraction_from_x_css(&self, x_css: f64) -> f64 {
        (x_css * self.ratio - self.plot.left) / self.plot.width
    }

    /// The position on the state axis and the bytes under a point of the canvas; none outside the plot.
    pub fn point_from_css(&self, x_css: f64, y_css: f64) -> Option<(f64, f64)> {
        let x = self.fraction_from_x_css(x_css);
        let y = 1.0 - (y_css * self.ratio - self.plot.top) / self.plot.height;
        let is_inside = (0.0..1.0).contains(&x) && (0.0..=1.0).contains(&y);
        is_inside.then(|| (self.viewport.from() + x * self.viewport.width(), y * self.top_bytes as f64))
    }
}

/// The upper edge of the plot: room for the reserved curve where that leaves the bands most of the height, else
/// for the bands alone.
pub fn top_bytes(peak_active: u64, peak_reserved: u64) -> u64 {
    let with_reserved = peak_reserved <= peak_active.saturating_add(peak_active / 2);
    let highest = if with_reserved { peak_reserved.max(peak_active) } else { peak_active };
    highest.saturating_add(highest / 20).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spaces(viewport: Viewport) -> Spaces {
        Spaces::new((856.0, 348.0), 1.5, viewport, 1_000)
    }

    #[test]
    fn the_plot_lies_on_whole_device_pixels() {
        for ratio in [1.0, 1.1, 1.25, 1.5, 2.0, 2.625] {
            let plot = Spaces::new((801.3, 333.7), ratio, Viewport::whole(10), 1).plot;
            for edge in [plot.left, plot.top, plot.width, plot.height] {
                assert_eq!(edge, edge.round(), "at {ratio}");
            }
        }
    }

    #[test]
    fn a_point_and_its_pixel_agree() {
        let spaces = spaces(Viewport::whole(99_999).window(20_000.0, 30_000.0));
        let x_css = spaces.x_device_from_position(25_000.0) / spaces.ratio;
        let y_css = spaces.y_device_from_bytes(250.0) / spaces.ratio;
        let (position, bytes) = spaces.point_from_css(x_css, y_css).unwrap();
        assert!((position - 25_000.0).abs() < 1e-6, "{position}");
        assert!((bytes - 250.0).abs() < 1e-6, "{bytes}");
        assert_eq!(spaces.point_from_css(3.0, 100.0), None);
        assert_eq!(spaces.point_from_css(400.0, 347.0), None);
    }

    #[test]
    fn where_states_are_narrow_the_picture_has_the_plot_s_size() {
        let spaces = spaces(Viewport::whole(99_999).window(20_000.4, 30_000.7));
        assert_eq!(spaces.picture_size(), (1_200, 450));
        assert_eq!(spaces.viewport.states(), (20_000, 30_001));
        assert_eq!(spaces.viewport.from(), 20_000.0);
    }

    #[test]
    fn where_states_are_wide_the_picture_reaches_beyond_the_plot() {
        let spaces = spaces(Viewport::whole(99_999).window(20_000.5, 20_010.5));
        assert_eq!(spaces.viewport.from(), 20_000.5);
        // Eleven states on a plot that shows ten of them.
        assert_eq!(spaces.picture_size(), (1_320, 450));
    }

    #[test]
    fn the_reserved_curve_gets_room_unless_it_would_flatten_the_bands() {
        assert_eq!(top_bytes(1_000, 1_200), 1_260);
        assert_eq!(top_bytes(1_000, 9_000), 1_050);
        assert_eq!(top_bytes(0, 0), 1);
        assert_eq!(top_bytes(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn a_canvas_of_no_size_is_still_laid_out() {
        let spaces = Spaces::new((0.0, 0.0), 1.0, Viewport::whole(0), 0);
        assert_eq!(spaces.picture_size(), (1, 1));
    }
}
