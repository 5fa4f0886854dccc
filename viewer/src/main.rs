//! The dashboard's page.

fn main() {
    #[cfg(target_arch = "wasm32")]
    tidegauge_viewer::app::mount();
}
