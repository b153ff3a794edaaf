// Python, in a worker of its own: loads Pyodide and NumPy from where site.json says, and runs cells through runner.py.
// The page ends this worker where a cell does not end by itself.
const here = (name) => new URL(name, import.meta.url);
const tell = (message) => self.postMessage(message);

// Counts what arrives, in every answer that Pyodide and this file wait for. But WebAssembly that the browser keeps is
// handed on as it came: a browser keeps what it compiled with the answer itself, and that saves a second of each start.
let received = 0;
const fetchUncounted = self.fetch;
self.fetch = async (...request) => {
  const answer = await fetchUncounted(...request);
  if (!answer.ok || !answer.body) return answer;
  if (/\.wasm$/.test(answer.url) && (await isKept(answer.url))) return answer;
  const counter = new TransformStream({
    transform(piece, out) {
      received += piece.byteLength;
      tell({ received });
      out.enqueue(piece);
    },
  });
  return new Response(answer.body.pipeThrough(counter), answer);
};

const ours = self.caches?.open("attnbook").catch(() => undefined); // sw.js fills it; storage may be blocked
const isKept = async (address) => Boolean(await (await ours)?.match(address));

// Pyodide waits for ever where its WebAssembly is not there or does not come whole.
const instantiate = WebAssembly.instantiateStreaming;
const broken = new Promise((_, reject) => {
  WebAssembly.instantiateStreaming = (...what) => {
    const made = instantiate(...what);
    made.catch(reject);
    return made;
  };
});

const loading = (what, bytes = 0) => {
  received = 0;
  tell({ loading: what, bytes });
};

let site, core, pyodide, runner, module;
const arriving = new Map(); // our own archives
const there = new Set(); // what was loaded, our own files with NumPy
const refused = new Set(); // what could not be loaded; asked for again at the reader's next press
let told = false; // whether what start() told of NumPy still stands in the page

async function start() {
  site = await (await fetch(here("site.json"))).json();
  loading("Python and NumPy", site.bytes);
  told = true;
  core = new URL(site.core, here("./")).href;
  for (const { name } of site.archives) arriving.set(name, bytesOf(name).catch(() => undefined)); // while Python starts
  const { loadPyodide } = await import(`${core}pyodide.mjs`);
  // NumPy comes meanwhile, into the browser's cache. loadPyodide could load it, but where that fails before Python is
  // there, it hangs, or traps. A wrong file is refused here too: the service worker would keep it.
  const { integrity } = site;
  fetchUncounted(new URL(site.numpy, core), { integrity }).then((answer) => answer.arrayBuffer()).catch(() => {});
  pyodide = await Promise.race([boot(loadPyodide), broken]);
  pyodide.FS.mkdirTree("/book/chapters");
  pyodide.FS.chdir("/book/chapters"); // a chapter reads ../benchmarks/results
  pyodide.FS.writeFile("/book/runner.py", await (await fetch(here("runner.py"))).text());
  module = pyodide.runPython("import sys; sys.path += ['/book', '/book/site']; import runner; runner");
  const heed = (on) => interrupts && pyodide.setInterruptBuffer(on ? interrupts : undefined);
  runner = module.Runner((text) => tell({ printed: text }), heed);
}

// Python takes most of its start to build what is the same each time. Its memory as it then stands is kept with its
// files, and the next start takes it from there; by the browser's name, as another one may lay memory out otherwise.
let memory; // to be kept
const itsAddress = () => `${core}memory?${encodeURIComponent(navigator.userAgent)}`;

async function boot(loadPyodide) {
  const kept = await (await ours)?.match(itsAddress());
  if (kept) {
    try {
      return await loadPyodide({ indexURL: core, _loadSnapshot: await through(DecompressionStream, kept).arrayBuffer() });
    } catch {
      (await ours).delete(itsAddress());
    }
  }
  const made = await loadPyodide({ indexURL: core, _makeSnapshot: true });
  memory = new Blob([made.makeMemorySnapshot()]);
  return made;
}

const through = (made, { body }) => new Response(body.pipeThrough(new made("gzip")));

async function keepMemory() {
  const full = memory;
  if (!full || !(await isKept(`${core}pyodide.asm.wasm`))) return; // where files are not kept, nothing is
  memory = undefined;
  await (await ours).put(itsAddress(), through(CompressionStream, new Response(full)));
}

async function load(name) {
  if (there.has(name) || refused.has(name)) return there.has(name);
  const complaints = [];
  try {
    if (!(name in pyodide.loadedPackages)) {
      if (told && name === "numpy") tell({ received }); // so that the page waits for news
      else loading(name === "numpy" ? "NumPy" : name);
    }
    // Pyodide compares the sha256 of what comes with the one in its lock.
    await pyodide.loadPackage(name, { messageCallback() {}, errorCallback: (text) => complaints.push(text) });
    if (!(name in pyodide.loadedPackages)) throw new Error(complaints.join(" "));
    if (name === "numpy") for (const archive of site.archives) await unpack(archive);
    pyodide.pyimport("importlib").invalidate_caches(); // which remember what a cell looked for in vain
    there.add(name);
    return true;
  } catch (error) {
    refused.add(name);
    const what = name === "numpy" ? "NumPy" : name;
    tell({ refused: what, host: new URL(site.numpy, core).host, why: wordsFor(error) });
    return false;
  }
}

// A browser says the same of a network that fails, of a blocker, and of a file whose sha256 is not the pinned one.
function wordsFor(error) {
  return error.stale ? error.message : "it cannot be reached, or is blocked, or sent what this page did not ask for.";
}

async function bytesOf(name, cache) {
  return (await fetch(here(name), { cache })).arrayBuffer();
}

async function unpack({ name, sha256, to }) {
  for (const get of [() => arriving.get(name), () => bytesOf(name, "reload")]) {
    const bytes = await get();
    if (bytes && module.sha256(pyodide.toPy(bytes)) === sha256) {
      return pyodide.unpackArchive(bytes, "zip", { extractDir: to });
    }
  }
  throw Object.assign(new Error(`${name} is not the file this page was built with: reload the page.`), { stale: true });
}

async function run({ name, source, stored, above, again }) {
  if (!runner) await start();
  if (again) refused.clear();
  if (runner.wants(source, above)) return { verdict: "wants" };
  for (const needed of module.packages(source).toJs()) if (!(await load(needed))) break;
  told = false;
  tell({ running: true });
  const answer = runner.run(name, source, pyodide.toPy(stored ?? undefined));
  return answer.toJs({ dict_converter: Object.fromEntries });
}

// What nearly every cell needs, before one is asked for.
async function prepare() {
  await start();
  if (await load("numpy")) pyodide.runPython("import attnbook");
  told = false;
}

let interrupts, quiet;
let last; // what is under way: a cell that is asked for meanwhile waits for it
self.onmessage = ({ data }) => {
  if (data.interrupts) return (interrupts = data.interrupts);
  const before = last;
  last = (async () => {
    await before;
    try {
      tell(data.prepare ? { ready: await prepare() } : { answer: await run(data) });
      clearTimeout(quiet);
      if (memory) quiet = setTimeout(() => keepMemory().catch(() => {}), 3000); // and the files are kept by then
    } catch (error) {
      tell({ failed: error.message, started: Boolean(runner) });
    }
  })();
};
