// A tab that is closed may wait in a <noscript>. It becomes a part of the page when it is chosen, here or in another table.
{
  const CLOSED = ".sd-tab-content > noscript";
  const put = (waiting) => {
    for (const text of waiting) text.outerHTML = text.textContent;
    if (waiting.length) document.dispatchEvent(new Event("attnbook:shown"));
  };
  const putChosen = () => put(document.querySelectorAll(`.sd-tab-set > input:checked + label + ${CLOSED}`));
  addEventListener("DOMContentLoaded", putChosen); // on the window: the script that chooses tabs has run
  addEventListener("change", putChosen);
  addEventListener("beforeprint", () => put(document.querySelectorAll(CLOSED)));
}
