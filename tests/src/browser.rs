//! A real browser without a screen, and a person's hands and eyes.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;
use thirtyfour::{ChromiumLikeCapabilities as _, prelude::*};

use crate::eventually;

/// Keeps the browser to itself: no network of its own, no first-run pages, no GPU.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// The window, CSS pixels.
const SIZE: (u32, u32) = (1440, 900);

/// A browser with a fresh profile; its processes end with it.
#[derive(Debug)]
pub struct Browser {
    driver: WebDriver,
    _process: DriverProcess,
    _profile: TempDir,
}

impl Browser {
    /// Opens a page in a fresh browser.
    pub async fn open(address: &str) -> Self {
        let profile = tempfile::tempdir().expect("a temporary folder can be made");
        let (process, port) = DriverProcess::start();
        let mut capabilities = DesiredCapabilities::chrome();
        let profile_flag = format!("--user-data-dir={}", profile.path().display());
        let size_flag = format!("--window-size={},{}", SIZE.0, SIZE.1);
        for flag in FLAGS.into_iter().chain([profile_flag.as_str(), size_flag.as_str()]) {
            capabilities.add_arg(flag).expect("a flag is text");
        }
        let driver = WebDriver::new(format!("http://127.0.0.1:{port}"), capabilities)
            .await
            .expect("the browser starts");
        // Ended by its process; without this a failing test would first wait for a polite good-bye.
        driver.clone().leak().expect("it has not quit yet");
        let browser = Self { driver, _process: process, _profile: profile };
        browser.goto(address).await;
        browser
    }

    /// Types an address.
    pub async fn goto(&self, address: &str) {
        self.driver.goto(address).await.unwrap_or_else(|error| panic!("cannot open {address}: {error}"));
    }

    /// The driver, for what is missing here.
    pub fn driver(&self) -> &WebDriver {
        &self.driver
    }

    /// Waits for the first element with this `data-testid`.
    pub async fn find(&self, test_id: &str) -> WebElement {
        self.find_css(&format!("[data-testid='{test_id}']")).await
    }

    /// Waits for the first element a CSS selector names.
    pub async fn find_css(&self, selector: &str) -> WebElement {
        eventually(selector, || async {
            match self.driver.find(By::Css(selector)).await {
                Ok(element) => Ok(element),
                Err(_) => Err(self.seen().await),
            }
        })
        .await
    }

    /// How many elements a CSS selector names right now.
    pub async fn count(&self, selector: &str) -> usize {
        self.driver.find_all(By::Css(selector)).await.expect("the browser counts").len()
    }

    /// Waits until the page's text contains `words`.
    pub async fn read(&self, words: &str) {
        eventually(&format!("the words `{words}`"), || async {
            let seen = self.seen().await;
            if seen.contains(words) { Ok(()) } else { Err(seen) }
        })
        .await;
    }

    /// The page's text and address, as they are now.
    pub async fn seen(&self) -> String {
        let text = self.run("return document.body.innerText", vec![]).await;
        format!("{} at {}", text.as_str().unwrap_or_default(), self.address().await)
    }

    /// What the address bar holds.
    pub async fn address(&self) -> String {
        self.driver.current_url().await.expect("the browser has an address").to_string()
    }

    /// Runs a script in the page.
    pub async fn run(&self, script: &str, arguments: Vec<Value>) -> Value {
        let result = self.driver.execute(script, arguments).await;
        result.unwrap_or_else(|error| panic!("a test's script failed: {error}")).json().clone()
    }

    /// Moves the mouse over a point of an element, CSS pixels from its upper left corner.
    pub async fn hover(&self, element: &WebElement, x_css: i64, y_css: i64) {
        let (left, top) = corner(element).await;
        self.driver
            .action_chain()
            .move_to(left + x_css, top + y_css)
            .perform()
            .await
            .expect("the mouse moves");
    }

