// What the buttons of a chapter do: keeps the cells, asks the worker to run them one at a time, shows what came.
// Nothing that a reader writes is stored, and nothing runs but what a button or a key press in a cell's editor asks for.
const bar = document.querySelector(".run-bar");
const from = new URL(bar.dataset.from, location);
const [all, stop, progress] = [...bar.querySelectorAll("[data-run=all], [data-run=stop], progress")];
const say = (text) => (bar.querySelector(".run-say").textContent = text);
const announce = (text) => (bar.querySelector(".run-live").textContent = text);
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

const shown = await (await fetch(new URL(`${bar.dataset.chapter}.json`, from))).json();
const cells = [...document.querySelectorAll("article div.cell")].map((box, i) => ({ ...shown[i], box, ran: false }));

// --- the worker -----------------------------------------------------------------------------------------------------

let worker, interrupts;
let waiting; // the cell that the worker is at: { resolve, reject, started, printed }
const python = () => ({ what: "Python", received: 0 });
let loading = python(); // and how many bytes it has, where that is known
let preparing = false; // Python starts, and no cell is asked for yet
const PATIENCE = 20; // seconds without news, after which the page says so
let patience;
const trouble = new Set(); // what could not be loaded, in words: said again at the end

function lacking() {
  if (typeof WebAssembly !== "object") {
    return "This browser has no WebAssembly, or has it switched off. Python cannot run in a page without it.";
  }
  if (typeof Worker !== "function") return "This browser has no workers, or has them switched off. Python needs one.";
  return "";
}

function begin() {
  worker = new Worker(new URL("worker.mjs", from), { type: "module" });
  worker.onmessage = ({ data }) => hear(data);
  worker.onerror = (event) => {
    event.preventDefault();
    fail(`What runs Python could not be loaded${event.message ? `: ${event.message}` : ""}. ${perhaps()}`);
  };
  if (self.crossOriginIsolated) {
    interrupts = new Uint8Array(new SharedArrayBuffer(1));
    worker.postMessage({ interrupts });
  }
}

// From the first run on, what was loaded is kept for the next visit, which then needs no network. See sw.js.
async function keep() {
  const keeper = navigator.serviceWorker;
  keeper?.addEventListener("message", ({ data }) => data === "full" && tellNotKept());
  if (!keeper || keeper.controller) return;
  try {
    const takesOver = new Promise((resolve) => keeper.addEventListener("controllerchange", resolve, { once: true }));
    const late = new Promise((resolve) => setTimeout(resolve, 2000));
    const registered = await Promise.race([keeper.register(new URL("../../../sw.js", from)), late]);
    if (!registered || registered.active) return; // it hangs; or a reload that asked to go around it
    await Promise.race([takesOver, late]);
    const loaded = [location.href, ...performance.getEntriesByType("resource").map(({ name }) => name)];
    for (const address of loaded) if (new URL(address).origin === location.origin) fetch(address).catch(() => {});
    document.dispatchEvent(new Event("attnbook:kept"));
  } catch {
    tellNotKept();
  }
}

let notKept = "";
function tellNotKept() {
  if (notKept) return;
  notKept = "This browser's storage is full or blocked: all works, and the next visit loads Python again.";
  if (!busy) say(`${bar.querySelector(".run-say").textContent} ${notKept}`);
}

function perhaps() {
  return navigator.onLine ? "Perhaps the site cannot be reached, or this browser is too old." : "This device is offline.";
}

// A message is known by the key that it has: what stands there may be empty, or 0.
function hear(data) {
  clearTimeout(patience);
  if ("loading" in data) {
    loading = { what: data.loading, bytes: data.bytes, received: 0 };
    arrived();
  } else if ("received" in data) {
    loading.received = data.received;
    arrived();
  } else if ("ready" in data) preparing = false;
  else if ("running" in data) waiting?.started();
  else if ("printed" in data) waiting?.printed(data.printed);
  else if ("refused" in data) trouble.add(refusal(data));
  else if ("failed" in data) {
    if (!waiting) return end(); // nobody waits for it: a press begins anew, and says what is wrong
    fail(data.started ? `Python broke off: ${data.failed}.` : `Python could not be loaded: ${data.failed}. ${perhaps()}`);
  } else if ("answer" in data) waiting?.resolve(data.answer);
}

function refusal({ refused, host, why }) {
  const reason = !navigator.onLine ? "this device is offline." : why;
  return `${refused} could not be loaded from ${host}: ${reason} Cells that need it are passed over; others run.`;
}

