// The search page: formulas, letters, functions, mistakes and questions that fit a query stand before Sphinx's pages.
{
  const found_at_most = 12;

  // "√d_k" is "sqrt d k", "log-sum-exp" is "log sum exp", "Ṡ" is "s", "masks" and "mask’s" are "mask": what a reader can type.
  const plain = (text) =>
    text.replace(/\^\{?\\?T\b\}?/g, "T").replace(/[’']s\b/g, "").replaceAll("√", " sqrt ").normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase()
      .split(/[^\p{L}\p{N}∘⊙∂]+/u).map((word) => (word.length > 3 ? word.replace(/s$/, "") : word))
      .filter(Boolean).join(" ");
  const idle = new Set(
    "a an and are at by can do does for from how i in is it may must my of on or that the to what when where which why with".split(" "));
  const text = (html) => html.replace(/<[^>]*>/g, "");

  const places = PLACES.map(([page, anchor, title, kind, names, left, said]) => {
    const plainNames = names.map(plain);
    const called = [plain(text(title)), ...plainNames];
    return {
      result: [page, title, anchor && `#${anchor}`, kind, 0, `${page}.ipynb`],
      names, left, plainNames, called,
      words: [...new Set(called.join(" ").split(" "))],
      said: said ? plain(said).split(" ") : [],
    };
  });

  // A word of the query is a word of the place or, if it is longer than two letters, begins one.
  const fits = (word, words) =>
    words.includes(word) || (word.length > 2 && words.some((longer) => longer.startsWith(word)));

  // For each word of the query whether it does. Two may be one word there: "flash attention" is "FlashAttention".
  const met = (asked, words) => {
    const pair = (i) => i in asked && i + 1 in asked && fits(asked[i] + asked[i + 1], words);
    return asked.map((word, i) => fits(word, words) || pair(i - 1) || pair(i));
  };

  const score = (place, query, words) => {
    if (place.names.includes(query)) return 5;
    if (place.plainNames.includes(words)) return 4;
    if (place.left.includes(query)) return 3;
    const asked = words.split(" ").filter((word) => !idle.has(word));
    const named = met(asked, place.words);
    const all = asked.length && named.every(Boolean);
    if (all || fits(words.replaceAll(" ", ""), place.words)) {
      const in_a_row = place.called.some((name) => ` ${name} `.includes(` ${words} `)); // before the same words scattered
      return (in_a_row ? 2 : 1) + 1 / (place.words.length + 1);
    }
    // Not what the place is called, but said there. More words in its title come first, then the shorter place.
    if (!asked.length || !met(asked, [...place.words, ...place.said]).every(Boolean)) return 0;
    return (named.filter(Boolean).length / asked.length + 1 / place.said.length) / 2;
  };

  const find = (query) => {
    const words = plain(query);
    if (!words) return [];
    return places
      .map((place, order) => ({ place, order, score: score(place, query, words) }))
      .filter((hit) => hit.score)
      .sort((a, b) => b.score - a.score || a.order - b.order)
      .slice(0, found_at_most)
      .map((hit, i) => hit.place.result.with(4, 1000 - i));
  };

  // What stands around a word on a page: its sentences, each formula once and in one line, and no buttons or pictures.
  const no_words = "script, style, svg, button, annotation, .katex-html, .headerlink, .checked, .run-bar";
  const between = { mfrac: "/", msub: "_", msup: "^", munder: "_", munderover: "_" };
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html").querySelector("article");
    const article = (anchor && page?.querySelector(`section[id="${anchor.slice(1)}"]`)) || page;
    if (!article) return "";
    article.querySelectorAll(no_words).forEach((part) => part.remove());
    article.querySelectorAll("msqrt").forEach((root) => root.prepend("√"));
    article.querySelectorAll(Object.keys(between).join()).forEach((part) => part.firstElementChild.after(between[part.localName]));
    return article.textContent.replace(/[\u200b\u2061-\u2064]/g, "").replace(/\s+/g, " ").trim();
  };

  let marks = "";
  document.addEventListener("click", ({ target }) => {
    const link = target.closest("#search-results a");
    if (link && !link.hash) localStorage.setItem("sphinx_highlight_terms", marks);
  });

  const pages = Search._performSearch; // best result last
  Search._performSearch = (query, terms, excluded, highlighted, objects) => {
    const found = find(query.trim());
    const at = new Set(found.map((result) => result[0] + result[2]));
    // Who goes to a place needs no marks; on a whole page they help, but a search for D must not mark every d.
    localStorage.removeItem("sphinx_highlight_terms");
    marks = [...highlighted].filter((word) => word.length > 2).join(" ");
    return [...pages(query, terms, excluded, highlighted, objects).filter((result) => !at.has(result[0] + result[2])), ...found.reverse()];
  };
}