    /// Presses a key with nothing particular in focus.
    pub async fn press(&self, key: &str) {
        self.driver.action_chain().send_keys(key).perform().await.expect("the keyboard works");
    }

    /// Drops files from the desktop onto the middle of the page.
    pub async fn drop_files(&self, files: &[&Path]) {
        let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        for kind in ["dragEnter", "dragOver", "drop"] {
            let data = json!({ "items": [], "files": files, "dragOperationsMask": 1 });
            let event = json!({ "type": kind, "x": SIZE.0 / 2, "y": SIZE.1 / 2, "data": data });
            self.driver.cdp().send_raw("Input.dispatchDragEvent", event).await.expect("files can be dropped");
        }
    }

    /// Different colors among the pixels of a canvas, up to a hundred; 1 is a blank one.
    pub async fn n_colors(&self, canvas: &WebElement) -> u64 {
        let script = "
            const canvas = arguments[0], copy = document.createElement('canvas');
            [copy.width, copy.height] = [canvas.width, canvas.height];
            if (!copy.width || !copy.height) return 0;
            const context = copy.getContext('2d');
            context.drawImage(canvas, 0, 0);
            const pixels = new Uint32Array(context.getImageData(0, 0, copy.width, copy.height).data.buffer);
            const colors = new Set();
            for (const pixel of pixels) { colors.add(pixel); if (colors.size >= 100) break; }
            return colors.size;";
        let element = canvas.to_json().expect("an element can be handed to a script");
        self.run(script, vec![element]).await.as_u64().expect("a number of colors")
    }

    /// Keeps a picture of the page, down to the last thing on it, as `NAME.png` in the folder that
    /// `TIDEGAUGE_SCREENSHOTS` names, if it names one.
    pub async fn screenshot(&self, name: &str) {
        let Some(folder) = env::var_os("TIDEGAUGE_SCREENSHOTS").map(PathBuf::from) else { return };
        fs::create_dir_all(&folder).expect("the folder for screenshots can be made");
        let script = "
            const things = [...document.querySelectorAll('body *')].filter((thing) => !thing.children.length);
            const bottom = Math.max(...things.map((thing) => thing.getBoundingClientRect().bottom));
            return Math.min(innerHeight, Math.ceil(bottom) + 20);";
        let height = self.run(script, vec![]).await;
        let clip = json!({ "x": 0, "y": 0, "width": SIZE.0, "height": height, "scale": 1 });
        let answer = self.driver.cdp().send_raw("Page.captureScreenshot", json!({ "clip": clip })).await;
        let answer = answer.expect("the browser takes a picture");
        let png = STANDARD
            .decode(answer["data"].as_str().expect("a picture is base64"))
            .expect("a picture is base64");
        fs::write(folder.join(format!("{name}.png")), png).expect("the picture can be kept");
    }
}

async fn corner(element: &WebElement) -> (i64, i64) {
    let rect = element.rect().await.expect("an element has a place");
    #[expect(clippy::cast_possible_truncation, reason = "CSS pixels of a window")]
    (rect.x as i64, rect.y as i64)
}

/// chromedriver and the browser it starts, one process group.
#[derive(Debug)]
struct DriverProcess(Child);

impl DriverProcess {
    fn start() -> (Self, u16) {
        let mut process = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("chromedriver starts");
        let mut stdout = BufReader::new(process.stdout.take().expect("its output is piped"));
        let process = Self(process);
        let mut line = String::new();
        loop {
            line.clear();
            let n_bytes = stdout.read_line(&mut line).expect("chromedriver prints text");
            assert!(n_bytes > 0, "chromedriver ended before it listened");
            let port = line.trim().strip_prefix("ChromeDriver was started successfully on port ");
            if let Some(port) = port.and_then(|port| port.trim_end_matches('.').parse().ok()) {
                return (process, port);
            }
        }
    }
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        // Without a polite quit the browser would outlive its driver; the group is ours alone.
        let group = format!("-{}", self.0.id());
        Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().ok();
        self.0.wait().ok();
    }
}
