// Starts the page. A file of its own because inline scripts are not allowed here.

// The chosen theme, before the first paint; see viewer/src/browser/theme.rs.
try {
  const theme = localStorage.getItem("tidegauge-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing follows the system.
}

try {
  const { default: init } = await import("/page.js");
  await init({ module_or_path: "/page_bg.wasm" });
} catch (error) {
  console.error(error);
  const words = document.getElementById("loading");
  if (words) words.textContent = "The dashboard could not be loaded: reload the page, or try a newer browser.";
}
