//! Memory at the cursor: segments as rows, blocks to scale, and the same as a table.

use std::rc::Rc;

use leptos::html;
use leptos::prelude::*;
use tidegauge_api::breakdown::Breakdown;
use tidegauge_api::memory::{Block, BlockKind, MemoryAnswer, MemoryQuestion, Order, Scale};
use tidegauge_api::picture::LevelsQuestion;
use wasm_bindgen::{JsCast as _, JsValue};
use wasm_bindgen_futures::spawn_local;
use web_sys::{CanvasRenderingContext2d, HtmlCanvasElement, KeyboardEvent, PointerEvent};

use super::size::Size;
use crate::app::App;
use crate::format::{bytes, count, exact_bytes};
use crate::memory::{Blocks, Walk, belonging, block_phrase, left_out, out_of_memory, stream_name, summary};
use crate::timeline::{Frames, Inks, Latest, Stage, context, watch_size};
use crate::worker::Trouble;

/// Height of a row, and of the bar in it, CSS pixels.
const ROW_CSS: f64 = 18.0;
const BAR_CSS: f64 = 14.0;

/// Room for a row's name on the left, and beside the bars on the right, CSS pixels.
const NAME_CSS: f64 = 160.0;
const RIGHT_CSS: f64 = 16.0;

/// Rows in view at once; more are scrolled to.
const N_ROWS_IN_VIEW: f64 = 20.0;

/// A picture with its answer.
pub(crate) struct Told {
    answer: MemoryAnswer,
    blocks: Blocks,
}

/// What this part of the page knows.
#[derive(Clone, Copy)]
struct Pane {
    stage: Stage,
    told: RwSignal<Option<Rc<Told>>, LocalStorage>,
    scale: RwSignal<Scale>,
    order: RwSignal<Order>,
    size_css: RwSignal<(f64, f64)>,
    scrolled_css: RwSignal<f64>,
    /// The number of the block that is named below the picture.
    named: RwSignal<Option<usize>>,
}

/// Segments and blocks at the cursor of a stage.
#[component]
pub(crate) fn MemoryMap(stage: Stage) -> impl IntoView {
    let pane = Pane {
        stage,
        told: RwSignal::new_local(None),
        scale: RwSignal::new(Scale::Common),
        order: RwSignal::new(Order::Largest),
        size_css: RwSignal::new((0.0, 0.0)),
        scrolled_css: RwSignal::new(0.0),
        named: RwSignal::new(None),
    };
    ask(pane);
    let words = move || pane.told.get().map(|told| summary(&told.answer));
    let left_out = move || pane.told.get().map(|told| left_out(&told.answer).join(" · "));
    view! {
        <section class="memory" aria-label="Memory at the cursor" data-testid="memory">
            <div class="memory-head">
                <h2>"Memory at the cursor"</h2>
                <Choices pane/>
            </div>
            <p id="memory-words" data-testid="memory-words">{words}</p>
            <OutOfMemory pane/>
            <Picture pane/>
            <p class="dim">{left_out}</p>
            <Table pane/>
        </section>
    }
}

/// Asks again whenever the cursor, the width or a choice changes.
fn ask(pane: Pane) {
    let latest = Latest::new();
    // The height follows from the answer, and must not ask again.
    let width_css = Memo::new(move |_| pane.size_css.get().0);
    Effect::new(move || {
        let width_css = width_css.get();
        if width_css < 1.0 {
            return;
        }
        let question = MemoryQuestion {
            device: pane.stage.device.with_value(|device| device.device),
            state: pane.stage.cursor.get(),
            width: ((width_css - NAME_CSS - RIGHT_CSS) * window().device_pixel_ratio()).max(1.0) as u32,
            scale: pane.scale.get(),
            order: pane.order.get(),
            pinned: pane.stage.pinned.get(),
        };
        latest.want(question, move |question| async move {
            let Some(open) = pane.stage.try_open() else { return };
            match open.memory(question).await {
                Ok((answer, blocks)) => {
                    pane.named.try_set(None);
                    pane.told.try_set(Some(Rc::new(Told { answer, blocks })));
                }
                Err(trouble) => pane.stage.tell(trouble),
            }
        });
    });
}

