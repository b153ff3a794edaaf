// The head on the page: fields in the place of the given numbers, and results that follow.
const live = root.querySelector(".head-live");
live.querySelector("template").replaceWith(live.querySelector("template").content);
const part = (name) => live.querySelector(`.head-${name}`);
const [chosen, square] = live.querySelectorAll("select, [type=checkbox]");
const told = part("say");
live.before(told); // beside the fields: where they are in view, it is too
const ORDER = ["dQ", "dK", "dV"]; // of the entries, for the arrow keys
const found = Object.fromEntries(
  [...root.querySelectorAll("table[data-name]")].map((table) => [
    table.dataset.name,
    [...table.rows].map((row) => [...row.cells]),
  ]),
);
let numbers; // the last that were valid
let at = ["dQ", 0, 0];

const plain = (text) => text.replaceAll("-", "−");
const typed = (x) => plain(String(x));

function shown(x, digits = 2) {
  const far = Math.abs(x);
  if (Number.isNaN(x)) return "NaN";
  if (far === Infinity) return x > 0 ? "∞" : "−∞";
  const places = far < 9.995 ? digits : far < 99.95 ? digits - 1 : far < 999.5 ? digits - 2 : -1;
  const text = places < 0 ? x.toExponential(0) : x.toFixed(places);
  return plain(Number(text) === 0 ? text.replace("-", "") : text);
}

// --- What is entered.

const fields = {}; // rows of fields, and of the mask's buttons

function field(name, i, j, cell) {
  const input = document.createElement("input");
  Object.assign(input, { type: "text", value: cell.textContent, autocomplete: "off", spellcheck: false });
  input.setAttribute("role", "spinbutton");
  input.setAttribute("aria-label", name === "scale" ? "scale" : `${name}, row ${i}, column ${j}`);
  if (name === "scale") [input.value, input.placeholder, input.title] = ["", cell.textContent, "Empty: 1/√2"];
  cell.replaceChildren(input);
  return input;
}

function button(cell, label) {
  const made = document.createElement("button");
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.textContent = cell.textContent;
  cell.replaceChildren(made);
  return made;
}

function allow(toggle, allowed) {
  toggle.setAttribute("aria-pressed", allowed);
  toggle.textContent = allowed ? "✓" : "✕";
}

for (const name of [...MATRICES, "scale"]) {
  fields[name] = found[name].map((row, i) => row.map((cell, j) => field(name, i, j, cell)));
}
fields.mask = found.mask.map((row, i) => row.map((cell, j) => button(cell, `query ${i} may look at key ${j}`)));
for (const name of ORDER) {
  found[name].forEach((row, i) =>
    row.forEach((cell, j) => Object.assign(button(cell), { tabIndex: -1 }).setAttribute("aria-pressed", false)),
  );
}

const keys = () => (square.checked ? 2 : 3);
const isScale = (input) => input === fields.scale[0][0];
const value = (input) => (isScale(input) && !input.value.trim() ? null : readTyped(input.value));
const name = (input) => input.getAttribute("aria-label");

// The numbers of all fields; null, and the reason in words, where one is none.
function entered() {
  let reason = "";
  const read = (input, last) => {
    try {
      input.removeAttribute("aria-invalid");
      const x = value(input);
      input.setAttribute("aria-valuenow", x ?? 2 ** -0.5);
      return x;
    } catch (error) {
      input.setAttribute("aria-invalid", true);
      reason ||= `${name(input)} ${error.message}. The results are those of ${typed(last)} there.`;
      return null;
    }
  };
  const before = (of, i, j) => Number((numbers?.[of][i]?.[j] ?? 0).toPrecision(4));
  const rows = (of) =>
    fields[of].slice(0, rowsOf(keys())[of]).map((row, i) => row.map((input, j) => read(input, before(of, i, j))));
  const all = Object.fromEntries(MATRICES.map((of) => [of, rows(of)]));
  all.scale = read(fields.scale[0][0], Number((numbers?.scale ?? 2 ** -0.5).toPrecision(4)));
  all.mask = fields.mask.map((row) => row.slice(0, keys()).map((toggle) => toggle.getAttribute("aria-pressed") === "true"));
  root.classList.toggle("head-stale", Boolean(reason));
  if (reason) told.textContent = reason;
  return reason ? null : all;
}

