//! The canvas: listens, asks, shows.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use leptos::html;
use leptos::prelude::*;
use wasm_bindgen::JsCast as _;
use wasm_bindgen::prelude::Closure;
use web_sys::{PointerEvent, ResizeObserver, WheelEvent};

use super::paint::{Marks, Owner, paint};
use super::spaces::Spaces;
use super::stage::{Hover, Stage};
use super::tooltip::Tooltip;
use super::viewport::Viewport;
use crate::app::App;

/// How far a pointer may move between down and up and still have clicked, CSS pixels: a hand trembles.
const CLICK_SLOP_CSS: f64 = 5.0;

/// A drag that is going on.
#[derive(Clone, Copy)]
struct Drag {
    x_css: f64,
    viewport: Viewport,
    has_moved: bool,
}

/// The timeline of one device.
#[component]
pub(crate) fn Canvas(stage: Stage) -> impl IntoView {
    let app = App::here();
    let canvas = NodeRef::<html::Canvas>::new();
    let size_css = RwSignal::new((0.0, 0.0));
    let drag = StoredValue::new(None::<Drag>);
    let spaces = Memo::new(move |_| {
        Spaces::new(size_css.get(), window().device_pixel_ratio(), stage.viewport.get(), stage.top_bytes)
    });
    let has_size = move || size_css.get().0 >= 1.0;

    watch_size(canvas, size_css);
    Effect::new(move || {
        if has_size() {
            stage.want_picture(&spaces.get());
        }
    });
    Effect::new(move || stage.want_levels(stage.cursor.get()));

    let drawn_window = RwSignal::new(None::<(u32, u32)>);
    let frame = Frames::new(move || {
        let (Some(canvas), Some(spaces)) = (canvas.get_untracked(), spaces.try_get_untracked()) else {
            return;
        };
        let pictures = stage.pictures();
        let layers: Vec<_> = pictures.iter().map(Rc::as_ref).collect();
        let hovered = stage.hover.get_untracked().and_then(|hover| match hover.owner {
            Owner::Allocation(id) => Some(id),
            Owner::Other => None,
        });
        let marks = Marks {
            hovered,
            pinned: stage.pinned.get_untracked(),
            marked: stage.marked.get_untracked(),
            cursor: stage.cursor.get_untracked(),
            curves: stage.curves.get_untracked(),
        };
        if let Err(error) = paint(&canvas, &spaces, &layers, &marks) {
            crate::browser::log(&format!("cannot paint the timeline: {error:?}"));
        }
        drawn_window.set(layers.last().map(|picture| picture.states()));
    });
    Effect::new(move || {
        // Whatever is seen on the canvas is read here, so that a change of any of it is painted.
        stage.n_pictures.track();
        stage.hover.track();
        stage.pinned.track();
        stage.marked.track();
        stage.cursor.track();
        stage.curves.track();
        app.theme.track();
        spaces.track();
        if has_size() {
            frame.request();
        }
    });

    // What is under the pointer changes with the picture too, not only when the pointer moves.
    Effect::new(move || {
        stage.n_pictures.track();
        let point = stage.pointer_css.get().zip(Some(spaces.get()));
        let point = point.and_then(|((x_css, y_css), spaces)| {
            spaces.point_from_css(x_css, y_css).map(|(position, bytes)| (x_css, y_css, position, bytes))
        });
        stage.pointed.set(point.map(|(_, _, position, _)| position));
        let hover = point.and_then(|(x_css, y_css, position, bytes)| {
            let (_, owner) = whats_at(stage, position, bytes)?;
            Some(Hover { x_css, y_css, owner: owner? })
        });
        if let Some(Hover { owner: Owner::Allocation(id), .. }) = hover
            && stage.hovered.with_untracked(|told| told.as_ref().is_none_or(|told| told.id != id))
        {
            stage.want_hovered(id);
        }
        if stage.hover.get_untracked() != hover {
            stage.hover.set(hover);
        }
    });

    let on_wheel = move |event: WheelEvent| {
        event.prevent_default();
        let spaces = spaces.get_untracked();
        // Lines (Firefox) and pages count as the pixels they usually are.
        let unit = match event.delta_mode() {
            WheelEvent::DOM_DELTA_LINE => 16.0,
            WheelEvent::DOM_DELTA_PAGE => 400.0,
            _ => 1.0,
        };
        let (dx, dy) = (event.delta_x() * unit, event.delta_y() * unit);
        if dx.abs() > dy.abs() || event.shift_key() {
            let by = if event.shift_key() && dx == 0.0 { dy } else { dx };
            let fraction = by * spaces.ratio / spaces.plot.width;
            stage.viewport.update(|viewport| *viewport = viewport.panned(fraction));
        } else {
            let at = spaces.fraction_from_x_css(f64::from(event.offset_x())).clamp(0.0, 1.0);
            // A notch of 100 px zooms by a quarter; a long flick by no more than four.
            let factor = (-dy * 0.0022).exp().clamp(0.25, 4.0);
            stage.viewport.update(|viewport| *viewport = viewport.zoomed(factor, at));
        }
    };
    let on_down = move |event: PointerEvent| {
        if event.button() != 0 {
            return;
        }
        if let Some(canvas) = canvas.get_untracked() {
            canvas.set_pointer_capture(event.pointer_id()).ok();
        }
        let viewport = stage.viewport.get_untracked();
        drag.set_value(Some(Drag { x_css: event.offset_x().into(), viewport, has_moved: false }));
    };
    let on_move = move |event: PointerEvent| {
        if let Some(current) = drag.get_value() {
            let by_css = f64::from(event.offset_x()) - current.x_css;
            if !current.has_moved && by_css.abs() <= CLICK_SLOP_CSS {
                return;
            }
            drag.set_value(Some(Drag { has_moved: true, ..current }));
            let spaces = spaces.get_untracked();
            stage.pointer_css.set(None);
            stage.viewport.set(current.viewport.panned(-by_css * spaces.ratio / spaces.plot.width));
            return;
        }
        stage.pointer_css.set(Some((event.offset_x().into(), event.offset_y().into())));
    };
    let on_up = move |event: PointerEvent| {
        let Some(ended) = drag.get_value() else { return };
        drag.set_value(None);
        if ended.has_moved {
            return;
        }
        let point = spaces.get_untracked().point_from_css(event.offset_x().into(), event.offset_y().into());
        if let Some((state, owner)) = point.and_then(|(position, bytes)| whats_at(stage, position, bytes)) {
            stage.cursor.set(state);
            stage.pinned.set(match owner {
                Some(Owner::Allocation(id)) => Some(id),
                _ => None,
            });
        }
    };

    let label = move || {
        let n_events = stage.device.with_value(|device| device.n_events);
        format!(
            "Memory over {} events. Keys: W and S zoom, A and D pan, arrows move the cursor, P goes to the peak, 0 shows all.",
            crate::format::count(n_events.into())
        )
    };
    let window_attribute = move || drawn_window.get().map(|(from, to)| format!("{from}-{to}"));
    let n_marked = move || stage.marked.get().map(|marked| marked.n.to_string());
    view! {
        <div class="timeline">
            <canvas
                node_ref=canvas
                class="timeline-canvas"
                class:dragging=move || stage.hover.get().is_none()
                tabindex="0"
                role="img"
                aria-label=label
                aria-describedby="levels"
                data-testid="timeline"
                data-window=window_attribute
                data-marked=n_marked
                on:wheel=on_wheel
                on:pointerdown=on_down
                on:pointermove=on_move
                on:pointerup=on_up
                on:pointercancel=move |_| drag.set_value(None)
                on:pointerleave=move |_| stage.pointer_css.set(None)
            ></canvas>
            <Show when=move || stage.n_pictures.get() == 0>
                <div class="skeleton timeline-waiting"></div>
            </Show>
            <Tooltip stage size_css/>
        </div>
    }
}

