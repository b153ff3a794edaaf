// The menus above a page open without a script. This closes one that is left.
addEventListener("click", ({ target }) => {
  for (const menu of document.querySelectorAll("details.dropdown[open]")) if (!menu.contains(target)) menu.open = false;
});
addEventListener("keydown", ({ key }) => {
  const menu = key === "Escape" && document.querySelector("details.dropdown[open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});