// Puts a state into the fields.
function put(state) {
  square.checked = state.numbers.K.length === 2;
  for (const of of MATRICES) state.numbers[of].forEach((row, i) => row.forEach((x, j) => (fields[of][i][j].value = typed(x))));
  fields.scale[0][0].value = state.numbers.scale === null ? "" : typed(state.numbers.scale);
  state.numbers.mask.forEach((row, i) => row.forEach((may, j) => allow(fields.mask[i][j], may)));
  chosen.value = state.wrong;
  at = state.at;
}

// --- What follows.

function paint(of, T, right) {
  const tables = isTable(T) && words(T) === words(right);
  const most = tables ? Math.max(...T.flat().filter(Number.isFinite).map(Math.abs), 0) || 1 : 1;
  found[of].forEach((row, i) =>
    row.forEach((cell, j) => {
      const x = tables ? T[i]?.[j] : undefined;
      const text = x === undefined ? "–" : shown(x);
      const box = cell.firstElementChild ?? cell;
      if (box.textContent !== text) box.textContent = text;
      if (box !== cell) box.setAttribute("aria-label", `${of}, row ${i}, column ${j}: ${text}`);
      cell.style.setProperty("--c", Number.isFinite(x) ? (Math.abs(x) / most).toFixed(3) : 0);
      cell.dataset.sign = x < 0 ? "-" : "+";
      const off = right[i]?.[j] !== undefined && !(Math.abs(x - right[i][j]) <= 1e-9 * (1 + Math.abs(right[i][j])));
      cell.toggleAttribute("data-off", off && !(x === right[i][j]) && !(Number.isNaN(x) && Number.isNaN(right[i][j])));
    }),
  );
}

function show() {
  const all = entered();
  root.toggleAttribute("data-square", square.checked);
  if (!all) return;
  numbers = all;
  if (at[1] >= rowsOf(keys())[OF[at[0]]]) at = [at[0], 0, at[2]];
  const wrong = MISTAKES[chosen.value];
  const [a, right] = [head(numbers, wrong), head(numbers)];
  for (const of of ["S", "P", "O", "dP", "D", "dS", "dQ", "dK", "dV"]) paint(of, result(a, of), right[of]);
  paint("L", logsumexp(a.S), logsumexp(right.S));
  showEntry(a, right);
  showTests(wrong);
  say(a, right);
}

function say(a, right) {
  const dead = numbers.mask.flatMap((row, i) => (row.some(Boolean) ? [] : [i]));
  const none = `Query ${dead.join(" and query ")} may look at nothing: ${dead.length > 1 ? "their" : "its"} weights, output and gradients are 0, and L is −∞.`;
  const broken = ORDER.filter((of) => !isTable(result(a, of)) || words(a[of]) !== words(right[of]));
  const why = broken.map((of) => {
    const came = result(a, of);
    return isTable(came) ? `${of} comes out ${words(came)}, not ${words(right[of])}.` : `${of} cannot be computed: ${came}.`;
  });
  const text = [dead.length ? none : "", ...why].join(" ").trim();
  if (told.textContent !== text) told.textContent = text;
}

const entry = (of, i, j) => `${of}<sub>${i},${j}</sub>`;