/// How rows are ordered and how wide they are.
#[component]
fn Choices(pane: Pane) -> impl IntoView {
    let on_order = move |event| {
        pane.order.set(if event_target_value(&event) == "address" { Order::Address } else { Order::Largest });
    };
    let on_scale = move |event| {
        pane.scale.set(if event_target_value(&event) == "own" { Scale::Own } else { Scale::Common });
    };
    view! {
        <label>
            "Order "
            <select on:change=on_order>
                <option value="largest">"largest first"</option>
                <option value="address">"by address"</option>
            </select>
        </label>
        <label>
            "Width "
            <select on:change=on_scale data-testid="memory-scale">
                <option value="common">"to scale"</option>
                <option value="own">"every row full"</option>
            </select>
        </label>
    }
}

/// The canvas in its scrolled frame, and the name of what is pointed at.
#[component]
fn Picture(pane: Pane) -> impl IntoView {
    let app = App::here();
    let stage = pane.stage;
    let canvas = NodeRef::<html::Canvas>::new();
    let scroller = NodeRef::<html::Div>::new();
    watch_size(canvas, pane.size_css);

    let n_rows = Memo::new(move |_| pane.told.get().map_or(0, |told| told.answer.segments.len()));
    let height_css = move || n_rows.get() as f64 * ROW_CSS;
    let frame = Frames::new(move || {
        let (Some(canvas), Some(told)) = (canvas.get_untracked(), pane.told.get_untracked()) else { return };
        let painter = Painter {
            told: &told,
            size_css: pane.size_css.get_untracked(),
            scrolled_css: pane.scrolled_css.get_untracked(),
            named: pane.named.get_untracked(),
        };
        if let Err(error) = painter.paint(&canvas) {
            crate::browser::log(&format!("cannot paint the blocks: {error:?}"));
        }
    });
    Effect::new(move || {
        pane.told.track();
        pane.named.track();
        pane.scrolled_css.track();
        pane.size_css.track();
        app.theme.track();
        frame.request();
    });

    // What is pinned elsewhere comes into view; a click here is in view already.
    let scroll_to = move |row: u32| {
        let Some(scroller) = scroller.get_untracked() else { return };
        let (top, height) = (f64::from(row) * ROW_CSS, f64::from(scroller.client_height()));
        let at = f64::from(scroller.scroll_top());
        if top < at || top + ROW_CSS > at + height {
            scroller.set_scroll_top((top - height / 2.0).max(0.0) as i32);
        }
    };
    Effect::new(move |before: Option<Option<u32>>| {
        let (pinned, spot) =
            pane.told.get().map(|told| (told.answer.question.pinned, told.answer.pinned)).unwrap_or_default();
        if let Some([row, _, _]) = spot.filter(|_| before.flatten() != pinned) {
            scroll_to(row);
        }
        pinned
    });

    let name = move |at: Option<usize>| {
        if pane.named.get_untracked() == at {
            return;
        }
        pane.named.set(at);
        let Some(told) = pane.told.get_untracked() else { return };
        if let Some(id) = at.and_then(|at| told.blocks.get(at)?.allocation) {
            stage.want_hovered(id);
        }
    };
    let pointed = move |event: &PointerEvent| {
        let told = pane.told.get_untracked()?;
        let (x_css, y_css) = (f64::from(event.offset_x()) - NAME_CSS, f64::from(event.offset_y()));
        let row = (y_css + pane.scrolled_css.get_untracked()) / ROW_CSS;
        let x = x_css * window().device_pixel_ratio();
        (x >= 0.0).then(|| told.blocks.at(row as u32, x as u32)).flatten()
    };
    let pin = move |at: Option<usize>| {
        let told = pane.told.get_untracked();
        if let Some(id) = told.and_then(|told| told.blocks.get(at?)?.allocation) {
            stage.pinned.set(Some(id));
        }
    };
    let on_key = move |event: KeyboardEvent| {
        if event.ctrl_key() || event.meta_key() || event.alt_key() {
            return;
        }
        if event.key() == "Enter" {
            pin(pane.named.get_untracked());
        } else if let Some(step) = Walk::from_key(&event.key()) {
            let Some(told) = pane.told.get_untracked() else { return };
            let at = told.blocks.walk(pane.named.get_untracked(), step);
            if let Some(block) = at.and_then(|at| told.blocks.get(at)) {
                scroll_to(block.row);
            }
            name(at);
        } else {
            return;
        }
        event.prevent_default();
    };
    let state = move || pane.told.get().map(|told| told.answer.question.state);
    view! {
        <div
            node_ref=scroller
            class="memory-rows"
            tabindex="0"
            role="group"
            aria-label="Segments and their blocks. Keys: up and down change the segment, comma and full stop the block, Enter selects its allocation, arrows left and right move the cursor."
            aria-describedby="memory-words memory-block"
            style=move || format!("height:{:.0}px", height_css().min(N_ROWS_IN_VIEW * ROW_CSS))
            data-testid="memory-rows"
            data-state=state
            on:scroll=move |_| if let Some(scroller) = scroller.get_untracked() { pane.scrolled_css.set(scroller.scroll_top().into()) }
            on:keydown=on_key
        >
            <div style=move || format!("height:{:.0}px", height_css())>
                <canvas
                    node_ref=canvas
                    aria-hidden="true"
                    data-testid="memory-canvas"
                    style=move || format!("height:{:.0}px", height_css().min(N_ROWS_IN_VIEW * ROW_CSS))
                    on:pointermove=move |event| name(pointed(&event))
                    on:pointerleave=move |_| name(None)
                    on:click=move |event| pin(event.dyn_ref().and_then(pointed))
                ></canvas>
            </div>
        </div>
        <p id="memory-block" class="memory-block" aria-live="polite" data-testid="memory-block">{move || named(pane)}</p>
    }
}

