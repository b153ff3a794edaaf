// The slider of the tiles: marks those that are done and the one being visited, and says what happens there.
document.querySelectorAll("figure.visits").forEach((figure) => {
  const slider = figure.querySelector("input[type=range]");

  function show() {
    const chosen = figure.querySelector("input[type=radio]:checked").value;
    const box = figure.querySelector(`[data-case="${chosen}"]`);
    const tiles = [...box.querySelectorAll("g[data-say]")];
    slider.max = tiles.length;
    const step = Number(slider.value);
    tiles.forEach((tile, i) => {
      tile.dataset.state = i + 1 < step ? "done" : i + 1 === step ? "now" : "";
    });
    slider.setAttribute("aria-valuetext", step ? `tile ${step} of ${tiles.length}` : "before the first tile");
    box.querySelector(".visits-say").textContent = step ? tiles[step - 1].dataset.say : box.dataset.say;
  }

  figure.querySelector(".visits-step").hidden = false;
  figure.addEventListener("input", show);
  show();
});
