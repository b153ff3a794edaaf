// What scrolls sideways inside itself can be reached by keyboard. Measured only near the screen: a chapter is long.
{
  const names = { PRE: "Code", FIGURE: "Figure", DIV: "Table", SPAN: "Formula" };
  const near = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        if (target.scrollWidth > target.clientWidth + 1) mark(target);
        else ["tabindex", "role", "aria-label"].forEach((name) => target.removeAttribute(name));
      }
    },
    { rootMargin: "100% 0%" },
  );
  const mark = (element) => {
    element.tabIndex = 0;
    element.setAttribute("role", "group");
    element.setAttribute("aria-label", names[element.tagName]);
  };
  const SCROLLERS =
    "article pre, article .katex-display, article .pst-scrollable-table-container, article .output.text_html, figure.attnbook";
  const watched = new WeakSet();
  const watch = () => {
    for (const element of document.querySelectorAll(SCROLLERS)) {
      if (watched.has(element) || element.hasAttribute("role")) continue;
      watched.add(element);
      mark(element);
      near.observe(element);
    }
  };
  document.addEventListener("attnbook:shown", watch); // a tab that is chosen, what a cell shows that the reader runs
  watch();
}
