// Shared by all parts of the page: the data, the colours, the visible rows, the theme.
const DATA = JSON.parse(document.getElementById("data").textContent);
const COLOURS = 8;

function colourOf(arm) { return `var(--c${arm % COLOURS})`; }
// Rows beyond the last colour reuse the colours with other dashes.
function dashOf(arm) { return ["", "6 3", "2 3", "8 3 2 3"][Math.floor(arm / COLOURS) % 4]; }

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "circle", "rect", "g", "title"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const State = {
  hidden: new Set(),
  across: "step",
  at: null,
  listeners: [],
  subscribe(listener) { this.listeners.push(listener); },
  change(what) { for (const listener of this.listeners) listener(what); },
};

for (const swatch of document.querySelectorAll(".swatch[data-arm]")) {
  swatch.style.background = colourOf(Number(swatch.dataset.arm));
}

(function theme() {
  const root = document.documentElement;
  // A page opened from a file may not be allowed to store anything.
  const stored = { get() { try { return localStorage.getItem("halfstep-theme"); } catch { return null; } },
    set(value) { try { localStorage.setItem("halfstep-theme", value); } catch { /* kept for this visit */ } } };
  if (["light", "dark"].includes(stored.get())) root.dataset.theme = stored.get();
  document.getElementById("theme").addEventListener("click", () => {
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
    stored.set(root.dataset.theme);
  });
})();