/// What is pointed at, in words.
fn named(pane: Pane) -> AnyView {
    let found = pane.told.get().zip(pane.named.get()).and_then(|(told, at)| {
        let block = *told.blocks.get(at)?;
        let segment = told.answer.segments.get(block.row as usize)?.clone();
        Some((block, segment))
    });
    let Some((block, segment)) = found else {
        let keys = view! {
            <span class="dim">
                "Point at a block to name it, click to select its allocation · "
                <kbd>"↑"</kbd> <kbd>"↓"</kbd> " segment · " <kbd>","</kbd> <kbd>"."</kbd> " block · " <kbd>"Enter"</kbd> " select"
            </span>
        };
        return keys.into_any();
    };
    let hovered = pane.stage.hovered.get().filter(|told| Some(told.id) == block.allocation);
    let details = hovered.map(|told| {
        let frame = told.stack.first();
        let place = frame
            .map(|frame| format!("{} {}", crate::story::short_frame_location(frame), frame.name))
            .or(told.stack_missing.clone());
        let n_events = pane.stage.device.with_value(|device| device.n_events);
        let life = crate::story::allocation_lifetime(&told, n_events);
        format!(" · {} · {life}", place.unwrap_or_default())
    });
    let place = Some(belonging(&segment)).filter(|text| !text.is_empty()).map(|text| format!(" · {text}"));
    view! { <span>{block_phrase(&block, &segment)}</span> <span class="dim">{place}{details}</span> }
        .into_any()
}

/// Where the event at the cursor ran out of memory: why.
#[component]
fn OutOfMemory(pane: Pane) -> impl IntoView {
    let top = RwSignal::new(None::<Breakdown>);
    let oom_state = Memo::new(move |_| {
        let told = pane.told.get()?;
        told.answer.oom.map(|_| told.answer.question.state)
    });
    Effect::new(move || {
        top.set(None);
        let (Some(state), Some(open)) = (oom_state.get(), pane.stage.try_open()) else { return };
        let device = pane.stage.device.with_value(|device| device.device);
        spawn_local(async move {
            match open.top_stacks(LevelsQuestion { device, state }).await {
                Ok(answer) if oom_state.try_get_untracked() == Some(Some(state)) => {
                    top.try_set(Some(answer));
                }
                Ok(_) | Err(Trouble::Superseded) => {}
                Err(trouble) => pane.stage.tell(trouble),
            }
        });
    });
    let stacks = move || {
        let top = top.get().filter(|top| !top.groups.is_empty())?;
        let rows: Vec<_> = top
            .groups
            .into_iter()
            .map(
                |group| view! { <li><Size bytes=group.total.allocated/> " " <code>{group.label}</code></li> },
            )
            .collect();
        Some(view! { <p>"These stacks hold most:"</p> <ol>{rows}</ol> })
    };
    move || {
        let told = pane.told.get()?;
        let oom = told.answer.oom?;
        let sentences: Vec<_> =
            out_of_memory(&oom, &told.answer).into_iter().map(|said| view! { <p>{said}"."</p> }).collect();
        Some(view! {
            <div class="problem" data-testid="out-of-memory">
                <h3>"Out of memory"</h3>
                {sentences}
                {stacks}
            </div>
        })
    }
}

