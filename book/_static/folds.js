// A link to what lies in a closed fold opens it, in browsers too that do not do so themselves.
{
  const open = () => {
    const target = document.querySelector(":target");
    let closed = false;
    for (let fold = target?.closest("details:not([open])"); fold; fold = target.closest("details:not([open])")) {
      fold.open = closed = true;
    }
    if (closed) target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  open();
}
