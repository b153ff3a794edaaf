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
    throw error;
  }
}

async function kept(request, how) {
  return (await ours)?.match(request, { ignoreVary: true, ...how });
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