/// The rows as a table, for whoever reads numbers; made only while it is open.
#[component]
fn Table(pane: Pane) -> impl IntoView {
    let is_open = RwSignal::new(false);
    let on_toggle = move |event: web_sys::Event| {
        let element = event.target().and_then(|target| target.dyn_into::<web_sys::Element>().ok());
        is_open.set(element.is_some_and(|element| element.has_attribute("open")));
    };
    let table = move || {
        let told = is_open.get().then(|| pane.told.get()).flatten()?;
        Some(table(&told.answer))
    };
    view! {
        <details on:toggle=on_toggle data-testid="memory-table">
            <summary>"Segments as a table"</summary>
            <div class="table-scroll">{table}</div>
        </details>
    }
}

fn table(answer: &MemoryAnswer) -> impl IntoView + use<> {
    let rows: Vec<_> = answer
        .segments
        .iter()
        .map(|segment| {
            view! {
                <tr>
                    <th scope="row"><code>{segment.address.clone()}</code></th>
                    <td><Size bytes=segment.size/></td>
                    <td><Size bytes=segment.active/></td>
                    <td><Size bytes=segment.largest_free/></td>
                    <td>{segment.pool.clone().unwrap_or_else(|| "unknown".to_owned())}{segment.is_expandable.then_some(", expandable")}</td>
                    <td>{stream_name(segment)}</td>
                </tr>
            }
        })
        .collect();
    let others = (answer.others.segments > 0).then(|| {
        view! {
            <tr>
                <th scope="row">{format!("{} smaller ones", count(answer.others.segments))}</th>
                <td><Size bytes=answer.others.size/></td>
                <td><Size bytes=answer.others.active/></td>
                <td></td><td></td><td></td>
            </tr>
        }
    });
    view! {
        <table class="segments">
            <thead>
                <tr>
                    <th scope="col">"address"</th>
                    <th scope="col" class="number">"size"</th>
                    <th scope="col" class="number">"in use"</th>
                    <th scope="col" class="number">"largest gap"</th>
                    <th scope="col">"pool"</th>
                    <th scope="col">"stream"</th>
                </tr>
            </thead>
            <tbody>{rows}{others}</tbody>
            <tfoot>
                <tr>
                    <th scope="row">"all"</th>
                    <td title=exact_bytes(answer.total.size) data-testid="memory-reserved">{bytes(answer.total.size)}</td>
                    <td title=exact_bytes(answer.total.active) data-testid="memory-active">{bytes(answer.total.active)}</td>
                    <td></td><td></td><td></td>
                </tr>
            </tfoot>
        </table>
    }
}

/// Draws the rows in view.
struct Painter<'a> {
    told: &'a Told,
    size_css: (f64, f64),
    scrolled_css: f64,
    named: Option<usize>,
}

