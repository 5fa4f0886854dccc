//! Helpers for tests of the whole product: a server, a browser, a wire between them, and patience.
//!
//! They stand for a person at a desk, so they panic with a sentence where a person would give up.
//! `cargo xtask test` builds what they start and says where it is.

pub mod patience;
pub mod place;
pub mod server;
pub mod browser;
pub mod wire;
pub mod training;
pub mod framed;

pub use browser::Browser;
pub use patience::eventually;
pub use server::Server;
pub use training::Training;
pub use wire::Wire;
