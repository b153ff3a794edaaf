// What needs no reader is done while the site is built: names become terms, and what a place says its sorted terms, each
// once, less those of its names. Run by site_search.py: JSON in, JSON out.
const [stemmer, synonyms] = [process.argv[2], JSON.parse(process.argv[3])];
const makeTerms = require("./terms.js");
const terms = makeTerms(new Function(`${stemmer}; return Stemmer;`)(), synonyms);

const { pages, places } = JSON.parse(require("fs").readFileSync(0, "utf8"));
for (const place of places) {
  place.called = [...new Set(place.names.map((name) => terms(name).join(" ")))];
  const named = new Set(place.called.join(" ").split(" "));
  place.said = [...new Set(terms(place.said))].filter((term) => !named.has(term));
}
// A word is its place in the list of words, the frequent ones first, and of a place the steps from one to the next.
const times = new Map();
for (const { said } of places) for (const term of said) times.set(term, (times.get(term) ?? 0) + 1);
const words = [...times.keys()].sort((a, b) => times.get(b) - times.get(a) || (a < b ? -1 : 1));
const at = new Map(words.map((term, i) => [term, i]));
for (const place of places) {
  place.said = place.said.map((term) => at.get(term)).sort((a, b) => a - b).map((here, i, all) => here - (all[i - 1] ?? 0));
}
const named = pages.map(([page, name, worth]) => [page, name, worth, terms(name).join(" ")]);
process.stdout.write(JSON.stringify({ pages: named, words: words.join(" "), places }));
