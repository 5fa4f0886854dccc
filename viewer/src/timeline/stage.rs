//! What one device's timeline knows, and what can be done with it.

use std::rc::Rc;

use leptos::prelude::*;
use tidegauge_api::picture::{
    AllocationAnswer, AllocationQuestion, LevelsAnswer, LevelsQuestion, OpenedDevice, PictureQuestion,
};

use super::latest::Latest;
use super::paint::{Owner, Picture};
use super::spaces::Spaces;
use super::viewport::Viewport;
use crate::worker::{Open, Trouble};

/// What is under the pointer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hover {
    /// Where the pointer is on the canvas, CSS pixels.
    pub(crate) x_css: f64,
    pub(crate) y_css: f64,
    pub(crate) owner: Owner,
}

/// The signals of one device's timeline. Small things only; pictures lie in [`Pictures`].
#[derive(Clone, Copy)]
pub(crate) struct Stage {
    pub(crate) device: StoredValue<OpenedDevice>,
    /// Bytes at the upper edge.
    pub(crate) top_bytes: u64,
    pub(crate) viewport: RwSignal<Viewport>,
    /// The state whose levels are shown.
    pub(crate) cursor: RwSignal<u32>,
    /// Levels at the cursor, once the worker has told them.
    pub(crate) levels: RwSignal<Option<LevelsAnswer>>,
    /// Where the pointer is on the canvas, CSS pixels; none while it is elsewhere or drags.
    pub(crate) pointer_css: RwSignal<Option<(f64, f64)>>,
    /// The position on the state axis under it.
    pub(crate) pointed: RwSignal<Option<f64>>,
    pub(crate) hover: RwSignal<Option<Hover>>,
    /// The allocation under the pointer, once the worker has told it.
    pub(crate) hovered: RwSignal<Option<AllocationAnswer>>,
    /// Number of the allocation in the side pane.
    pub(crate) pinned: RwSignal<Option<u32>>,
    /// Which of [`super::Curve::ALL`] are drawn.
    pub(crate) curves: RwSignal<[bool; 4]>,
    /// Counts pictures that arrived.
    pub(crate) n_pictures: RwSignal<u32>,
    pub(crate) trouble: RwSignal<Option<Trouble>>,
    asks: StoredValue<Rc<Asks>, LocalStorage>,
}

struct Asks {
    open: Rc<Open>,
    pictures: std::cell::RefCell<Pictures>,
    picture: Rc<Latest<PictureQuestion>>,
    levels: Rc<Latest<LevelsQuestion>>,
    allocation: Rc<Latest<AllocationQuestion>>,
}

/// The pictures that are kept: two at most.
#[derive(Default)]
struct Pictures {
    /// Of the whole trace: what a pan or a zoom out finds at once.
    whole: Option<Rc<Picture>>,
    /// The last one that arrived.
    latest: Option<Rc<Picture>>,
}

impl Stage {
    /// A stage for a device, with all of its trace in view and the cursor at its peak.
    pub(crate) fn new(open: Rc<Open>, device: OpenedDevice, top_bytes: u64) -> Self {
        let asks = Asks {
            open,
            pictures: std::cell::RefCell::default(),
            picture: Latest::new(),
            levels: Latest::new(),
            allocation: Latest::new(),
        };
        Self {
            top_bytes,
            viewport: RwSignal::new(Viewport::whole(device.n_events)),
            cursor: RwSignal::new(device.peak_state.min(device.n_events)),
            levels: RwSignal::new(None),
            pointer_css: RwSignal::new(None),
            pointed: RwSignal::new(None),
            hover: RwSignal::new(None),
            hovered: RwSignal::new(None),
            pinned: RwSignal::new(None),
            curves: RwSignal::new([true; 4]),
            n_pictures: RwSignal::new(0),
            trouble: RwSignal::new(None),
            device: StoredValue::new(device),
            asks: StoredValue::new_local(Rc::new(asks)),
        }
    }

    /// Asks for the picture of what is in view.
    pub(crate) fn want_picture(self, spaces: &Spaces) {
        let (from, to) = spaces.viewport.states();
        let (width, height) = spaces.picture_size();
        let device = self.device.with_value(|device| device.device);
        let question = PictureQuestion { device, from, to, width, height, top: Some(self.top_bytes) };
        let is_whole = spaces.viewport.is_whole();
        let asks = self.asks.get_value();
        let picture = Rc::clone(&asks.picture);
        picture.want(question, move |question| {
            let asks = Rc::clone(&asks);
            async move {
                match asks.open.picture(question).await.map(Picture::new) {
                    Ok(Ok(picture)) => self.show(&asks, Rc::new(picture), is_whole && question.from == 0),
                    Ok(Err(error)) => crate::browser::log(&format!("cannot keep a picture: {error:?}")),
                    Err(trouble) => self.tell(trouble),
                }
            }
        });
    }