function arrived() {
  if (!busy) return; // nobody waits for it yet
  const { what, bytes, received } = loading;
  if (!received) announce(`Loading ${what}`);
  const words = `Loading ${what}: ${megabytes(received)}${bytes ? ` of ${megabytes(bytes)}` : ""} …`;
  say(words);
  patience = setTimeout(() => {
    const slow = `No news for ${PATIENCE} seconds: the network or this device is slow, or something holds the file back.`;
    say(`${words} ${slow} Stop ends the wait.`);
    announce(`${slow} Stop ends the wait.`);
  }, PATIENCE * 1000);
  if (bytes) Object.assign(progress, { max: bytes, value: Math.min(received, bytes) });
  else progress.removeAttribute("value");
}

// Ends Python, and all its variables with it.
function end() {
  clearTimeout(patience);
  worker?.terminate();
  worker = interrupts = undefined;
  loading = python();
  preparing = false;
  for (const cell of cells) cell.ran = false;
  changed = false;
}

function fail(words) {
  end();
  waiting?.reject(new Error(words));
}

function ask(request, { started, printed }) {
  if (!worker) begin();
  if (interrupts) interrupts[0] = 0; // one that came when no cell was running is for none
  return new Promise((resolve, reject) => {
    waiting = { resolve, reject, started, printed };
    worker.postMessage(request);
  }).finally(() => (waiting = undefined));
}

// Python, before a cell is asked for: where this browser has what the page was built with, so that nothing is fetched.
export async function prepare() {
  try {
    if (worker || lacking() || !(await caches.match(new URL("site.json", from)))) return;
    if (worker) return; // a cell was asked for meanwhile
    begin();
    preparing = true;
    worker.postMessage({ prepare: true });
  } catch {
    // Storage is blocked: nothing is kept in this browser.
  }
}

// --- running --------------------------------------------------------------------------------------------------------

const BUSY = "A cell is running. Stop it first.";
let busy = false;
let stopping = false;

// While cells above it run, and show what they give, the cell that was pressed stays where it is on the screen.
function held({ box }) {
  const at = () => box.getBoundingClientRect().top;
  let [top, y] = [at(), scrollY];
  const note = () => ([top, y] = [top + y - scrollY, scrollY]); // the reader's own scrolling
  const watch = new ResizeObserver(() => {
    note();
    const moved = at() - top;
    if (moved && top > 0 && top < innerHeight) scrollBy({ top: moved, behavior: "instant" });
    [top, y] = [at(), scrollY];
  });
  watch.observe(document.querySelector("article"));
  addEventListener("scroll", note, { passive: true });
  const release = () => {
    watch.disconnect();
    removeEventListener("scroll", note);
  };
  return () => setTimeout(release, 300); // what was said and shown last is laid out in the next frames
}

// Runs these cells in order. `whole` where they are the chapter, whose sum is told at the end.
async function job(list, whole = false) {
  const missing = busy ? BUSY : lacking();
  if (missing) {
    announce(missing);
    return say(missing);
  }
  const release = whole ? () => {} : held(list.at(-1)); // first: what the bar says takes more lines or fewer
  busy = true;
  stopping = false;
  trouble.clear();
  showBusy(true);
  const counts = {};
  if (preparing || !worker) arrived();
  try {
    if (!worker) await keep();
    for (let i = 0; i < list.length && !stopping; i++) {
      const started = () => {
        say(list.length > 1 ? `Cell ${i + 1} of ${list.length} …` : "Running …");
        Object.assign(progress, { max: list.length, value: i });
      };
      const verdict = await runOne(list[i], list.length > 1 ? [] : above(list[i]), i === 0, started);
      if (verdict === "wants") {
        list = [...above(list[i]), list[i]]; // what it uses is made by cells above: those first, then this one
        i = -1;
      } else counts[verdict] = (counts[verdict] ?? 0) + 1;
      if (whole && i && i % 20 === 0) announce(`${i} of ${list.length} cells have run`);
    }
    finish(stopping ? "Stopped. The variables are kept." : whole ? sum(counts, list.length) : list.at(-1).words);
  } catch (error) {
    finish(error.message);
  }
  release();
  busy = false;
}

function showBusy(now) {
  const had = [all, stop].includes(document.activeElement);
  bar.classList.toggle("busy", now);
  all.hidden = now;
  stop.hidden = progress.hidden = !now;
  if (had) (now ? stop : all).focus();
}

