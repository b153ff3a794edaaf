// The last lines of the file that is fetched: what is known, and what finds in it. search.js waits for it.
const known = KNOWN;
globalThis.bookSearch = makeFind({ MiniSearch, terms: makeTerms(Stemmer, known), ...known });
