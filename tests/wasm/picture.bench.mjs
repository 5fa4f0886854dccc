// How long one picture of 1600 × 600 device pixels takes, after a file is open: FILE as the only argument.
import { performance } from "node:perf_hooks";

import { draw, load, open } from "./engine.mjs";

// Pictures per window; the middle and the slowest but one are shown.
const RUNS = 21;

const [path] = process.argv.slice(2);
const { Engine } = await load();
const engine = new Engine();

let start = performance.now();
const opened = open(engine, path);
console.log(`opened (read, replay, index)  ${(performance.now() - start).toFixed(0).padStart(7)} ms`);

const [{ device, n_events }] = opened.devices;
for (const [name, part] of [["whole", 1], ["10 %", 0.1], ["1 %", 0.01]]) {
  const length = Math.max(1, Math.floor((n_events + 1) * part));
  const times = [];
  for (let run = 0; run < RUNS; run++) {
    // Another place each time, as a hand that pans.
    const from = Math.floor(((n_events + 1 - length) * run) / (RUNS - 1));
    start = performance.now();
    draw(engine, { device, from, to: from + length, width: 1600, height: 600, top: null });
    times.push(performance.now() - start);
  }
  times.sort((a, b) => a - b);
  const [middle, slow] = [times[Math.floor(RUNS / 2)], times[RUNS - 2]].map((time) => time.toFixed(1).padStart(7));
  console.log(`${name.padEnd(6)} of ${n_events} events  ${middle} ms in the middle, ${slow} ms for 1 in 20`);
}