function finish(words) {
  clearTimeout(patience);
  showBusy(false);
  const more = [...trouble, ...(notKept ? [notKept] : [])];
  say([words.split("\n")[0], ...more].join(" "));
  announce([words, ...more].join(" "));
}

function stopNow() {
  const stopped = waiting;
  const kill = () => {
    if (!stopped || waiting !== stopped) return;
    end();
    stopped.reject(new Error("Stopped. Python was ended and its variables are gone: the next run starts anew."));
  };
  const again = stopping;
  stopping = true;
  if (!interrupts || again) return kill(); // a second press does not wait
  const raise = () => {
    if (!stopped || waiting !== stopped) return;
    interrupts[0] = 2; // raises KeyboardInterrupt in the cell, and the variables stay
    setTimeout(raise, 3000); // once more, where the cell caught it, or a callback lost it
  };
  raise();
  setTimeout(kill, 10_000); // a slow machine takes a while to say so
}

const above = (cell) => cells.slice(0, cells.indexOf(cell)).filter((other) => !other.ran && !other.free);
let changed = false; // whether a changed cell has run: then a picture may show other values than the printed one
const sourceOf = (cell) => cell.editor?.value ?? cell.source;

async function runOne(cell, before, again, started) {
  const source = sourceOf(cell);
  const stored = source === cell.source ? cell.stored : undefined;
  cell.result ??= cell.box.appendChild(document.createElement("div"));
  cell.result.className = "run-result";
  cell.result.replaceChildren(line("Running …"));
  let live;
  const printed = (text) => {
    live ??= cell.result.appendChild(document.createElement("pre"));
    live.append(text);
  };
  try {
    const request = { name: cell.name, source, stored, above: before.map(sourceOf), again };
    const answer = await ask(request, { started, printed });
    if (answer.verdict === "redrawn" && changed) answer.verdict = "drawn";
    if (answer.verdict === "wants") cell.result.replaceChildren(line("Running the cells above first …"));
    else {
      if (source !== cell.source) changed = true;
      show(cell, answer, stored);
    }
    return answer.verdict;
  } catch (error) {
    cell.result.className = "run-result error";
    cell.result.firstChild.textContent = error.message;
    throw error;
  }
}

function sum(counts, total) {
  const words = [];
  const alike = (counts.same ?? 0) + (counts.redrawn ?? 0) + (counts.autograd ?? 0);
  words.push(`${alike} of ${total} cells gave what is printed here.`);
  if (counts.autograd) words.push(`${counts.autograd} of them left out the comparison with autograd, which needs torch.`);
  if (counts["passed over"]) words.push(`${counts["passed over"]} passed over.`);
  if (counts.differs) words.push(`${counts.differs} came out differently.`);
  if (counts.drawn) words.push(`${counts.drawn} drew a picture that was not compared.`);
  if (counts.ran) words.push(`${counts.ran} changed by you.`);
  if (counts.error) words.push(`${counts.error} raised an error.`);
  return words.join(" ");
}

// --- showing --------------------------------------------------------------------------------------------------------

function line(text) {
  return Object.assign(document.createElement("p"), { className: "run-verdict", textContent: text });
}

const VERDICTS = {
  same: () => "✓ The same as printed here.",
  redrawn: () => "✓ The same as printed here. The picture was drawn anew, by an older version of matplotlib.",
  drawn: () => "Its text is the same as printed here. The picture may show your values, and was not compared:",
  autograd: () => "✓ The same as printed here, less the comparison with autograd, which needs torch.",
  "passed over": ({ why }) => `Passed over: ${why}.`,
  differs: () => "Came out differently:",
  error: ({ outputs }) => `It raised an error: ${outputs.at(-1).summary}`,
  ran: ({ outputs }) => (outputs.length ? "Your version gives:" : "Your version ran, and printed nothing."),
};

// Shows the verdict, and the outputs where they are not those that the page shows already.
function show(cell, answer, stored) {
  const words = VERDICTS[answer.verdict](answer);
  const seen = ["differs", "drawn", "error", "ran"].includes(answer.verdict) ? answer.outputs.map(element) : [];
  cell.result.className = `run-result ${answer.verdict.replace(" ", "-")}`;
  cell.result.replaceChildren(line(words), ...seen);
  document.dispatchEvent(new Event("attnbook:shown")); // figures with controls come to life
  showStored(cell, stored !== undefined); // beside a changed cell they would mislead
  cell.ran = !answer.why.endsWith("could not be loaded"); // one that lacks a file is run again for those that need it
  cell.words = cell.result.innerText.slice(0, 500);
}

