// As much of a browser as a chart needs, to read the SVG that it draws.
const DATA_TEXT = process.argv[1] ?? "{}";
class Node {
  constructor(tag) { Object.assign(this, { tag, attributes: {}, children: [], style: { setProperty() {} }, dataset: {}, clientWidth: 600 }); }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  append(...nodes) { this.children.push(...nodes.filter((node) => node !== "")); }
  replaceChildren(...nodes) { this.children = nodes; }
  addEventListener() {}
  closest() { return this; }
  all(tag) { return this.children.flatMap((child) => (child instanceof Node ? [...(child.tag === tag ? [child] : []), ...child.all(tag)] : [])); }
}
const host = new Node("host");
const document = {
  documentElement: new Node("html"),
  getElementById: (id) => (id === "data" ? { textContent: DATA_TEXT } : id === "charts" || id === "tradeoff" ? (host[id] ??= new Node(id)) : new Node(id)),
  createElement: (tag) => new Node(tag),
  createElementNS: (_, tag) => new Node(tag),
  querySelectorAll: () => [],
};
class ResizeObserver {
  constructor(draw) { this.draw = draw; }
  observe() { this.draw(); }
}