// The terms of the chosen entry, their sum, and the difference quotient beside it.
function showEntry(a, right) {
  const [of, i, j] = at;
  const lines = {
    dQ: () => [a.dproducts[i], numbers.K.map((row) => row[j]), a.dQ_scale, "dS", (k) => [i, k], "K", (k) => [k, j]],
    dK: () => [mT(a.dproducts)[i], numbers.Q.map((row) => row[j]), a.dK_scale, "dS", (k) => [k, i], "Q", (k) => [k, j]],
    dV: () => [mT(a.P_backward)[i], numbers.dO.map((row) => row[j]), null, "P", (k) => [k, i], "dO", (k) => [k, j]],
  };
  const T = result(a, of);
  const x = isTable(T) && words(T) === words(right[of]) ? T[i][j] : undefined;
  const by = quotient(numbers, OF[of], i, j);
  const agrees = Math.abs(by - x) <= 1e-6 * (1 + Math.abs(by));
  const near = !agrees && x !== undefined && shown(by, 4) === shown(x, 4); // so near that more digits tell them apart
  const verdict = agrees ? "✓ the same" : x === undefined ? "✕ nothing to compare" : `✕ not ${near ? shown(x, 7) : "the same"}`;
  part("quotient").innerHTML =
    `Move ${entry(OF[of], i, j)} by ±0.00001: the loss changes at the rate <b>${shown(by, near ? 7 : 4)}</b> ` +
    `<span class="${agrees ? "head-same" : "head-off"}">${verdict}</span>`;
  for (const gradient of ORDER) {
    found[gradient].forEach((row, r) =>
      row.forEach((cell, c) => {
        const is = gradient === of && r === i && c === j;
        cell.firstElementChild.setAttribute("aria-pressed", is);
        cell.firstElementChild.tabIndex = is ? 0 : -1;
      }),
    );
  }
  root.querySelectorAll("[data-read]").forEach((cell) => cell.removeAttribute("data-read"));
  let line;
  try {
    line = lines[of]();
  } catch (error) {
    part("terms").innerHTML = `<b>${entry(of, i, j)}</b> cannot be computed: ${error.message}.`;
    return;
  }
  const [left, beside, factor, leftName, leftAt, rightName, rightAt] = line;
  const names = left.map((_, k) => `${entry(leftName, ...leftAt(k))} ${entry(rightName, ...rightAt(k))}`);
  const terms = left.map((y, k) => `${shown(y)} · ${shown(beside[k])}`);
  const around = (inside, by) => (by === null ? inside : `${by} · (${inside})`);
  const sum = (factor ?? 1) * left.reduce((s, y, k) => s + y * beside[k], 0);
  const differs = !(Math.abs(sum - x) <= 1e-9 * (1 + Math.abs(sum)));
  part("terms").innerHTML =
    `<b>${entry(of, i, j)}</b> = ${around(names.join(" + "), factor === null ? null : "scale")}<br>` +
    `≈ ${around(terms.join(" + "), factor === null ? null : shown(factor))}; unrounded <b>${shown(sum, 4)}</b>` +
    (differs ? `, were it not for the mistake, which ${x === undefined ? "gives no such table" : `makes it <b>${shown(x, 4)}</b>`}` : "");
  left.forEach((_, k) => {
    found[leftName][leftAt(k)[0]][leftAt(k)[1]].dataset.read = "";
    found[rightName][rightAt(k)[0]][rightAt(k)[1]].dataset.read = "";
  });
}

function showTests(wrong) {
  part("tests").hidden = !wrong;
  if (!wrong) return;
  let caught = 0;
  for (const item of live.querySelectorAll("[data-test]")) {
    const off = TESTS[item.dataset.test](numbers, wrong);
    caught += off.length > 0;
    item.dataset.verdict = off.length ? `caught: ${off.join(", ")}` : "does not see it";
    item.toggleAttribute("data-caught", off.length > 0);
  }
  const { needs } = chosen.selectedOptions[0].dataset;
  const hint = needs ? `it takes ${needs}` : "change them a little";
  const [a, right] = [head(numbers, wrong), head(numbers)];
  const hidden = !["O", ...ORDER].some((of) => differs(result(a, of), right[of], Math.max(1, largest(right[of]))));
  part("verdict").textContent = hidden
    ? `With these numbers the mistake changes nothing: ${hint}.`
    : `Of 8 tests with these numbers, ${caught} see${caught === 1 ? "s" : ""} it.`;
  const link = part("tests").querySelector("a");
  link.href = `${link.href.split("#")[0]}#mistake-${chosen.value}`;
}
