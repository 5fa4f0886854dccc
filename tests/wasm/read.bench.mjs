// How long the page's engine takes to open a file, and Node's highest memory: prints seconds and KiB for FILE.
import { performance } from "node:perf_hooks";

import { load, open } from "./engine.mjs";

const [path] = process.argv.slice(2);
const { Engine } = await load();
const engine = new Engine();
const start = performance.now();
open(engine, path);
console.log((performance.now() - start) / 1000, process.resourceUsage().maxRSS);
