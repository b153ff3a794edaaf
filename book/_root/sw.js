// Keeps, in the reader's browser, the pages that were read and what runs their cells: both are there without a network.
// A page registers it when a cell is run for the first time. Who never runs one stores nothing.
const UNCHANGING = /\/_static\/(run|pyodide)[-/][^/]+\//; // folders that are named after what they hold
const ours = caches.open("attnbook").catch(() => undefined); // storage may be blocked

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || !request.url.startsWith(self.registration.scope)) return;
  event.respondWith(UNCHANGING.test(request.url) && request.cache !== "reload" ? keptOrNew(request) : newOrKept(request));
});

async function keptOrNew(request) {
  return (await kept(request)) ?? store(request, await fetch(request));
}

async function newOrKept(request) {
  try {
    return store(request, await fetch(request));
  } catch (error) {
    const found = (await kept(request)) ?? (await kept(request, { ignoreSearch: true }));
    if (found) return found;
    if (request.mode === "navigate") return notKept();
    throw error;
  }
}

async function kept(request, how) {
  return (await ours)?.match(request, { ignoreVary: true, ...how });
}

// In the place of a page that was not read before.
async function notKept() {
  const all = (await (await ours)?.keys()) ?? [];
  const named = all.filter(({ url }) => url.endsWith(".html")).map(async ({ url }) => {
    const [, title] = /<title>([^<]*)/.exec(await (await kept(url)).text()) ?? [];
    return `<li><a href="${url}">${title ?? url.split("/").pop()}</a>`;
  });
  const links = (await Promise.all(named)).join("");
  const said = `<h1>The Gradients of Attention</h1><p>This page needs a network: it was not read before. These are kept:</p>`;
  const head = '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">';
  const looks = "<style>:root{color-scheme:light dark;font-family:sans-serif}body{max-width:40rem;margin:2rem auto;padding:0 1rem}a{line-height:2}</style>";
  const page = `${head}<title>Not kept</title>${looks}${said}<ul>${links}</ul>`;
  return new Response(page, { status: 503, headers: { "Content-Type": "text/html" } });
}

function store(request, answer) {
  if (answer.status === 200) put(request, answer.clone()).catch(tellIfFull);
  return answer;
}

async function tellIfFull({ name }) {
  if (name === "QuotaExceededError") for (const page of await self.clients.matchAll()) page.postMessage("full");
}

async function put(request, answer) {
  const cache = await ours;
  if (!cache) return;
  if (request.url.endsWith("/site.json")) await forget(cache, request.url, await answer.clone().json());
  await cache.put(request, answer);
}

// What an older build of the site needed is not asked for again.
async function forget(cache, url, { core }) {
  const wanted = [new URL("./", url).href, new URL(core, url).href];
  for (const { url: old } of await cache.keys()) {
    if (UNCHANGING.test(old) && !wanted.some((folder) => old.startsWith(folder))) await cache.delete(old);
  }
}
