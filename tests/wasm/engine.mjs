// The page's engine under Node: the same module a browser loads, opened on files of this machine.
import { closeSync, copyFileSync, fstatSync, mkdtempSync, openSync, readFileSync, readSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";

const site = process.env.TIDEGAUGE_TEST_SITE;
if (!site) throw new Error("TIDEGAUGE_TEST_SITE is not set; `cargo xtask test --only wasm` builds the page and sets it");

/** The engine's module, compiled and ready. */
export async function load() {
  // Node takes a file for a module by its name only.
  const folder = mkdtempSync(join(tmpdir(), "tidegauge-engine-"));
  const copy = join(folder, "engine.mjs");
  copyFileSync(join(site, "engine.js"), copy);
  const module = await import(pathToFileURL(copy));
  rmSync(folder, { recursive: true });
  module.initSync({ module: readFileSync(join(site, "engine_bg.wasm")) });
  return module;
}

/** Opens a file, or one snapshot of an archive, as the worker opens a dropped one: slice by slice. */
export function open(engine, path, member) {
  return sliced(path, (size, read) => JSON.parse(engine.open_file(basename(path), size, read, member)));
}

/** The snapshots of an archive; null when it is none. */
export function list(engine, path) {
  return sliced(path, (size, read) => JSON.parse(engine.list_archive(size, read) ?? "null"));
}

function sliced(path, use) {
  const file = openSync(path);
  try {
    const read = (offset, length) => {
      const slice = new Uint8Array(length);
      return slice.subarray(0, readSync(file, slice, 0, length, offset));
    };
    return use(fstatSync(file).size, read);
  } finally {
    closeSync(file);
  }
}

/** Draws, and hands over the answer with its pixels and ids. */
export function draw(engine, question) {
  const answer = JSON.parse(engine.picture(JSON.stringify(question)));
  return { answer, pixels: engine.pixels(), ids: engine.ids() };
}
