//! Everything on the timeline's canvas: the worker's picture, axes, curves and marks, in device pixels.

use std::cell::RefCell;
use std::sync::Arc;

use leptos::prelude::{document, window};
use tidegauge_api::picture::{Curves, ID_NONE, ID_OTHER, PictureAnswer};
use wasm_bindgen::{Clamped, JsCast as _, JsValue};
use web_sys::{CanvasRenderingContext2d, HtmlCanvasElement, ImageData};

use super::marked::Marked;
use super::spaces::{Rect, Spaces};
use super::ticks::{Tick, byte_ticks, event_ticks};
use crate::worker::Drawn;

/// A picture of the worker, ready to be drawn again and again.
pub(crate) struct Picture {
    canvas: HtmlCanvasElement,
    answer: PictureAnswer,
    ids: Vec<u32>,
    /// The last veil that was laid over it: as large as the picture.
    veil: RefCell<Option<Veil>>,
}

/// The paper's color over everything that is not marked.
struct Veil {
    marked: Arc<Marked>,
    paper: String,
    canvas: HtmlCanvasElement,
}

/// What a point of a picture shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The allocation with this number.
    Allocation(u32),
    /// Allocations too small to be drawn.
    Other,
}

impl Picture {
    /// Puts the pixels on a canvas of their own.
    pub(crate) fn new(drawn: Drawn) -> Result<Self, JsValue> {
        let (width, height) = (drawn.answer.question.width, drawn.answer.question.height);
        let image = ImageData::new_with_js_u8_clamped_array_and_sh(&drawn.pixels, width, height)?;
        let canvas = canvas_of(&image)?;
        Ok(Self { canvas, answer: drawn.answer, ids: drawn.ids.to_vec(), veil: RefCell::new(None) })
    }

    /// A canvas that dims what is not marked; made anew when the marks or the theme change.
    fn veil(&self, marked: &Arc<Marked>, paper: &str) -> Result<HtmlCanvasElement, JsValue> {
        let mut kept = self.veil.borrow_mut();
        if let Some(veil) =
            kept.as_ref().filter(|veil| Arc::ptr_eq(&veil.marked, marked) && veil.paper == paper)
        {
            return Ok(veil.canvas.clone());
        }
        let question = &self.answer.question;
        let pixels = marked.veil(&self.ids, ID_NONE);
        let image =
            ImageData::new_with_u8_clamped_array_and_sh(Clamped(&pixels), question.width, question.height)?;
        let canvas = canvas_of(&image)?;
        let context = context(&canvas)?;
        // Colors what is there and leaves how much of it there is.
        context.set_global_composite_operation("source-in")?;
        context.set_fill_style_str(paper);
        context.fill_rect(0.0, 0.0, question.width.into(), question.height.into());
        *kept = Some(Veil { marked: Arc::clone(marked), paper: paper.to_owned(), canvas: canvas.clone() });
        Ok(canvas)
    }

    /// Who owns a point, given as a position on the state axis and bytes.
    pub(crate) fn owner(&self, position: f64, bytes: f64) -> Option<Owner> {
        let question = &self.answer.question;
        let column = self.column(position)?;
        let row = (1.0 - bytes / self.top()) * f64::from(question.height);
        if !(0.0..f64::from(question.height)).contains(&row) {
            return None;
        }
        match *self.ids.get(row as usize * question.width as usize + column)? {
            ID_NONE => None,
            ID_OTHER => Some(Owner::Other),
            id => Some(Owner::Allocation(id)),
        }
    }

    /// The state that a position's column shows: the one with the highest level in it.
    pub(crate) fn state(&self, position: f64) -> Option<u32> {
        self.answer.curves.states.get(self.column(position)?).copied()
    }

    /// The window it shows: its first state, and one past its last.
    pub(crate) fn states(&self) -> (u32, u32) {
        (self.answer.question.from, self.answer.question.to)
    }

    /// Highest band of allocations too small to be drawn, bytes.
    pub(crate) fn other_max(&self) -> u64 {
        self.answer.other_max
    }

    fn column(&self, position: f64) -> Option<usize> {
        let question = &self.answer.question;
        let (from, to) = (f64::from(question.from), f64::from(question.to));
        let column = (position - from) / (to - from) * f64::from(question.width);
        (0.0..f64::from(question.width)).contains(&column).then_some(column as usize)
    }

