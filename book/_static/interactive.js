// Figures with controls: shows the controls, and puts the values of the chosen state into the picture. It computes none.
document.querySelectorAll("figure.interactive").forEach((figure) => {
  const form = figure.querySelector(":scope > form");
  const say = figure.querySelector(":scope > .interactive-say");
  const { targets, states } = JSON.parse(figure.querySelector(":scope > script").textContent);

  // What the states change, with its value in the first picture: a state lists only its differences from that.
  const places = targets.map(([part, key]) => {
    const element = figure.querySelector(`[data-part="${part}"]`);
    return { element, key, first: key === "text" ? element.textContent : element.getAttribute(key) };
  });

  function put({ element, key }, value) {
    if (key === "text") element.textContent = value;
    else if (value === null) element.removeAttribute(key);
    else element.setAttribute(key, value);
  }

  const controls = [...form.children].map((box) => ({
    name: box.dataset.control,
    inputs: [...box.querySelectorAll("input")],
  }));
  const isSlider = ({ inputs }) => inputs[0].type === "range";
  const positions = (c) => (isSlider(c) ? Number(c.inputs[0].max) + 1 : c.inputs.length);
  const position = (c) => Number(isSlider(c) ? c.inputs[0].value : c.inputs.find((input) => input.checked).value);

  function show() {
    const [sentence, ...changes] = states[controls.reduce((place, c) => place * positions(c) + position(c), 0)];
    places.forEach((place) => put(place, place.first));
    for (let i = 0; i < changes.length; i += 2) put(places[changes[i]], changes[i + 1]);
    say.textContent = sentence;
    controls.filter(isSlider).forEach((c) => {
      const value = JSON.parse(c.inputs[0].dataset.values)[position(c)];
      c.inputs[0].setAttribute("aria-valuetext", value);
      c.inputs[0].closest("label").nextElementSibling.textContent = value;
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
});
