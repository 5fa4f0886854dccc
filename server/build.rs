//! Builds the server anew when a migration was added: `sqlx::migrate!` reads the folder, and cargo does not see that.

fn main() {
    #[expect(clippy::print_stdout, reason = "this is how a build script talks to cargo")]
    {
        println!("cargo::rerun-if-changed=migrations");
    }
}
