/* The theme puts the copy button of each code block into a landmark, all of them without a name. */
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])")) nav.setAttribute("role", "group");
}).observe(document.documentElement, { childList: true, subtree: true });
