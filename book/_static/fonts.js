// A browser fetches a font when it lays out a text that needs it, and it lays out only what is near. All that the formulas
// of a page need are fetched when there is time, so that there are no gaps in what is printed, or scrolled to quickly.
{
  const needed = {
    ".katex-html": "1em KaTeX_Main",
    ".mathnormal": "italic 1em KaTeX_Math",
    ".mathbf": "bold 1em KaTeX_Main",
    ".mathsf": "1em KaTeX_SansSerif",
    ".mathbb": "1em KaTeX_AMS",
    ".mathcal": "1em KaTeX_Caligraphic",
    ".mathscr": "1em KaTeX_Script",
    ".texttt": "1em KaTeX_Typewriter",
    ".small-op, .delimsizing.size1": "1em KaTeX_Size1",
    ".large-op, .delimsizing.size2": "1em KaTeX_Size2",
    ".delimsizing.size3": "1em KaTeX_Size3",
    ".delimsizing.size4, .delim-size4": "1em KaTeX_Size4",
  };
  const fetchAll = () => {
    for (const [used, font] of Object.entries(needed)) if (document.querySelector(used)) document.fonts.load(font);
  };
  addEventListener("load", () => setTimeout(() => (window.requestIdleCallback ?? setTimeout)(fetchAll), 1000));
}