    fn top(&self) -> f64 {
        self.answer.question.top.unwrap_or(1).max(1) as f64
    }

    /// Where the whole picture lies.
    fn rect(&self, spaces: &Spaces) -> Rect {
        let question = &self.answer.question;
        let left = spaces.x_device_from_position(f64::from(question.from));
        let top = spaces.y_device_from_bytes(self.top());
        Rect {
            left,
            top,
            width: spaces.x_device_from_position(f64::from(question.to)) - left,
            height: spaces.plot.top + spaces.plot.height - top,
        }
    }
}

/// A canvas that shows an image.
fn canvas_of(image: &ImageData) -> Result<HtmlCanvasElement, JsValue> {
    let canvas: HtmlCanvasElement = document().create_element("canvas")?.unchecked_into();
    canvas.set_width(image.width());
    canvas.set_height(image.height());
    context(&canvas)?.put_image_data(image, 0.0, 0.0)?;
    Ok(canvas)
}

/// One of the four curves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Curve {
    Reserved,
    Active,
    Allocated,
    Requested,
}

impl Curve {
    /// From the highest down.
    pub(crate) const ALL: [Self; 4] = [Self::Reserved, Self::Active, Self::Allocated, Self::Requested];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Active => "active",
            Self::Allocated => "allocated",
            Self::Requested => "requested",
        }
    }

    /// Lengths of dashes and gaps, CSS pixels: the curves are told apart without color.
    pub(crate) fn dashes(self) -> &'static [f64] {
        match self {
            Self::Reserved => &[10.0, 4.0],
            Self::Active => &[2.0, 3.0],
            Self::Allocated => &[],
            Self::Requested => &[8.0, 3.0, 2.0, 3.0],
        }
    }

    fn levels(self, curves: &Curves) -> &[u64] {
        match self {
            Self::Reserved => &curves.reserved,
            Self::Active => &curves.active,
            Self::Allocated => &curves.allocated,
            Self::Requested => &curves.requested,
        }
    }
}

/// What is marked on the picture.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Marks {
    /// The allocation under the pointer.
    pub(crate) hovered: Option<u32>,
    /// The allocation in the side pane.
    pub(crate) pinned: Option<u32>,
    /// What stays in full color; everything does without.
    pub(crate) marked: Option<Arc<Marked>>,
    /// The state of the cursor.
    pub(crate) cursor: u32,
    /// Which of [`Curve::ALL`] are drawn.
    pub(crate) curves: [bool; 4],
}

/// Colors of the chrome, from the style sheet's tokens.
pub(crate) struct Inks {
    pub(crate) text: String,
    pub(crate) dim: String,
    pub(crate) line: String,
    pub(crate) accent: String,
    pub(crate) paper: String,
}

impl Inks {
    pub(crate) fn from_style() -> Self {
        let root = document().document_element();
        let style = root.and_then(|root| window().get_computed_style(&root).ok().flatten());
        let token = |name: &str, otherwise: &str| {
            let value = style.as_ref().and_then(|style| style.get_property_value(name).ok());
            value
                .map(|value| value.trim().to_owned())
                .filter(|value| !value.is_empty())
                .unwrap_or(otherwise.to_owned())
        };
        Self {
            text: token("--text", "black"),
            dim: token("--text-dim", "dimgray"),
            line: token("--line", "lightgray"),
            accent: token("--accent", "blue"),
            paper: token("--paper", "white"),
        }
    }
}

/// The drawing side of a canvas.
pub(crate) fn context(canvas: &HtmlCanvasElement) -> Result<CanvasRenderingContext2d, JsValue> {
    let context =
        canvas.get_context("2d")?.ok_or_else(|| JsValue::from_str("this browser has no 2d canvas"))?;
    Ok(context.unchecked_into())
}