function showStored(cell, shown) {
  const old = cell.box.querySelector(":scope > .cell_output");
  if (old) old.hidden = !shown;
}

function element(output) {
  const rich = output.data?.["text/html"] ?? output.data?.["image/svg+xml"];
  if (rich !== undefined) {
    return Object.assign(document.createElement("div"), { className: "run-rich", innerHTML: rich });
  }
  const text = output.text ?? output.traceback ?? output.data["text/markdown"] ?? output.data["text/plain"];
  return Object.assign(document.createElement("pre"), { textContent: text, className: output.name ?? "", tabIndex: 0 });
}

// --- editing --------------------------------------------------------------------------------------------------------

function edit(cell) {
  if (cell.editor) return cell.editor.focus();
  const code = cell.box.querySelector(".cell_input div.highlight, .cell_input > pre");
  const editor = Object.assign(document.createElement("textarea"), {
    className: "run-editor",
    value: cell.source,
    spellcheck: false,
    autocapitalize: "off",
  });
  editor.setAttribute("aria-label", "Code of this cell. Control and Enter runs it.");
  const fit = () => (editor.rows = Math.max(3, editor.value.split("\n").length));
  editor.addEventListener("input", fit);
  editor.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey || event.shiftKey) return job([cell]);
    const start = editor.value.slice(0, editor.selectionStart).split("\n").at(-1);
    const indent = start.match(/^ */)[0] + (start.trimEnd().endsWith(":") ? "    " : "");
    const added = `\n${indent}`;
    if (document.execCommand("insertText", false, added)) return; // which the browser can undo
    editor.setRangeText(added, editor.selectionStart, editor.selectionEnd, "end");
    fit();
  });
  fit();
  cell.editor = editor;
  code.hidden = true;
  code.after(editor);
  if (!cell.free) {
    swap(cell, "edit", "reset", "Reset");
    editor.setSelectionRange(0, 0); // a phone shows the beginning of its lines
  }
  editor.focus();
}

function reset(cell) {
  if (busy) return say(BUSY); // what it gives would have no place
  cell.editor.remove();
  cell.editor = undefined;
  cell.box.querySelector(".cell_input div.highlight, .cell_input > pre").hidden = false;
  showStored(cell, true);
  cell.result?.remove();
  cell.result = undefined;
  swap(cell, "reset", "edit", "Edit").focus();
}

function swap(cell, was, becomes, text) {
  const button = cell.box.querySelector(`[data-run=${was}]`);
  button.dataset.run = becomes;
  button.setAttribute("aria-label", button.getAttribute("aria-label").replace(button.textContent, text));
  button.textContent = text;
  return button;
}

const HINT = `# Write your code here: it sees what the cells of this chapter have made.
# A function f(Q, K, V, dO, **options) that returns (O, dQ, dK, dV) is checked by ab.diagnose(f).
`;

// An empty cell below an exercise that has none of its own.
function attempt(button) {
  const box = Object.assign(document.createElement("div"), { className: "cell run-try" });
  const input = box.appendChild(Object.assign(document.createElement("div"), { className: "cell_input" }));
  input.append(document.createElement("pre"));
  button.replaceWith(box);
  const next = cells.findIndex((other) => box.compareDocumentPosition(other.box) & Node.DOCUMENT_POSITION_FOLLOWING);
  const cell = { name: `exercise-${button.dataset.place}`, source: HINT, box, ran: false, free: true };
  cells.splice(next < 0 ? cells.length : next, 0, cell);
  const tools = input.appendChild(Object.assign(document.createElement("div"), { className: "run-tools" }));
  const run = Object.assign(document.createElement("button"), { type: "button", textContent: "Run" });
  run.setAttribute("aria-label", "Run your code");
  run.dataset.run = "run";
  tools.append(run);
  edit(cell);
}

// --- what start.mjs calls -------------------------------------------------------------------------------------------

export function press(button) {
  const cell = cells.find(({ box }) => box.contains(button));
  const actions = {
    all: () => job(cells.filter((other) => !other.free), true),
    stop: stopNow,
    run: () => job([cell]),
    edit: () => edit(cell),
    reset: () => reset(cell),
    try: () => attempt(button),
  };
  return actions[button.dataset.run]();
}
