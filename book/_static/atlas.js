// The page of incidents: shows what fits all that is chosen. Without it all is shown.
{
  const form = document.querySelector(".atlas-filter");
  const rows = [...document.querySelectorAll("table.atlas tbody tr")];

  const parts = (symptom) => symptom.replace(/ wrong$/, "").split(", ");
  const fits = (row, { class: kind, topic, symptom }) =>
    (!kind || row.closest("table").dataset.class === kind) &&
    (!topic || row.dataset.topics.split("; ").includes(topic)) &&
    (!symptom || parts(symptom).every((part) => parts(row.dataset.symptom).includes(part)));

  const show = () => {
    const chosen = Object.fromEntries(new FormData(form));
    const { library, year } = chosen;
    const found = new Set();
    for (const row of rows) {
      for (const item of row.querySelectorAll("li")) {
        const { library: of, year: when } = item.dataset;
        item.hidden = (library && of !== library) || (year && when !== year);
      }
      row.hidden = !fits(row, chosen) || !row.querySelector("li:not([hidden])");
      if (!row.hidden) row.querySelectorAll("li:not([hidden]) > a:first-child").forEach((link) => found.add(link.href));
    }
    for (const section of document.querySelectorAll("section:has(> table.atlas)")) {
      section.hidden = !section.querySelector("tbody tr:not([hidden])");
    }
    const none = found.size ? "" : ": choose less";
    form.querySelector("output").textContent = `${found.size} incident${found.size === 1 ? "" : "s"}${none}`;
  };

  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("pageshow", show); // a browser that goes back restores what was chosen, and fires no input
  form.hidden = false;
  show();
}