impl Painter<'_> {
    fn paint(&self, canvas: &HtmlCanvasElement) -> Result<(), JsValue> {
        let ratio = window().device_pixel_ratio();
        let size = ((self.size_css.0 * ratio).round() as u32, (self.size_css.1 * ratio).round() as u32);
        if (canvas.width(), canvas.height()) != size {
            canvas.set_width(size.0);
            canvas.set_height(size.1);
        }
        let (context, inks) = (context(canvas)?, Inks::from_style());
        context.clear_rect(0.0, 0.0, size.0.into(), size.1.into());
        let first = (self.scrolled_css / ROW_CSS) as u32;
        let last = ((self.scrolled_css + self.size_css.1) / ROW_CSS).ceil() as u32;
        for row in first..last.min(self.told.answer.segments.len() as u32) {
            self.name(&context, &inks, row, ratio)?;
        }
        let shown = self.told.blocks.in_rows(first..last);
        for block in &self.told.blocks.all()[shown] {
            self.block(&context, &inks, block, ratio);
        }
        if let Some(block) = self.named.and_then(|at| self.told.blocks.get(at)) {
            self.outline(&context, &inks.text, (block.row, block.x, block.width), ratio);
        }
        if let Some([row, x, width]) = self.told.answer.pinned {
            self.outline(&context, &inks.accent, (row, x, width), ratio);
        }
        Ok(())
    }

    /// Upper edge of a row's bar and its height, device pixels.
    fn bar(&self, row: u32, ratio: f64) -> (f64, f64) {
        let top = f64::from(row) * ROW_CSS - self.scrolled_css + (ROW_CSS - BAR_CSS) / 2.0;
        ((top * ratio).round(), (BAR_CSS * ratio).round())
    }

    fn name(
        &self,
        context: &CanvasRenderingContext2d,
        inks: &Inks,
        row: u32,
        ratio: f64,
    ) -> Result<(), JsValue> {
        let segment = &self.told.answer.segments[row as usize];
        let (top, height) = self.bar(row, ratio);
        context.set_font(&format!("{}px system-ui, sans-serif", 12.0 * ratio));
        context.set_text_baseline("middle");
        context.set_text_align("right");
        context.set_fill_style_str(&inks.text);
        let middle = top + height / 2.0;
        context.fill_text(&bytes(segment.size), 64.0 * ratio, middle)?;
        context.set_text_align("left");
        context.set_fill_style_str(&inks.dim);
        // Squeezed where it is longer than there is room.
        let room = (NAME_CSS - 64.0 - 16.0) * ratio;
        context.fill_text_with_max_width(&belonging(segment), 72.0 * ratio, middle, room)
    }

    fn block(&self, context: &CanvasRenderingContext2d, inks: &Inks, block: &Block, ratio: f64) {
        let (top, height) = self.bar(block.row, ratio);
        let left = (NAME_CSS * ratio).round() + f64::from(block.x);
        let width = f64::from(block.width);
        let [red, green, blue] = block.color;
        match block.kind {
            BlockKind::Free => return self.gap(context, inks, (left, top, width, height)),
            BlockKind::Several => {
                // As full as its blocks are, from below.
                self.gap(context, inks, (left, top, width, height));
                let full = (height * block.active as f64 / block.bytes.max(1) as f64).round();
                context.set_fill_style_str(&inks.dim);
                context.fill_rect(left, top + height - full, width, full);
                return;
            }
            BlockKind::Allocated | BlockKind::Pending => {}
        }
        context.set_fill_style_str(&format!("rgb({red},{green},{blue})"));
        context.fill_rect(left, top, width, height);
        context.set_fill_style_str(&inks.paper);
        // Rounding is paler, waiting is hatched, and a seam parts neighbors of one color where there is room.
        context.set_global_alpha(0.6);
        let waste = f64::from(block.waste);
        context.fill_rect(left + width - waste, top, waste, height);
        context.set_global_alpha(1.0);
        if block.kind == BlockKind::Pending {
            hatch(context, &inks.paper, (left, top, width, height), ratio);
        }
        if width > 3.0 {
            context.fill_rect(left + width - 1.0, top, 1.0, height);
        }
    }

    /// Free memory is a hollow.
    fn gap(
        &self,
        context: &CanvasRenderingContext2d,
        inks: &Inks,
        (left, top, width, height): (f64, f64, f64, f64),
    ) {
        let has_room = width > 2.0;
        context.set_fill_style_str(if has_room { &inks.dim } else { &inks.line });
        context.fill_rect(left, top, width, height);
        if has_room {
            context.set_fill_style_str(&inks.paper);
            context.fill_rect(left, top + 1.0, width - 1.0, height - 2.0);
        }
    }

    /// A frame around a place, wide enough to be seen.
    fn outline(
        &self,
        context: &CanvasRenderingContext2d,
        ink: &str,
        (row, x, width): (u32, u32, u32),
        ratio: f64,
    ) {
        let (top, height) = self.bar(row, ratio);
        let line = (2.0 * ratio).round();
        let left = (NAME_CSS * ratio).round() + f64::from(x);
        context.set_stroke_style_str(ink);
        context.set_line_width(line);
        let half = line / 2.0;
        context.stroke_rect(left - half, top - half, f64::from(width) + line, height + line);
    }
}

/// Slanted lines over a rectangle.
fn hatch(
    context: &CanvasRenderingContext2d,
    ink: &str,
    (left, top, width, height): (f64, f64, f64, f64),
    ratio: f64,
) {
    context.save();
    context.begin_path();
    context.rect(left, top, width, height);
    context.clip();
    context.begin_path();
    let mut x = left - height;
    while x < left + width {
        context.move_to(x, top + height);
        context.line_to(x + height, top);
        x += 5.0 * ratio;
    }
    context.set_stroke_style_str(ink);
    context.set_line_width(1.5 * ratio);
    context.stroke();
    context.restore();
}
