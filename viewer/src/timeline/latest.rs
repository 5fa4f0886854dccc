//! One question at a time, and of those that wait only the latest.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use wasm_bindgen_futures::spawn_local;

/// Holds back questions while one is on its way, and forgets all but the latest of them.
pub(crate) struct Latest<Q> {
    wanted: RefCell<Option<Q>>,
    is_busy: Cell<bool>,
}

impl<Q: 'static> Latest<Q> {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self { wanted: RefCell::new(None), is_busy: Cell::new(false) })
    }

    /// Asks now or, while another question is on its way, after it.
    pub(crate) fn want<F: Future<Output = ()>>(self: &Rc<Self>, question: Q, ask: impl Fn(Q) -> F + 'static) {
        self.wanted.replace(Some(question));
        if self.is_busy.replace(true) {
            return;
        }
        let this = Rc::clone(self);
        spawn_local(async move {
            while let Some(question) = this.take() {
                ask(question).await;
            }
            this.is_busy.set(false);
        });
    }

    fn take(&self) -> Option<Q> {
        self.wanted.borrow_mut().take()
    }
}
