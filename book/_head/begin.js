// The fields come when the reader is near: for a field Chromium lays out the whole section around it.
const root = document.getElementById("live-head");
const near = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && start(), { rootMargin: "100% 0%" });

function start() {
  near.disconnect();
  removeEventListener("hashchange", startByLink);
  begin();
}

function startByLink() {
  if (location.hash.startsWith("#head:")) start();
}

globalThis.liveHead = { head, result, logsumexp, MISTAKES, TESTS };
near.observe(root);
addEventListener("hashchange", startByLink);
startByLink();
