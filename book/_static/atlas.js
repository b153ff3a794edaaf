// The page of incidents: shows what fits the symptom, the library and the year that are chosen. Without it all is shown.
{
  const form = document.querySelector(".atlas-filter");
  const rows = [...document.querySelectorAll("table.atlas tbody tr")];

  const parts = (symptom) => symptom.replace(/ wrong$/, "").split(", ");
  const fits = (row, symptom) => parts(symptom).every((part) => parts(row.dataset.symptom).includes(part));

  const show = () => {
    const { symptom, library, year } = Object.fromEntries(new FormData(form));
    const found = new Set();
    for (const row of rows) {
      for (const item of row.querySelectorAll("li")) {
        const { library: of, year: when } = item.dataset;
        item.hidden = (library && of !== library) || (year && when !== year);
      }
      row.hidden = (symptom && !fits(row, symptom)) || !row.querySelector("li:not([hidden])");
      if (!row.hidden) row.querySelectorAll("li:not([hidden]) > a:first-child").forEach((link) => found.add(link.href));
    }
    for (const section of document.querySelectorAll("section:has(> table.atlas)")) {
      section.hidden = !section.querySelector("tbody tr:not([hidden])");
    }
    form.querySelector("output").textContent = `${found.size} incident${found.size === 1 ? "" : "s"}`;
  };

  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  show();
}
