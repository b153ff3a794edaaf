// What hands do: type, paste, drag, press keys, point; and links, which come from elsewhere.
const inputOf = (target) => target.closest(".head-row input");
const step = (input, by) => {
  if (!by) return;
  const from = input.getAttribute("aria-invalid") ? NaN : (value(input) ?? 2 ** -0.5);
  if (Number.isNaN(from)) return;
  const to = Math.min(LIMIT, Math.max(-LIMIT, Math.round((from + by) * 100) / 100));
  input.value = typed(to + 0);
  show();
};

root.addEventListener("input", (event) => inputOf(event.target) && show());
root.addEventListener("change", (event) => event.target.closest("form") && show());
root.addEventListener("submit", (event) => event.preventDefault());

root.addEventListener("keydown", (event) => {
  const turned = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  if (inputOf(event.target) && turned) {
    event.preventDefault();
    step(event.target, turned * (event.shiftKey ? 1 : 0.1));
  }
  const go = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (event.target.closest("td > button") && go && !event.target.closest("[data-name=mask]")) {
    event.preventDefault();
    let [of, i, j] = [at[0], at[1] + go[0], at[2] + go[1]];
    if (j < 0 || j >= WIDTH) {
      of = ORDER[ORDER.indexOf(of) + go[1]] ?? of;
      j = of === at[0] ? at[2] : (j + WIDTH) % WIDTH;
    }
    i = Math.min(Math.max(i, 0), rowsOf(keys())[OF[of]] - 1);
    point(of, i, j);
    found[of][i][j].firstElementChild.focus();
  }
});

function point(of, i, j) {
  at = [of, i, j];
  if (numbers) showEntry(head(numbers, MISTAKES[chosen.value]), head(numbers));
}

function pointAt(event) {
  const cell = event.target.closest("td");
  const of = cell?.closest("table").dataset.name;
  if (ORDER.includes(of)) point(of, cell.parentElement.rowIndex, cell.cellIndex);
}
for (const kind of ["pointerover", "focusin", "click"]) root.addEventListener(kind, pointAt);

root.addEventListener("click", (event) => {
  const toggle = event.target.closest("[data-name=mask] button");
  if (!toggle) return;
  allow(toggle, toggle.getAttribute("aria-pressed") !== "true");
  show();
});

// A drag to the right makes a number larger; a press without one enters the field, where a drag selects text. A finger
// that goes up or down scrolls.
const pressed = (event) => {
  const input = inputOf(event.target);
  return input && input !== document.activeElement && !event.button ? input : null;
};
root.addEventListener("mousedown", (event) => pressed(event) && event.preventDefault());
root.addEventListener("pointerdown", (event) => {
  const input = pressed(event);
  if (!input) return;
  let steps = 0;
  const done = new AbortController();
  const on = (kind, listen) => input.addEventListener(kind, listen, { signal: done.signal });
  input.setPointerCapture(event.pointerId);
  on("pointermove", (now) => {
    const to = Math.round((now.clientX - event.clientX) / 8);
    step(input, (to - steps) * 0.1);
    steps = to;
  });
  on("pointercancel", () => done.abort());
  on("pointerup", () => {
    done.abort();
    if (steps) return;
    input.focus();
    input.select();
  });
});

root.addEventListener("paste", (event) => {
  const input = inputOf(event.target);
  const text = event.clipboardData.getData("text");
  const of = input?.closest("table").dataset.name;
  if (!MATRICES.includes(of) || text.trim().split(/[\s,;]+/).length < 2) return;
  event.preventDefault();
  try {
    const T = readMatrix(text, [rowsOf(keys())[of], WIDTH]);
    T.forEach((row, i) => row.forEach((x, j) => (fields[of][i][j].value = typed(x))));
    show();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    told.textContent = `Nothing was pasted: ${of} ${error.message}.`;
  }
});

// --- Links.

const now = () => ({ numbers, wrong: chosen.value, at });

async function copy() {
  const link = `${location.href.split("#")[0]}#${written(now())}`;
  history.replaceState(null, "", link);
  const [box, input] = [part("link"), part("link").querySelector("input")];
  input.value = link;
  try {
    await navigator.clipboard.writeText(link);
    told.textContent = "Copied: whoever opens the link sees these numbers.";
  } catch {
    box.hidden = false;
    input.select();
    told.textContent = "This browser lets no page copy: the link stands in the field below, and in the address.";
  }
}

function open(hash) {
  if (!hash.startsWith("#head:")) return;
  try {
    put(readState(hash.replace(/%(2C|3A|3B|3D|26)/gi, decodeURIComponent))); // as some apps write links
    show();
    told.textContent ||= "These are the numbers of the link.";
    root.scrollIntoView();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    told.textContent = `The link holds no state of this head: ${error.message}. The numbers stay as they are.`;
  }
}

const none = { Q: null, K: null, V: null, dO: null };
for (const of of Object.keys(none)) none[of] = fields[of].map((row) => row.map((input) => readNumber(input.value)));
const start = { numbers: { ...none, scale: null, mask: none.Q.map(() => none.K.map(() => true)) }, wrong: "", at };

live.addEventListener("click", (event) => {
  const does = event.target.closest("[data-do]")?.dataset.do;
  if (does === "link") copy();
  if (does === "first") {
    put(start);
    show();
  }
});

root.classList.add("head-on");
put(start);
show();
open(location.hash);
addEventListener("hashchange", () => open(location.hash));
addEventListener("pageshow", (event) => event.persisted && show());
