//! Measures what users wait for, and makes the file it is measured on.
//!
//! Each call measures once, in a process of its own, and prints seconds and the highest memory in KiB.

#![expect(clippy::print_stdout, reason = "the numbers are what it is for")]

use std::{
    env,
    fs::{self, File},
    hint::black_box,
    io::{self, BufWriter, Write as _},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use tidegauge_simulated::trainer::{self, Recording};
use tidegauge_snapshot::{
    Snapshot, findings, pack,
    picture::{Index, Palette, Raster, View},
    read, replay,
};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments.as_slice() {
        ["simulate", n_events, "python", path] => simulate(n_events.parse()?, Recording::Python, path),
        ["simulate", n_events, "all", path] => simulate(n_events.parse()?, Recording::All, path),
        ["unpack", from, to] => unpack(from, to),
        ["levels", path] => levels(path),
        ["read", path] => measure(|| read(path)),
        ["prepare", path] => measure(|| prepare(path)),
        ["open", path] => measure(|| open(path)),
        ["replay", path] => {
            let snapshot = read::open(File::open(path)?)?;
            measure(|| {
                replay_all(&snapshot);
                Ok(())
            })
        }
        ["pack-zstd", from, to] => pack_zstd(from, to),
        ["draw", path, device, width, height, out] => {
            draw(path, device.parse()?, width.parse()?, height.parse()?, out)
        }
        _ => bail!(
            "usage: xtask-bench (simulate EVENTS (python | all) | unpack FROM | pack-zstd FROM | levels | read | \
             prepare | open | replay | draw FROM DEVICE WIDTH HEIGHT) FILE"
        ),
    }
}

/// Prints the four levels at every state of every device: `device N`, then a line per state.
fn levels(path: &str) -> Result<()> {
    let snapshot = read::open(File::open(path).with_context(|| format!("cannot read {path}"))?)?;
    let mut out = BufWriter::new(io::stdout().lock());
    for device in &snapshot.devices {
        writeln!(out, "device {}", device.ordinal)?;
        let curves = replay::replay(&snapshot, device).curves;
        for state in 0..curves.n_states() {
            let replay::Levels { requested, allocated, active, reserved } = curves.at(state);
            writeln!(out, "{requested} {allocated} {active} {reserved}")?;
        }
    }
    out.flush().context("nobody reads the levels")
}

fn read(path: &str) -> Result<()> {
    black_box(read::open(File::open(path)?)?);
    Ok(())
}

/// What a server does with a snapshot before anyone can look at it.
fn prepare(path: &str) -> Result<()> {
    let snapshot = read::open(File::open(path)?)?;
    replay_all(&snapshot);
    black_box(pack::write(&snapshot));
    Ok(())
}

/// What the page's engine does with a file before it is looked at.
fn open(path: &str) -> Result<()> {
    let snapshot = read::open(File::open(path)?)?;
    let replays = snapshot.devices.iter().map(|device| replay::replay(&snapshot, device));
    let replays: Vec<replay::Replay> = replays.collect();
    let indexes: Vec<Index> = replays.iter().map(Index::new).collect();
    black_box((indexes, findings::findings(&snapshot, &replays), Palette::new(&snapshot)));
    Ok(())
}

fn replay_all(snapshot: &Snapshot) {
    for device in &snapshot.devices {
        black_box(replay::replay(snapshot, device));
    }
}

fn measure(work: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    work()?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{seconds} {}", peak_kib()?);
    Ok(())
}

/// Highest resident memory of this process, as Linux counts it.
fn peak_kib() -> Result<u64> {
    let status =
        fs::read_to_string("/proc/self/status").context("peak memory is read from /proc, on Linux")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM in /proc")?;
    line.trim().trim_end_matches(" kB").parse().context("VmHWM is no number")
}

fn simulate(n_events: usize, recording: Recording, path: &str) -> Result<()> {
    // Under another name until it is whole: a half-written file would be measured forever after.
    let unfinished = format!("{path}.unfinished");
    let file = File::create(&unfinished).with_context(|| format!("cannot write {unfinished}"))?;
    trainer::write(n_events, recording, BufWriter::new(file))?;
    fs::rename(unfinished, path).with_context(|| format!("cannot write {path}"))
}

fn unpack(from: &str, to: &str) -> Result<()> {
    let file = File::open(from).with_context(|| format!("cannot read {from}"))?;
    read::copy_content(file, File::create(to).with_context(|| format!("cannot write {to}"))?)?;
    Ok(())
}

/// Compresses as the agent does.
fn pack_zstd(from: &str, to: &str) -> Result<()> {
    /// The agent's level.
    const LEVEL: i32 = 3;
    let file = File::open(from).with_context(|| format!("cannot read {from}"))?;
    let packed = File::create(to).with_context(|| format!("cannot write {to}"))?;
    zstd::stream::copy_encode(file, packed, LEVEL).with_context(|| format!("cannot compress {from}"))
}

/// Draws a device's whole trace natively; the file holds the pixels, then the ids, as wasm has them in memory.
fn draw(path: &str, device: u32, width: u32, height: u32, out: &str) -> Result<()> {
    let snapshot = read::open(File::open(path).with_context(|| format!("cannot read {path}"))?)?;
    let device = snapshot.device(device).with_context(|| format!("{path} has nothing on device {device}"))?;
    let replay = replay::replay(&snapshot, device);
    let to = u32::try_from(device.events.len() + 1).context("more events than a picture can name")?;
    let view = View { from: 0, to, width, height, top: None };
    let (raster, _) = Raster::draw(&Index::new(&replay), &replay, &Palette::new(&snapshot), view);
    let mut file = BufWriter::new(File::create(out).with_context(|| format!("cannot write {out}"))?);
    file.write_all(&raster.rgba)?;
    raster.ids.iter().try_for_each(|id| file.write_all(&id.to_le_bytes()))?;
    file.flush().with_context(|| format!("cannot write {out}"))
}
