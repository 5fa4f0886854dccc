//! The page's side of the worker, which opens snapshots and draws bands off the main thread.
//!
//! A question is `{id, kind, question, file?}` with the question as JSON; the answer is `{id, ok, answer,
//! …arrays}` or `{id, ok: false, problem}`; while a file is opened `{id, progress}` come before it.
//!
//! There is one worker, and it is kept: a file can be opened with the server gone. It holds one snapshot at a
//! time; an [`Open`] is the right to ask about that one, and worth nothing once another is opened.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use js_sys::{Float64Array, Function, Object, Reflect, Uint8Array, Uint8ClampedArray, Uint32Array};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegauge_api::breakdown::Breakdown;
use tidegauge_api::holders::{HoldersAnswer, HoldersQuestion, MarkedQuestion};
use tidegauge_api::memory::{MemoryAnswer, MemoryQuestion};
use tidegauge_api::picture::{
    AllocationAnswer, AllocationQuestion, ArchiveListing, LevelsAnswer, LevelsQuestion, Opened,
    PictureAnswer, PictureQuestion,
};
use wasm_bindgen::prelude::Closure;
use wasm_bindgen::{JsCast as _, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{File, MessageEvent, WorkerOptions, WorkerType};

use crate::memory::Blocks;

/// Where the worker's script lies.
const SCRIPT: &str = "/worker.js";

/// What a long answer is busy with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Doing {
    /// "Fetching", "Reading", …
    pub(crate) doing: String,
    /// Bytes done.
    pub(crate) done: f64,
    /// Bytes in all, when known.
    pub(crate) total: Option<f64>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The engine's sentence.
    Refused(String),
    /// The worker ended in the middle of it.
    Died,
    /// Another snapshot was opened meanwhile; nobody waits for this answer any more.
    Superseded,
}

/// A picture as the worker sends it.
pub(crate) struct Drawn {
    pub(crate) answer: PictureAnswer,
    pub(crate) pixels: Uint8ClampedArray,
    pub(crate) ids: Uint32Array,
}

/// A worker with at most one snapshot in it.
pub(crate) struct Engine {
    worker: web_sys::Worker,
    shared: Rc<Shared>,
    /// Kept for as long as the worker may call them.
    _on_message: Closure<dyn Fn(MessageEvent)>,
    _on_error: Closure<dyn Fn(web_sys::Event)>,
}

type OnDoing = Box<dyn Fn(Doing)>;

#[derive(Default)]
struct Shared {
    /// Whom to tell the answer, by number of the question. The page never has more than a handful on the way.
    waiting: RefCell<BTreeMap<u32, Function>>,
    /// Whom to tell how far the opening is.
    on_doing: RefCell<Option<OnDoing>>,
    n_questions: Cell<u32>,
    n_opened: Cell<u32>,
    is_dead: Cell<bool>,
}

/// A snapshot the worker holds.
pub(crate) struct Open {
    engine: Rc<Engine>,
    /// The how-manyth it is of this worker.
    number: u32,
    /// What is in it.
    pub(crate) opened: Opened,
}

impl Engine {
    /// Starts a worker.
    pub(crate) fn start() -> Result<Self, Trouble> {
        let options = WorkerOptions::new();
        options.set_type(WorkerType::Module);
        let worker = web_sys::Worker::new_with_options(SCRIPT, &options).map_err(|_error| Trouble::Died)?;
        let shared = Rc::new(Shared::default());
        let on_message = Closure::<dyn Fn(MessageEvent)>::new({
            let shared = Rc::clone(&shared);
            move |event: MessageEvent| shared.hear(&event.data())
        });
        let on_error = Closure::<dyn Fn(web_sys::Event)>::new({
            let shared = Rc::clone(&shared);
            move |_event: web_sys::Event| shared.die()
        });
        worker.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        worker.set_onerror(Some(on_error.as_ref().unchecked_ref()));
        Ok(Self { worker, shared, _on_message: on_message, _on_error: on_error })
    }

    /// True once the worker has ended; then only another one helps.
    pub(crate) fn is_dead(&self) -> bool {
        self.shared.is_dead.get()
    }