/// The state that the picture shows at a point, and who owns the point.
fn whats_at(stage: Stage, position: f64, bytes: f64) -> Option<(u32, Option<Owner>)> {
    let picture = stage.top_picture()?;
    // A position inside the plot is not negative and no more than the number of states.
    let state = picture.state(position).unwrap_or(position as u32);
    Some((state, picture.owner(position, bytes)))
}

/// Keeps a signal at the canvas' size.
pub(crate) fn watch_size(canvas: NodeRef<html::Canvas>, size_css: RwSignal<(f64, f64)>) {
    let measure = move || {
        if let Some(Some(canvas)) = canvas.try_get_untracked() {
            let rect = canvas.get_bounding_client_rect();
            size_css.try_set((rect.width(), rect.height()));
        }
    };
    let changed = Closure::<dyn Fn()>::new(measure);
    let Ok(observer) = ResizeObserver::new(changed.as_ref().unchecked_ref()) else { return };
    let observer = StoredValue::new_local((observer, changed));
    Effect::new(move || {
        if let Some(canvas) = canvas.get() {
            observer.with_value(|(observer, _)| observer.observe(&canvas));
        }
    });
    on_cleanup(move || {
        observer.try_with_value(|(observer, _)| observer.disconnect());
    });
}

/// Paints at most once per frame of the screen, however often it is asked to.
#[derive(Clone, Copy)]
pub(crate) struct Frames(StoredValue<Rc<FramesInner>, LocalStorage>);

struct FramesInner {
    /// Number of the frame that is asked for.
    asked: Cell<Option<i32>>,
    callback: RefCell<Option<Closure<dyn Fn()>>>,
}

impl Drop for FramesInner {
    fn drop(&mut self) {
        if let Some(asked) = self.asked.get() {
            window().cancel_animation_frame(asked).ok();
        }
    }
}

impl Frames {
    pub(crate) fn new(paint: impl Fn() + 'static) -> Self {
        let inner = Rc::new(FramesInner { asked: Cell::new(None), callback: RefCell::new(None) });
        let weak = Rc::downgrade(&inner);
        let callback = Closure::<dyn Fn()>::new(move || {
            if let Some(inner) = weak.upgrade() {
                inner.asked.set(None);
                paint();
            }
        });
        inner.callback.replace(Some(callback));
        Self(StoredValue::new_local(inner))
    }

    pub(crate) fn request(self) {
        self.0.with_value(|inner| {
            if inner.asked.get().is_some() {
                return;
            }
            if let Some(callback) = &*inner.callback.borrow() {
                inner.asked.set(window().request_animation_frame(callback.as_ref().unchecked_ref()).ok());
            }
        });
    }
}