    fn show(self, asks: &Asks, picture: Rc<Picture>, is_whole: bool) {
        let mut pictures = asks.pictures.borrow_mut();
        if is_whole {
            pictures.whole = Some(Rc::clone(&picture));
        }
        pictures.latest = Some(picture);
        drop(pictures);
        self.n_pictures.try_update(|n| *n = n.wrapping_add(1));
    }

    /// The pictures to draw, from the bottom up.
    pub(crate) fn pictures(self) -> Vec<Rc<Picture>> {
        let Some(asks) = self.asks.try_get_value() else { return Vec::new() };
        let pictures = asks.pictures.borrow();
        let mut layers: Vec<_> = pictures.whole.iter().chain(&pictures.latest).cloned().collect();
        layers.dedup_by(|a, b| Rc::ptr_eq(a, b));
        layers
    }

    /// The picture on top.
    pub(crate) fn top_picture(self) -> Option<Rc<Picture>> {
        self.pictures().pop()
    }

    /// Asks for the levels at the cursor.
    pub(crate) fn want_levels(self, state: u32) {
        let device = self.device.with_value(|device| device.device);
        let asks = self.asks.get_value();
        let levels = Rc::clone(&asks.levels);
        levels.want(LevelsQuestion { device, state }, move |question| {
            let asks = Rc::clone(&asks);
            async move {
                match asks.open.levels(question).await {
                    Ok(answer) => drop(self.levels.try_set(Some(answer))),
                    Err(trouble) => self.tell(trouble),
                }
            }
        });
    }

    /// Asks for the allocation under the pointer.
    pub(crate) fn want_hovered(self, id: u32) {
        let device = self.device.with_value(|device| device.device);
        let asks = self.asks.get_value();
        let allocation = Rc::clone(&asks.allocation);
        allocation.want(AllocationQuestion { device, id }, move |question| {
            let asks = Rc::clone(&asks);
            async move {
                match asks.open.allocation(question).await {
                    Ok(answer) => drop(self.hovered.try_set(Some(answer))),
                    Err(trouble) => self.tell(trouble),
                }
            }
        });
    }

    /// Everything known of an allocation.
    pub(crate) async fn allocation(self, id: u32) -> Result<AllocationAnswer, Trouble> {
        let device = self.device.with_value(|device| device.device);
        let asks = self.asks.get_value();
        asks.open.allocation(AllocationQuestion { device, id }).await
    }

    /// The snapshot, to ask it; none once this stage is gone.
    pub(crate) fn open(self) -> Option<Rc<Open>> {
        self.asks.try_get_value().map(|asks| Rc::clone(&asks.open))
    }

    /// Puts the cursor on a state and brings it into view.
    pub(crate) fn put_cursor(self, state: u32) {
        let n_events = self.device.with_value(|device| device.n_events);
        let state = state.min(n_events);
        self.cursor.set(state);
        self.viewport.update(|viewport| *viewport = viewport.showing(state));
    }

    /// Moves the cursor by a number of events.
    pub(crate) fn move_cursor(self, by: i64) {
        let moved = i64::from(self.cursor.get_untracked()).saturating_add(by);
        self.put_cursor(u32::try_from(moved.max(0)).unwrap_or(u32::MAX));
    }

    /// Does what a key stands for; false for keys that stand for nothing here.
    pub(crate) fn press(self, key: &str, is_shifted: bool) -> bool {
        // Perfetto's letters. A zoom keeps the pointer's place, or the cursor's where it is in view.
        let at = self.still_fraction();
        let change = |next: &dyn Fn(Viewport) -> Viewport| {
            self.viewport.update(|viewport| *viewport = next(*viewport))
        };
        let events = if is_shifted { 10 } else { 1 };
        match key {
            "w" | "W" => change(&|viewport| viewport.zoomed(1.5, at)),
            "s" | "S" => change(&|viewport| viewport.zoomed(1.0 / 1.5, at)),
            "a" | "A" => change(&|viewport| viewport.panned(-0.15)),
            "d" | "D" => change(&|viewport| viewport.panned(0.15)),
            "0" | "f" | "F" => change(&|viewport| viewport.window(0.0, f64::from(viewport.n_states()))),
            "p" | "P" => self.put_cursor(self.device.with_value(|device| device.peak_state)),
            "ArrowLeft" => self.move_cursor(-events),
            "ArrowRight" => self.move_cursor(events),
            "Home" => self.put_cursor(0),
            "End" => self.put_cursor(u32::MAX),
            _ => return false,
        }
        true
    }

    /// Where a zoom by key holds still: at the pointer, else at the cursor, else in the middle.
    fn still_fraction(self) -> f64 {
        let viewport = self.viewport.get_untracked();
        let pointed = self.pointed.get_untracked();
        let position = pointed.unwrap_or_else(|| f64::from(self.cursor.get_untracked()) + 0.5);
        let at = viewport.fraction_from_position(position);
        if (0.0..=1.0).contains(&at) { at } else { 0.5 }
    }

    /// A question that was refused says why on the page; a worker that died ends this stage.
    pub(crate) fn tell(self, trouble: Trouble) {
        if trouble != Trouble::Superseded {
            self.trouble.try_set(Some(trouble));
        }
    }
}