    /// Opens a file of this computer, or one snapshot of an archive. `on_doing` is told how far it is.
    pub(crate) async fn open_file(
        self: Rc<Self>,
        file: &File,
        member: Option<&str>,
        on_doing: impl Fn(Doing) + 'static,
    ) -> Result<Open, Trouble> {
        self.open("open_file", &serde_json::json!({ "member": member }), Some(file), on_doing).await
    }

    /// The snapshots of an archive; none when the file is something else.
    pub(crate) async fn list_archive(&self, file: &File) -> Result<Option<ArchiveListing>, Trouble> {
        answer(&self.ask("list_archive", &serde_json::json!({}), Some(file)).await?)
    }

    /// Opens a snapshot of the server by its pack, which the worker fetches itself.
    pub(crate) async fn open_snapshot(
        self: Rc<Self>,
        pack: &str,
        file: &str,
        bytes: u64,
        on_doing: impl Fn(Doing) + 'static,
    ) -> Result<Open, Trouble> {
        let question = serde_json::json!({ "pack": pack, "file": file, "bytes": bytes });
        self.open("open_snapshot", &question, None, on_doing).await
    }

    async fn open(
        self: Rc<Self>,
        kind: &str,
        question: &impl Serialize,
        file: Option<&File>,
        on_doing: impl Fn(Doing) + 'static,
    ) -> Result<Open, Trouble> {
        let number = self.shared.n_opened.get().wrapping_add(1);
        self.shared.n_opened.set(number);
        self.shared.on_doing.replace(Some(Box::new(on_doing)));
        let reply = self.ask(kind, question, file).await?;
        if self.shared.n_opened.get() != number {
            return Err(Trouble::Superseded);
        }
        self.shared.on_doing.replace(None);
        Ok(Open { engine: self, number, opened: answer(&reply)? })
    }

    async fn ask(
        &self,
        kind: &str,
        question: &impl Serialize,
        file: Option<&File>,
    ) -> Result<JsValue, Trouble> {
        if self.is_dead() {
            return Err(Trouble::Died);
        }
        let id = self.shared.n_questions.get().wrapping_add(1);
        self.shared.n_questions.set(id);
        let question = serde_json::to_string(question).map_err(|error| nonsense(&error.to_string()))?;
        let message = Object::new();
        let set = |name: &str, value: &JsValue| Reflect::set(&message, &JsValue::from_str(name), value).ok();
        set("id", &JsValue::from(id));
        set("kind", &JsValue::from_str(kind));
        set("question", &JsValue::from_str(&question));
        if let Some(file) = file {
            set("file", file);
        }
        let answered = js_sys::Promise::new(&mut |resolve, _reject| {
            self.shared.waiting.borrow_mut().insert(id, resolve);
        });
        self.worker.post_message(&message).map_err(|_error| Trouble::Died)?;
        let reply = JsFuture::from(answered).await.map_err(|_error| Trouble::Died)?;
        if reply.is_undefined() {
            return Err(Trouble::Died);
        }
        if part(&reply, "ok").is_truthy() {
            return Ok(reply);
        }
        let problem = part(&reply, "problem").as_string();
        Err(problem.map_or_else(|| nonsense("a refusal without a sentence"), Trouble::Refused))
    }
}

impl Open {
    /// The stacked picture of a window.
    pub(crate) async fn picture(&self, question: PictureQuestion) -> Result<Drawn, Trouble> {
        let reply = self.ask("picture", &question).await?;
        let (Ok(pixels), Ok(ids)) = (part(&reply, "pixels").dyn_into(), part(&reply, "ids").dyn_into())
        else {
            return Err(nonsense("a picture without pixels"));
        };
        Ok(Drawn { answer: answer(&reply)?, pixels, ids })
    }

    /// The levels at a state.
    pub(crate) async fn levels(&self, question: LevelsQuestion) -> Result<LevelsAnswer, Trouble> {
        answer(&self.ask("levels", &question).await?)
    }