/// Draws everything. `pictures` from the bottom up: the whole trace first, then what is sharpest.
pub(crate) fn paint(
    canvas: &HtmlCanvasElement,
    spaces: &Spaces,
    pictures: &[&Picture],
    marks: &Marks,
) -> Result<(), JsValue> {
    if (canvas.width(), canvas.height()) != spaces.size_device {
        canvas.set_width(spaces.size_device.0);
        canvas.set_height(spaces.size_device.1);
    }
    let inks = Inks::from_style();
    let painter = Painter { context: context(canvas)?, spaces, inks: &inks };
    painter.context.clear_rect(0.0, 0.0, spaces.size_device.0.into(), spaces.size_device.1.into());
    painter.axes()?;
    painter.clipped(|| {
        for picture in pictures {
            painter.picture(picture, marks.marked.as_ref())?;
        }
        if let Some(picture) = pictures.last() {
            painter.highlight(picture, marks.hovered, 0.35);
            painter.highlight(picture, marks.pinned, 0.6);
            painter.curves(picture, marks.curves)?;
        }
        painter.cursor(marks.cursor);
        Ok(())
    })
}

struct Painter<'a> {
    context: CanvasRenderingContext2d,
    spaces: &'a Spaces,
    inks: &'a Inks,
}

impl Painter<'_> {
    fn css(&self, length: f64) -> f64 {
        length * self.spaces.ratio
    }

    fn axes(&self) -> Result<(), JsValue> {
        let Rect { left, top, width, height } = self.spaces.plot;
        let context = &self.context;
        context.set_font(&format!("{}px system-ui, sans-serif", self.css(12.0)));
        context.set_line_width(self.css(1.0));

        // A label of bytes wants 44 px of height, one of events 96 px of width.
        let n_max = (height / self.css(44.0)).max(1.0) as usize;
        let (ticks, unit) = byte_ticks(self.spaces.top_bytes, n_max);
        context.set_text_align("right");
        context.set_text_baseline("middle");
        for Tick { at, label } in &ticks {
            let y = self.spaces.y_device_from_bytes(*at).round() - 0.5;
            self.line((left, y), (left + width, y), &self.inks.line);
            context.set_fill_style_str(&self.inks.dim);
            context.fill_text(label, left - self.css(6.0), y)?;
        }
        context.set_text_baseline("alphabetic");
        context.fill_text(unit, left - self.css(6.0), top - self.css(12.0))?;

        let viewport = self.spaces.viewport;
        let n_max = (width / self.css(96.0)).max(1.0) as usize;
        context.set_text_align("center");
        context.set_text_baseline("top");
        let bottom = top + height;
        for Tick { at, label } in event_ticks(viewport.from(), viewport.to(), n_max) {
            let x = self.spaces.x_device_from_position(at + 0.5).round() - 0.5;
            self.line((x, bottom), (x, bottom + self.css(4.0)), &self.inks.dim);
            context.set_fill_style_str(&self.inks.dim);
            // Kept whole at both ends.
            let half = context.measure_text(&label)?.width() / 2.0;
            let x = x.clamp(half, f64::from(self.spaces.size_device.0) - half);
            context.fill_text(&label, x, bottom + self.css(7.0))?;
        }
        self.line((left, bottom + 0.5), (left + width, bottom + 0.5), &self.inks.dim);
        Ok(())
    }

    fn line(&self, from: (f64, f64), to: (f64, f64), ink: &str) {
        let context = &self.context;
        context.set_stroke_style_str(ink);
        context.begin_path();
        context.move_to(from.0, from.1);
        context.line_to(to.0, to.1);
        context.stroke();
    }

    /// Draws inside the plot only.
    fn clipped(&self, draw: impl FnOnce() -> Result<(), JsValue>) -> Result<(), JsValue> {
        let Rect { left, top, width, height } = self.spaces.plot;
        self.context.save();
        self.context.begin_path();
        self.context.rect(left, top, width, height);
        self.context.clip();
        let drawn = draw();
        self.context.restore();
        drawn
    }

    fn picture(&self, picture: &Picture, marked: Option<&Arc<Marked>>) -> Result<(), JsValue> {
        let Rect { left, top, width, height } = picture.rect(self.spaces);
        // Pixels of a stretched picture stay pixels: it is about to be replaced, and must not look final.
        self.context.set_image_smoothing_enabled(false);
        self.context.clear_rect(left, self.spaces.plot.top, width, self.spaces.plot.height);
        self.redraw_grid(left, width);
        let lay = |canvas: &HtmlCanvasElement| {
            self.context.draw_image_with_html_canvas_element_and_dw_and_dh(canvas, left, top, width, height)
        };
        lay(&picture.canvas)?;
        match marked {
            Some(marked) => lay(&picture.veil(marked, &self.inks.paper)?),
            None => Ok(()),
        }
    }

    /// The axis' lines again, where a picture is about to cover an older one.
    fn redraw_grid(&self, left: f64, width: f64) {
        let n_max = (self.spaces.plot.height / self.css(44.0)).max(1.0) as usize;
        for tick in byte_ticks(self.spaces.top_bytes, n_max).0 {
            let y = self.spaces.y_device_from_bytes(tick.at).round() - 0.5;
            self.line((left, y), (left + width, y), &self.inks.line);
        }
    }

    /// Lays the accent over the pixels of one allocation.
    fn highlight(&self, picture: &Picture, id: Option<u32>, strength: f64) {
        let Some(id) = id else { return };
        let (width, height) =
            (picture.answer.question.width as usize, picture.answer.question.height as usize);
        let rect = picture.rect(self.spaces);
        let (x_step, y_step) = (rect.width / width as f64, rect.height / height as f64);
        self.context.begin_path();
        for column in 0..width {
            // In a column, an allocation owns one run of pixels.
            let owned = |row: &usize| picture.ids.get(row * width + column) == Some(&id);
            let Some(first) = (0..height).find(owned) else { continue };
            let n = (first..height).take_while(owned).count();
            let (x, y) = (rect.left + column as f64 * x_step, rect.top + first as f64 * y_step);
            self.context.rect(x, y, x_step, n as f64 * y_step);
        }
        self.context.set_global_alpha(strength);
        self.context.set_fill_style_str(&self.inks.accent);
        self.context.fill();
        self.context.set_global_alpha(1.0);
    }

    fn curves(&self, picture: &Picture, shown: [bool; 4]) -> Result<(), JsValue> {
        let context = &self.context;
        let shown = || Curve::ALL.into_iter().zip(shown).filter_map(|(curve, shown)| shown.then_some(curve));
        // Thousands of round joins are the slowest thing on this canvas.
        context.set_line_join("bevel");
        // Below, all of them in the paper's color, so that they are seen on every band.
        context.begin_path();
        for curve in shown() {
            self.trace(picture, curve);
        }
        context.set_line_width(self.css(3.0));
        context.set_global_alpha(0.6);
        context.set_stroke_style_str(&self.inks.paper);
        context.stroke();
        context.set_line_width(self.css(1.25));
        context.set_global_alpha(1.0);
        context.set_stroke_style_str(&self.inks.text);
        for curve in shown() {
            self.dashed(curve.dashes())?;
            context.begin_path();
            self.trace(picture, curve);
            context.stroke();
        }
        self.dashed(&[])
    }

    /// Adds a curve to the path.
    fn trace(&self, picture: &Picture, curve: Curve) {
        let rect = picture.rect(self.spaces);
        let levels = curve.levels(&picture.answer.curves);
        let x_step = rect.width / levels.len().max(1) as f64;
        for (i, level) in levels.iter().enumerate() {
            let x = rect.left + (i as f64 + 0.5) * x_step;
            let y = self.spaces.y_device_from_bytes(*level as f64);
            if i == 0 { self.context.move_to(x, y) } else { self.context.line_to(x, y) }
        }
    }

    fn dashed(&self, dashes_css: &[f64]) -> Result<(), JsValue> {
        let dashes: js_sys::Array =
            dashes_css.iter().map(|length| JsValue::from(self.css(*length))).collect();
        self.context.set_line_dash(&dashes)
    }

    fn cursor(&self, state: u32) {
        let x = self.spaces.x_device_from_state(state).round() - 0.5;
        let Rect { top, height, .. } = self.spaces.plot;
        self.context.set_line_width(self.css(3.0));
        self.context.set_global_alpha(0.5);
        self.line((x, top), (x, top + height), &self.inks.paper);
        self.context.set_global_alpha(1.0);
        self.context.set_line_width(self.css(1.0));
        self.line((x, top), (x, top + height), &self.inks.accent);
    }
}
