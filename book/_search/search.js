// The field of the search: places of the book that fit are listed as one types. The index comes when it is first used.
{
  const here = document.currentScript.src;
  const book = new URL("../", here);
  const on_page = 50, in_dialog = 8;

  const address = new URL("search-index.js", here);

  let coming;
  const index = () =>
    (coming ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = address;
      script.onload = () => (globalThis.bookSearch ? resolve(globalThis.bookSearch) : script.onerror());
      script.onerror = () => {
        coming = undefined; // the next key asks again
        script.remove();
        reject();
      };
      document.head.append(script);
    }));

  const quoted = (text) => `“${text.length > 60 ? `${text.slice(0, 60)}…` : text}”`;

  const said = (query, { words, cut, count, found }) => {
    if (!words.length) return `There is no word, letter or formula in ${quoted(query)} to look for.`;
    const part = cut ? "Only the first 200 characters are looked for. " : "";
    if (!count) return `${part}Nothing in the book fits ${quoted(query)}. Try fewer words, or others.`;
    return `${part}${count > found.length ? `The best ${found.length} of ${count}` : count} ${count === 1 ? "place" : "places"}`;
  };

  const option = (place, pages, i) => {
    const link = document.createElement("a");
    const [page, name] = pages[place.page];
    link.href = new URL(`${page}.html${place.anchor && `#${encodeURIComponent(place.anchor)}`}`, book);
    link.id = `search-option-${i}`;
    link.setAttribute("role", "option");
    link.tabIndex = -1;
    if (/^(equation|letter)/.test(place.kind)) link.className = "search-formula";
    const where = place.kind === "page" ? name : `${place.kind}, ${name}`; // both from the book itself, as is its HTML:
    link.innerHTML = `<span class="search-title">${place.title}</span> <span class="search-where">${where}</span> ${place.lead && `<span class="search-lead">${place.lead}</span>`}`;
    return link;
  };

  const equip = (form) => {
    const input = form.querySelector("input");
    const dialog = form.closest("dialog");
    const say = Object.assign(document.createElement("p"), { className: "search-say" });
    const list = Object.assign(document.createElement("div"), { className: "search-list", id: `search-list-${dialog ? "dialog" : "page"}`, hidden: true });
    const all = Object.assign(document.createElement("a"), { className: "search-all", textContent: "More, on a page", hidden: true });
    say.setAttribute("role", "status");
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Places");
    form.after(say, list, ...(dialog ? [all] : []));
    for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-controls": list.id, "aria-expanded": "false" })) input.setAttribute(name, value);

    const choose = (link) => {
      list.querySelector("[aria-selected=true]")?.removeAttribute("aria-selected");
      link?.setAttribute("aria-selected", "true");
      if (link) input.setAttribute("aria-activedescendant", link.id);
      else input.removeAttribute("aria-activedescendant");
    };

    let shown = "";
    const show = (text, places = [], pages = []) => {
      say.textContent = text;
      const ids = places.map(({ id }) => id).join();
      if (ids && ids === shown) return choose(list.firstElementChild); // nothing to lay out again
      shown = ids;
      list.replaceChildren(); // and scrolled back
      list.append(...places.map((place, i) => option(place, pages, i)));
      list.hidden = !places.length;
      input.setAttribute("aria-expanded", String(!list.hidden));
      choose(list.firstElementChild);
    };

    const search = async () => {
      const query = input.value.trim();
      all.hidden = true;
      try {
        if (!dialog) history.replaceState(null, "", query ? `?q=${encodeURIComponent(query)}` : location.pathname);
      } catch {
        // some browsers refuse it after a hundred in a few seconds, as when a key is held
      }
      if (!query) return show("");
      if (!globalThis.bookSearch) say.textContent = "The index is on its way …";
      try {
        const find = await index();
        if (query !== input.value.trim()) return; // more was typed meanwhile
        const answer = find(query, dialog ? in_dialog : on_page);
        show(said(query, answer), answer.found, find.pages);
        all.hidden = answer.count <= answer.found.length;
        all.href = new URL(`search.html?q=${encodeURIComponent(query)}`, book);
      } catch {
        show("The index of the search did not arrive. The next key asks for it again.");
      }
    };

    input.addEventListener("input", search);
    input.addEventListener("focus", () => index().catch(() => {}), { once: true });
    input.addEventListener("keydown", (event) => {
      const options = [...list.children];
      const at = options.findIndex((link) => link.getAttribute("aria-selected") === "true");
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.key === "Enter" && !event.isComposing && at >= 0) {
        event.preventDefault();
        options[at].click();
      } else if (step && options.length) {
        event.preventDefault();
        const next = options.at((at + step) % options.length);
        choose(next);
        next.scrollIntoView({ block: "nearest" });
      }
    });
    list.addEventListener("click", () => dialog?.close()); // it may lead to this page
    if (!dialog) {
      input.value = new URLSearchParams(location.search).get("q") ?? "";
      input.focus();
      search();
    }
  };

  document.querySelectorAll("form.bd-search").forEach(equip);

  // Where pages are kept, as from the first cell that was run, one searches without a network too.
  const keep = () => caches.match(address).then((kept) => kept ?? fetch(address)).catch(() => {});
  document.addEventListener("attnbook:kept", keep);
  if (navigator.serviceWorker?.controller && !navigator.connection?.saveData) (self.requestIdleCallback ?? setTimeout)(keep);

  addEventListener("keydown", (event) => {
    const writes = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key !== "/" || writes || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    document.querySelector(".search-button__button").click();
  });
}
