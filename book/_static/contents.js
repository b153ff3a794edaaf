// In the list of contents beside the page, the section that is being read is marked.
{
  const links = new Map(
    [...document.querySelectorAll("#pst-page-toc-nav a")].map((link) => [decodeURIComponent(link.hash.slice(1)), link]),
  );
  const read = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) links.get(target.id).classList.toggle("active", isIntersecting);
    },
    { rootMargin: "-20% 0px -80% 0px" }, // a line across the screen, which one section crosses at a time
  );
  for (const name of links.keys()) {
    const section = document.getElementById(name);
    if (section) read.observe(section);
  }
}
