// The page's worker: loads the engine and answers the page's messages, one after the other.
// What travels: {id, kind, question, file?} in, {id, ok, answer, …arrays} or {id, ok: false, problem} out,
// {id, progress: {doing, done, total}} in between. The questions' types are in api/src: picture.rs, holders.rs, memory.rs.
import init, { Engine } from "/engine.js";

// Enough for the directory of a pack of ten million events.
const BEGINNING_BYTES = 64 * 1024;

const ready = init({ module_or_path: "/engine_bg.wasm" });
let engine = null;
// Settles when the stacks of the open pack are there; questions about stacks wait for it, and pictures don't wait for them.
let stacks = Promise.resolve();
const ABOUT_STACKS = new Set(["allocation", "holders", "marked", "top_stacks"]);
let queue = Promise.resolve();

self.onmessage = ({ data }) => {
  const enqueue = () => {
    queue = queue.then(() => answer(data));
  };
  if (!ABOUT_STACKS.has(data.kind)) return enqueue();
  // In its turn, because only then the snapshot it asks about is open.
  queue = queue.then(() => {
    stacks.then(enqueue, enqueue);
  });
};

async function answer({ id, kind, question, file }) {
  try {
    await ready;
    engine ??= new Engine();
    const { answer, ...arrays } = await handle(id, kind, question, file);
    const transfer = Object.values(arrays).map((array) => array.buffer);
    self.postMessage({ id, ok: true, answer, ...arrays }, transfer);
  } catch (error) {
    if (error instanceof WebAssembly.RuntimeError) {
      // A trap leaves the engine's memory in an unknown state. Thrown outside of any promise it reaches the page,
      // which starts another worker; this one answers nothing more.
      setTimeout(() => {
        throw error;
      });
      return new Promise(() => {});
    }
    // The engine throws sentences; anything else is a fault of ours or the network's, and says so itself.
    const problem = typeof error === "string" ? error : `the worker failed: ${error?.message ?? error}`;
    self.postMessage({ id, ok: false, problem });
  }
}

async function handle(id, kind, question, file) {
  // They are there, or it failed, and then it throws why.
  if (ABOUT_STACKS.has(kind)) await stacks;
  switch (kind) {
    case "open_file":
      return { answer: openFile(id, file, JSON.parse(question)) };
    case "list_archive":
      return { answer: engine.list_archive(file.size, reader(id, file)) ?? "null" };
    case "open_snapshot":
      return { answer: await openSnapshot(id, JSON.parse(question)) };
    case "picture": {
      const answer = engine.picture(question);
      return { answer, pixels: engine.pixels(), ids: engine.ids() };
    }
    case "levels":
      return { answer: engine.levels(question) };
    case "memory": {
      const answer = engine.memory(question);
      return { answer, cells: engine.block_cells(), sizes: engine.block_sizes() };
    }
    case "top_stacks":
      return { answer: engine.top_stacks(question) };
    case "allocation":
      return { answer: engine.allocation(question) };
    case "holders":
      return { answer: engine.holders(question) };
    case "marked":
      return { answer: "null", bits: engine.marked(question) };
    default:
      throw `the worker does not know the question "${kind}"`;
  }
}

function openFile(id, file, { member }) {
  stacks = Promise.resolve();
  return engine.open_file(file.name, file.size, reader(id, file), member);
}

function reader(id, file) {
  const slices = new FileReaderSync();
  return (offset, length) => {
    report(id, "Reading", offset, file.size);
    return new Uint8Array(slices.readAsArrayBuffer(file.slice(offset, offset + length)));
  };
}

async function openSnapshot(id, { pack, file, bytes }) {
  const fetched = await beginning(id, pack);
  const header = engine.pack_header(fetched.bytes);
  if (!header) throw "the pack's directory is longer than expected; reload the page";
  const [firstBytes, totalBytes] = header;
  const first = fetched.isWhole ? fetched.bytes : await upTo(id, pack, fetched.bytes, firstBytes);
  const opened = engine.open_pack(file, bytes, first.subarray(0, firstBytes));
  const rest = first.length >= totalBytes ? Promise.resolve(first.subarray(firstBytes)) : range(pack, firstBytes, totalBytes);
  stacks = rest.then((bytes) => engine.add_stacks(bytes));
  // Whoever asks for a stack gets the failure as an answer.
  stacks.catch(() => {});
  return opened;
}

async function beginning(id, pack) {
  report(id, "Loading", 0, null);
  const response = await ask(pack, { Range: `bytes=0-${BEGINNING_BYTES - 1}` });
  const bytes = new Uint8Array(await response.arrayBuffer());
  // A server without ranges answers 200 and sends it all.
  return { bytes, isWhole: response.status === 200 };
}

async function upTo(id, pack, have, end) {
  if (have.length >= end) return have;
  const response = await ask(pack, { Range: `bytes=${have.length}-${end - 1}` });
  const all = new Uint8Array(end);
  all.set(have);
  let done = have.length;
  for (const reader = response.body.getReader(); ; ) {
    const { done: isDone, value } = await reader.read();
    if (isDone) break;
    if (done + value.length > end) throw "the server sent more of the pack than was asked for; reload the page";
    all.set(value, done);
    done += value.length;
    report(id, "Loading", done, end);
  }
  if (done < end) throw "the connection ended before the pack did; reload the page";
  return all;
}

async function range(pack, from, to) {
  const response = await ask(pack, { Range: `bytes=${from}-${to - 1}` });
  return new Uint8Array(await response.arrayBuffer());
}

async function ask(url, headers) {
  let response;
  try {
    response = await fetch(url, { headers });
  } catch {
    throw "the server cannot be reached; check that it runs and try again";
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => null);
  throw problem?.detail ?? `the server answered ${response.status} to the request for the pack`;
}

function report(id, doing, done, total) {
  self.postMessage({ id, progress: { doing, done, total } });
}
