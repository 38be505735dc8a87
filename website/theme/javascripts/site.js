/* What the theme makes in the browser and leaves out: the name of each code block's landmark, and a way
   by keyboard into a table that scrolls. */
new MutationObserver(() => {
  document.querySelectorAll("nav.md-code__nav").forEach((nav, index) => {
    if (!nav.ariaLabel) nav.ariaLabel = `Code block ${index + 1}`;
  });
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) table.tabIndex = 0;
}).observe(document.documentElement, { childList: true, subtree: true });
