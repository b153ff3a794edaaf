// The buttons of a chapter. This is all that a page carries: nothing else is loaded until one of them is pressed.
const bar = document.querySelector(".run-bar");
const [say, live] = bar.querySelectorAll(".run-say, .run-live");
const first = say.textContent;

function button(action, text, label, place) {
  const made = Object.assign(document.createElement("button"), { type: "button", textContent: text });
  made.setAttribute("aria-label", label);
  made.dataset.run = action;
  made.dataset.place = place;
  return made;
}

document.querySelectorAll("article div.cell").forEach((cell, i) => {
  const tools = document.createElement("div");
  tools.className = "run-tools";
  tools.append(button("run", "Run", `Run cell ${i + 1}`, i), button("edit", "Edit", `Edit cell ${i + 1}`, i));
  cell.querySelector(".cell_input").append(tools);
});

// An exercise without a cell to start from gets an empty one, on request.
document.querySelectorAll("article div.exercise").forEach((exercise, i) => {
  if (exercise.nextElementSibling?.matches("div.cell")) return;
  exercise.append(button("try", "Try it here", `Try it here: exercise ${i + 1}`, i));
});

let there = false; // page.mjs
let tried = 0; // a browser remembers a module that it could not load, by its address

// Who has run a cell before need not wait for Python again: it starts, from what this browser keeps, when all else has.
async function early() {
  const page = import(new URL(`${bar.dataset.from}page.mjs`, location));
  page.catch(() => (tried += 1));
  await (await page).prepare();
}

if (navigator.serviceWorker?.controller && !navigator.connection?.saveData) {
  const idle = self.requestIdleCallback ?? setTimeout;
  const soon = () => idle(() => early().catch(() => {})); // a press says what is wrong
  if (document.readyState === "complete") soon();
  else addEventListener("load", soon, { once: true });
}

document.addEventListener("click", async ({ target }) => {
  const pressed = target.closest("button[data-run]");
  if (!pressed) return;
  const asked = pressed.dataset.run; // a second press, while this loads, must not ask for what the first has made of it
  if (!there) say.textContent = live.textContent = "Loading …";
  try {
    const { press } = await import(new URL(`${bar.dataset.from}page.mjs${tried ? `?${tried}` : ""}`, location));
    if (!there) [say.textContent, live.textContent, there] = [first, "", true];
    if (pressed.dataset.run === asked) press(pressed);
  } catch (error) {
    tried += 1;
    say.textContent = live.textContent =
      location.protocol === "file:"
        ? "A page opened from a file may not start Python. Open it through a web server: make serve."
        : `What runs the cells could not be loaded. ${navigator.onLine ? "Reload the page: the site may be newer than it." : "This device is offline."}`;
    throw error;
  }
});
