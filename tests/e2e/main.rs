//! What a person does with the whole product, from the outside: real server, real browser, real snapshots.

#![expect(clippy::unwrap_used, reason = "a test fails by it, with a message")]

mod push_to_picture;
mod upload_by_hand;
mod open_without_upload;
mod who_holds_it;
mod memory_at_cursor;
mod sampled_run;
mod bad_file;
mod command_line;
mod training;
mod frameworks;
