// Ranks the places of the book for a query. MiniSearch finds and weighs words; what a formula or a section is called, how
// much of the query a place holds, and what kind of place it is decide between those it finds.
async function makeFind({ MiniSearch, terms, pages, places, words, near }) {
  const most_letters = 200, most_terms = 16;
  const fields = ["name", "inside", "said"];
  const boost = { name: 5, inside: 1.2, said: 1 };
  const worth = { equation: 1, section: 1.1, question: 1, letter: 0.85, mistake: 0.8, page: 0.8, incident: 0.7, function: 0.45, class: 0.4 };
  const index = new MiniSearch({ fields, tokenize: (text) => text.split(" "), processTerm: (term) => term });
  const list = (text) => text.split(" ");
  const met = terms("who else met this issue: a bug report").join(" ");

  const text = list(words);
  const read = (steps, at = 0) => steps.map((step) => text[(at += step)]).join(" ");
  const known = places.map(([page, anchor, kind, title, names, called, said, lead, inside, left], id) => {
    if (/^(function|class)/.test(kind)) [anchor, names] = [title, [title, title.split(".").at(-1)]];
    if (!called.length) called = names.map((name) => terms(name).join(" "));
    return {
      id, page, anchor, kind, title, lead, names, left, called,
      said: read(said),
      name: [...new Set(called.flatMap(list))].join(" "),
      inside: `${inside < 0 ? "" : places[inside][5][0]} ${pages[page][3]} ${kind === "incident" ? met : ""}`,
      // A formula that the index of letters names is the first of its kind.
      worth: worth[kind.split(" ")[0]] * pages[page][2] * (kind.startsWith("equation") && names.length > 2 ? 1.2 : 1),
    };
  });
  await index.addAllAsync(known, { chunkSize: 100 }); // a phone stays awake meanwhile

  const related = new Map(Object.entries(near).map(([word, others]) => [terms(word)[0], others.map((other) => terms(other)[0])]));
  const held = (term) => index.search(term, { prefix: false, fuzzy: false, boost });

  // Terms that a misspelt one may mean: two letters swapped, or one edit. The stem of a misspelt word may be too long.
  function corrected(term) {
    if (term.length < 4) return [];
    const swapped = [...term].slice(1).map((letter, i) => term.slice(0, i) + letter + term[i] + term.slice(i + 2));
    const meant = swapped.filter((other) => held(other).length);
    for (let cut = term; !meant.length && cut.length > 3 && cut.length > term.length - 3; cut = cut.slice(0, -1)) {
      const results = index.search(cut, { prefix: false, fuzzy: 1, maxFuzzy: 1, boost });
      meant.push(...new Set(results.flatMap(({ match }) => Object.keys(match))));
    }
    return meant;
  }

  // The places that hold a term: as it is; begun with it, where it may not be finished; misspelt, where no place has it.
  function meets(term, last) {
    const found = new Map();
    const add = (results, share) => {
      for (const { id, score, match } of results) {
        if (found.get(id)?.score >= score * share) continue;
        const named = Object.keys(match).filter((met) => match[met].includes("name"));
        found.set(id, { score: score * share, named });
      }
    };
    add(held(term), 1);
    const long = term.length > 2;
    if (last && long) add(index.search(term, { prefix: true, fuzzy: false, boost }), found.size ? 0.6 : 0.9);
    if (!found.size && long) add(index.search(term, { prefix: true, fuzzy: false, boost }), 0.8);
    const meant = found.size ? [term] : corrected(term);
    if (!found.size) for (const other of meant) add(held(other), 0.8);
    for (const word of meant) (related.get(word) ?? []).forEach((other, i) => add(held(other), i ? 0.55 : 0.85));
    return found;
  }

  // What the pages print beside a formula and before a section: 7.3, (7.3), eq. 7.3, section 4.2.
  const numbered = (asked) => {
    const [, of, number] = /^(eq\w*\.?|formula|section|§)?\s*\(?(\d+(?:\.\d+)+)\)?$/i.exec(asked) ?? [];
    if (!number) return [];
    const named = known.filter(({ kind }) => kind === `equation ${number}` || kind === `section ${number}`);
    return /^(section|§)/i.test(of ?? "") ? named.reverse() : named; // formulas come first in the list
  };

  // The query is the whole name of a place, a formula, or the letter that it computes. A function must be named as one.
  function exactly({ kind, names, called, left, said }, asked, line) {
    if (/^(function|class)/.test(kind)) return /[_.]/.test(asked) && names.includes(asked) ? 3 : 0;
    const [mine, its] = [list(line), [...list(said), ...called.flatMap(list)]];
    const written = asked.includes("=") && kind.startsWith("equation");
    if (written && mine.every((term) => its.includes(term)) && list(said).every((term) => mine.includes(term))) return 3;
    if (names.includes(asked)) return 4;
    if (called.includes(line)) return 2;
    return left.includes(asked) ? 1 : 0;
  }

  const find = (query, most) => {
    const asked = query.trim().slice(0, most_letters);
    const words = [...new Set(terms(asked, true))].slice(0, most_terms);
    const cut = query.trim().length > most_letters;
    if (!words.length) return { words, cut, count: 0, found: [] };
    const line = terms(asked, true).join(" ");
    const met = words.map((word, i) => meets(word, i === words.length - 1));
    const rarity = met.map((found) => Math.log(1 + known.length / (1 + found.size)));
    const all = rarity.reduce((a, b) => a + b, 0);
    const hits = new Map();
    met.forEach((found, i) => {
      for (const [id, { score, named }] of found) {
        const hit = hits.get(id) ?? { score: 0, share: 0, named: 0, terms: new Set() };
        hit.score += score;
        hit.share += rarity[i] / all;
        if (named.length) hit.named += rarity[i] / all;
        for (const term of named) hit.terms.add(term);
        hits.set(id, hit);
      }
    });
    const ranked = [...hits].map(([id, { score, share, named, terms: met }]) => {
      const place = known[id];
      const asked_for = Math.max(...place.called.map(list).map((name) => name.filter((term) => met.has(term)).length / name.length));
      let rank = score * share ** 2 * (0.6 + 0.4 * named) * (1 + 0.5 * asked_for) * place.worth;
      if (` ${place.called.join(" | ")} `.includes(` ${line} `)) rank *= 1.5; // these words in a row
      return { place, rank, share, exact: exactly(place, asked, line) };
    });
    ranked.sort((a, b) => b.exact - a.exact || (a.exact ? 0 : b.rank - a.rank) || a.place.id - b.place.id);
    const most_share = Math.max(...ranked.map(({ share }) => share)); // what holds one frequent word of many is no place to go
    const fit = ranked.filter(({ exact, share }) => exact || share > most_share / 2).map(({ place }) => place);
    // A question stands in a chapter, where it is answered, and on the page of questions: the chapter comes first.
    const sections = new Map(fit.filter(({ kind }) => kind.startsWith("section")).map((place) => [place.anchor, place]));
    const answered = (place) => [...(place.kind === "question" ? [sections.get(place.anchor)] : []), place].filter(Boolean);
    const found = [...new Set([...numbered(asked), ...fit.flatMap(answered)])];
    return { words, cut, count: found.length, found: found.slice(0, most) };
  };
  return Object.assign(find, { pages });
}
if (typeof module !== "undefined") module.exports = makeFind;