    /// Segments and blocks at a state.
    pub(crate) async fn memory(&self, question: MemoryQuestion) -> Result<(MemoryAnswer, Blocks), Trouble> {
        let reply = self.ask("memory", &question).await?;
        let cells = part(&reply, "cells").dyn_into().map(|cells: Uint32Array| cells.to_vec());
        let sizes = part(&reply, "sizes").dyn_into().map(|sizes: Float64Array| sizes.to_vec());
        let blocks =
            cells.ok().zip(sizes.ok()).and_then(|(cells, sizes)| Blocks::from_numbers(&cells, &sizes));
        Ok((answer(&reply)?, blocks.ok_or_else(|| nonsense("memory without its blocks"))?))
    }

    /// The stacks that hold most at a state.
    pub(crate) async fn top_stacks(&self, question: LevelsQuestion) -> Result<Breakdown, Trouble> {
        answer(&self.ask("top_stacks", &question).await?)
    }

    /// Everything known of an allocation.
    pub(crate) async fn allocation(&self, question: AllocationQuestion) -> Result<AllocationAnswer, Trouble> {
        answer(&self.ask("allocation", &question).await?)
    }

    /// Who holds the memory at a state.
    pub(crate) async fn holders(&self, question: HoldersQuestion) -> Result<HoldersAnswer, Trouble> {
        answer(&self.ask("holders", &question).await?)
    }

    /// One bit for each allocation, lowest first: whether it is meant.
    pub(crate) async fn marked(&self, question: MarkedQuestion) -> Result<Vec<u8>, Trouble> {
        let reply = self.ask("marked", &question).await?;
        let bits = part(&reply, "bits").dyn_into::<Uint8Array>();
        bits.map(|bits| bits.to_vec()).map_err(|_other| nonsense("marks without bits"))
    }

    async fn ask(&self, kind: &str, question: &impl Serialize) -> Result<JsValue, Trouble> {
        let is_current = || self.engine.shared.n_opened.get() == self.number;
        if !is_current() {
            return Err(Trouble::Superseded);
        }
        let reply = self.engine.ask(kind, question, None).await;
        if is_current() { reply } else { Err(Trouble::Superseded) }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.worker.set_onmessage(None);
        self.worker.set_onerror(None);
        self.worker.terminate();
        self.shared.die();
    }
}

impl Shared {
    fn hear(&self, message: &JsValue) {
        let progress = part(message, "progress");
        if progress.is_object() {
            if let (Some(doing), Some(tell)) = (doing_from_js(&progress), &*self.on_doing.borrow()) {
                tell(doing);
            }
            return;
        }
        let Some(id) = part(message, "id").as_f64() else { return };
        let resolve = self.waiting.borrow_mut().remove(&(id as u32));
        if let Some(resolve) = resolve {
            resolve.call1(&JsValue::NULL, message).ok();
        }
    }

    /// Answers everyone who still waits with nothing.
    fn die(&self) {
        self.is_dead.set(true);
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for resolve in waiting.into_values() {
            resolve.call1(&JsValue::NULL, &JsValue::UNDEFINED).ok();
        }
    }
}

fn part(object: &JsValue, name: &str) -> JsValue {
    Reflect::get(object, &JsValue::from_str(name)).unwrap_or(JsValue::UNDEFINED)
}

fn doing_from_js(progress: &JsValue) -> Option<Doing> {
    Some(Doing {
        doing: part(progress, "doing").as_string()?,
        done: part(progress, "done").as_f64()?,
        total: part(progress, "total").as_f64(),
    })
}

fn answer<T: DeserializeOwned>(reply: &JsValue) -> Result<T, Trouble> {
    let text = part(reply, "answer").as_string().ok_or_else(|| nonsense("no answer in it"))?;
    serde_json::from_str(&text).map_err(|error| nonsense(&error.to_string()))
}

/// The worker speaks another language than the page: they come from two builds.
fn nonsense(what: &str) -> Trouble {
    crate::browser::log(&format!("cannot read the worker's answer: {what}"));
    Trouble::Refused("The page and its reader do not belong together: reload the page".to_owned())
}
