// A tab that is closed may wait in a <noscript>. It becomes a part of the page when it is chosen, here or in another table,
// or when there is time: then the browser's own search finds what is in it, and opens it.
{
  const CLOSED = ".sd-tab-content > noscript";
  const put = (waiting) => {
    for (const text of waiting) text.outerHTML = text.textContent;
  };
  const putChosen = () => {
    put(document.querySelectorAll(`.sd-tab-set > input:checked + label + ${CLOSED}`));
    document.dispatchEvent(new Event("attnbook:shown"));
    if (!("onbeforematch" in document.body)) return;
    for (const input of document.querySelectorAll(".sd-tab-set > input")) {
      const content = input.nextElementSibling.nextElementSibling;
      content.hidden = input.checked ? false : "until-found";
      content.onbeforematch = () => input.nextElementSibling.click();
    }
  };
  addEventListener("DOMContentLoaded", putChosen); // on the window: the script that chooses tabs has run
  addEventListener("change", putChosen);
  addEventListener("beforeprint", () => put(document.querySelectorAll(CLOSED)));

  const idle = window.requestIdleCallback ?? setTimeout;
  const putNext = () => {
    const [next] = document.querySelectorAll(CLOSED);
    if (!next) return;
    put([next]);
    idle(putNext);
  };
  addEventListener("load", () => setTimeout(() => idle(putNext), 3000));
}
