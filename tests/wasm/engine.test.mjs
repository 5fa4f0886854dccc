// The engine in wasm says and draws what the native reader says and draws, on every committed snapshot.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { after, test } from "node:test";

import { draw, list, load, open } from "./engine.mjs";

const { TIDEGAUGE_TEST_CLI: cli, TIDEGAUGE_TEST_BENCH: bench, TIDEGAUGE_TEST_FIXTURES: fixtures } = process.env;
const { Engine } = await load();
const folder = mkdtempSync(join(tmpdir(), "tidegauge-wasm-"));
after(() => rmSync(folder, { recursive: true }));

const isSnapshot = (name) => /\.(pickle|html|json)(\.zst)?$/.test(name) && !name.endsWith(".oracle.json");
const snapshots = readdirSync(fixtures, { recursive: true }).filter(isSnapshot).sort();

/** What `tidegauge inspect --json` says of a snapshot itself. */
function inspected(path) {
  const { status, stdout } = spawnSync(cli, ["inspect", "--json", path], { maxBuffer: 1 << 26 });
  // Who holds the memory is the command line's own addition.
  const { top: _, ...answer } = JSON.parse(stdout);
  return { status, answer };
}

test("there are snapshots to compare", () => assert.ok(snapshots.length >= 24, `${snapshots.length} in ${fixtures}`));

for (const name of snapshots) {
  test(`${name} reads and draws the same in wasm and natively`, () => {
    const path = join(fixtures, name);
    const engine = new Engine();
    const opened = open(engine, path);

    const { status, answer } = inspected(path);
    assert.equal(status, 0);
    assert.deepEqual({ ...opened.inspection, file: "" }, { ...answer, file: "" });

    for (const { device, n_events, peak_active } of opened.devices.slice(0, 2)) {
      const question = { device, from: 0, to: n_events + 1, width: 300, height: 120, top: null };
      const { answer, pixels, ids } = draw(engine, question);
      if (n_events > 0) assert.equal(Math.max(...answer.curves.active), peak_active);

      const out = join(folder, "native");
      const drawn = spawnSync(bench, ["draw", path, String(device), "300", "120", out]);
      assert.equal(drawn.status, 0, String(drawn.stderr));
      const native = readFileSync(out);
      assert.ok(native.subarray(0, pixels.length).equals(Buffer.from(pixels.buffer)), "the pixels differ");
      assert.ok(native.subarray(pixels.length).equals(Buffer.from(ids.buffer)), "the ids differ");
    }
    engine.free();
  });
}

test("who holds the memory adds up in wasm as it does natively, and marks are as many as allocations match", () => {
  const engine = new Engine();
  const { devices: [{ device, n_allocations, peak_state }] } = open(engine, join(fixtures, "fsdp1_w2_noclear_rank0_step10.pickle"));
  const shape = { is_inside_out: false, folds_native: true };
  const ask = (question) => JSON.parse(engine.holders(JSON.stringify({ device, state: peak_state, only: "", by: "stack", shape, chosen: null, ...question })));
  const { level, groups, others, nodes } = ask({});
  const sum = (parts) => parts.reduce((sum, part) => sum + part, 0);
  assert.equal(sum(groups.map((group) => group.total.allocated)) + others.allocated, level);
  assert.equal(sum(nodes.filter(({ depth }) => depth === 0).map(({ allocated }) => allocated)), level);
  const bits = engine.marked(JSON.stringify({ device, only: "", chosen: null }));
  assert.equal(bits.length, Math.ceil(n_allocations / 8));
  assert.throws(() => ask({ only: "size>much" }), (sentence) => sentence.includes("such as 1MiB"));
  engine.free();
});

const refused = {
  "empty": Buffer.alloc(0),
  "a page of HTML": Buffer.from("<!doctype html><title>Login</title>"),
  "a pickle that would run code": Buffer.from("\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.", "latin1"),
  "a snapshot that was cut short": readFileSync(join(fixtures, "streams_2dev_lag40.pickle")).subarray(0, 100_000),
};

for (const [what, bytes] of Object.entries(refused)) {
  test(`${what} is refused with the sentence of the command line`, () => {
    const path = join(folder, "refused.pickle");
    writeFileSync(path, bytes);
    const { status, answer } = inspected(path);
    assert.equal(status, 2);
    assert.throws(() => open(new Engine(), path), (sentence) => {
      assert.equal(sentence, answer.error.message);
      return true;
    });
  });
}

for (const name of ["run.zip", "run.tar.gz"]) {
  test(`the snapshots in ${name} are listed and opened as on the command line`, () => {
    const path = join(fixtures, "wrapped", name);
    const engine = new Engine();
    assert.throws(() => open(engine, path), (sentence) => sentence.startsWith("this archive holds 3 snapshots"));
    const { snapshots: members, n_others } = list(engine, path);
    const { answer } = inspected(path);
    assert.equal(n_others, answer.other_files);
    assert.deepEqual(members.map(({ path }) => path), answer.members.map(({ file }) => file));
    for (const [i, { path: member }] of members.entries()) {
      assert.deepEqual(open(engine, path, member).inspection.devices, answer.members[i].devices);
    }
    assert.equal(list(engine, join(fixtures, "oom_plain_2gib.pickle")), null);
  });
}

test("an archive of one snapshot opens like the snapshot", () => {
  const engine = new Engine();
  const plain = open(engine, join(fixtures, "wrapped/protocol5.pickle")).inspection;
  for (const name of ["one_streamed.zip", "one_gnu.tar.gz"]) {
    assert.deepEqual(open(engine, join(fixtures, "wrapped", name)).inspection.devices, plain.devices);
  }
});

test("an engine that refused a file opens the next one", () => {
  const engine = new Engine();
  const path = join(folder, "refused.pickle");
  writeFileSync(path, "nothing");
  assert.throws(() => open(engine, path));
  const next = join(fixtures, "oom_plain_2gib.pickle");
  assert.equal(open(engine, next).inspection.file, basename(next));
});
