// Figures with controls: shows the controls, and puts the values of their positions into the picture. It computes none.
function enliven(figure) {
  const form = figure.querySelector(":scope > form");
  const sentence = figure.querySelector(":scope > .interactive-say");
  const data = JSON.parse(figure.querySelector(":scope > script").textContent);

  const controls = [...form.children].map((box) => ({
    name: box.dataset.control,
    inputs: [...box.querySelectorAll("input")],
  }));
  const isSlider = (c) => c.inputs[0].type === "range";
  const positions = (c) => (isSlider(c) ? Number(c.inputs[0].max) + 1 : c.inputs.length);
  const position = (c) => Number(isSlider(c) ? c.inputs[0].value : c.inputs.find((input) => input.checked).value);

  // Each part that changes: where it is, what of it changes, by which controls, and the places of its values in the list.
  const parts = data.parts.map(([name, key, axes, places]) => ({
    element: name ? figure.querySelector(`[data-part="${name}"]`) : sentence,
    key,
    value: () => data.values[places[axes.reduce((n, a) => n * positions(controls[a]) + position(controls[a]), 0)]],
  }));

  // The sentence gets the room of the longest, so that nothing moves below it.
  const room = document.createElement("div");
  room.className = "interactive-room";
  sentence.replaceWith(room);
  const places = data.parts.filter(([name]) => !name).flatMap((part) => part[3]);
  room.append(sentence, ...[...new Set(places)].map((place) => unsaid(data.values[place])));

  function show() {
    for (const { element, key, value } of parts) {
      if (key !== "text") value() === null ? element.removeAttribute(key) : element.setAttribute(key, value());
      else if (element.textContent !== value()) element.textContent = value();
    }
    controls.filter(isSlider).forEach((c) => {
      const text = JSON.parse(c.inputs[0].dataset.values)[position(c)];
      c.inputs[0].setAttribute("aria-valuetext", text);
      c.inputs[0].closest("label").nextElementSibling.textContent = text;
    });
  }

  // Pointing at a part of the picture, by mouse or by touch, is a short way to set controls.
  function choose(event) {
    const chosen = event.target.closest("[data-choose]");
    if (!chosen) return;
    const before = controls.map(position).join();
    chosen.dataset.choose.split(", ").forEach((choice) => {
      const [name, place] = choice.split(":");
      const control = controls.find((c) => c.name === name);
      if (isSlider(control)) control.inputs[0].value = place;
      else control.inputs[place].checked = true;
    });
    if (controls.map(position).join() !== before) show();
  }

  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  figure.addEventListener("pointerover", choose);
  figure.addEventListener("click", choose);
  form.hidden = false;
  show();
}

function unsaid(text) {
  const span = document.createElement("span");
  span.className = "interactive-unsaid";
  span.textContent = text;
  return span;
}

// A figure gets its controls when the reader comes near: where they are not in the page yet, its template holds them.
const coming = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      coming.unobserve(target);
      const spare = target.querySelector(":scope > template");
      if (spare) spare.replaceWith(spare.content);
      enliven(target);
    }
  },
  { rootMargin: "100% 0%" },
);

// Those of the page, and those that a cell makes which the reader runs.
function awaitAll() {
  document.querySelectorAll("figure.interactive:has(> form[hidden], > template)").forEach((f) => coming.observe(f));
}

document.addEventListener("attnbook:shown", awaitAll);
awaitAll();
