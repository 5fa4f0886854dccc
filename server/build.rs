//! Builds the server anew when a migration was added: `sqlx::migrate!` reads the folder, and cargo does not see that.

fn main() {
    println!("cargo::rerun-if-changed=migrations");
}
