// One tap copies a formula's LaTeX, or its address. A selection is copied as it reads, with formulas as their LaTeX:
// KaTeX's own copy-tex copies what is hidden as well, closed folds and the boxes of theorems.
{
  const latex = (formula) => formula.querySelector("annotation").textContent.replace(/^\\begin\{split\}|\\end\{split\}$/g, "");
  const live = Object.assign(document.createElement("p"), { className: "visually-hidden" });
  live.setAttribute("role", "status");

  const copy = async (button, text) => {
    live.textContent = "";
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      show(button.parentElement, text);
      return;
    }
    live.textContent = button.textContent = "Copied";
    setTimeout(() => (button.textContent = button.title.replace("Copy ", "")), 1500);
  };

  // Where the clipboard is refused, what the reader wanted is there to be copied by hand.
  const show = (tools, text) => {
    const field = Object.assign(document.createElement("textarea"), { value: text, readOnly: true, rows: 3 });
    field.setAttribute("aria-label", "Selected, to be copied");
    field.addEventListener("blur", () => field.remove());
    tools.append(field);
    field.select();
  };

  const tool = (name, text) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: name });
    button.title = `Copy ${name}`;
    button.setAttribute("aria-label", button.title);
    button.addEventListener("click", () => copy(button, text()));
    return button;
  };
  const equip = () => {
    const where = "article div.math, article .answer tr:has(td .katex) > td:last-child";
    for (const box of document.querySelectorAll(where)) {
      if (box.querySelector(":scope > .copy-tools")) continue;
      const tools = Object.assign(document.createElement("span"), { className: "copy-tools" });
      tools.append(tool("LaTeX", () => latex(box.closest("tr") ?? box)));
      if (box.id) tools.append(tool("link", () => new URL(`#${box.id}`, location).href));
      box.append(tools);
      document.body.append(live);
    }
  };
  document.addEventListener("attnbook:shown", equip); // a tab that is chosen
  equip();

  const NOT_READ =
    ".headerlink, .marks, .copy-tools, .run-bar, button, details.hide:not([open]), [popover], noscript, script, style, svg, template";
  const whole = (node) => {
    const element = node.closest ? node : node.parentElement;
    return element.closest(".katex-display") ?? element.closest(".katex");
  };
  document.addEventListener("copy", (event) => {
    const selection = getSelection();
    if (selection.isCollapsed || event.target.closest?.("input, textarea")) return;
    const range = selection.getRangeAt(0).cloneRange();
    const [first, last] = [whole(range.startContainer), whole(range.endContainer)];
    if (first) range.setStartBefore(first);
    if (last) range.setEndAfter(last);
    const copied = document.createElement("div");
    copied.append(range.cloneContents());
    if (!copied.querySelector(".katex")) return; // the browser knows best
    copied.className = "being-copied"; // only what is laid out can say how it reads
    document.body.append(copied);
    for (const part of copied.querySelectorAll(NOT_READ)) part.remove();
    for (const formula of copied.querySelectorAll(".katex")) {
      const mark = formula.closest(".katex-display") ? "$$" : "$";
      formula.replaceWith(mark + latex(formula) + mark);
    }
    for (const link of copied.querySelectorAll("a")) link.setAttribute("href", link.href);
    event.clipboardData.setData("text/plain", copied.innerText);
    event.clipboardData.setData("text/html", copied.innerHTML);
    copied.remove();
    event.preventDefault();
  });
}
