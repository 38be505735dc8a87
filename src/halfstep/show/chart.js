// One chart: lines over a common x axis, a cursor shared by all charts, and the values below it.
const HEIGHT = 230;
// Number of lines whose values are shown below a chart at first; the others are shown on demand.
const MANY = 12;
const MARGIN = { left: 64, right: 14, top: 14, bottom: 26 };

function compact(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  if (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}

class Chart {
  constructor(host, { title, unit = "", across = "step", log = false, write = compact, scale = 1, suffix = "", note = "", series }) {
    Object.assign(this, { across, log, write, scale, suffix, series, title, all: false });
    this.figure = make("figure");
    this.plot = make("div", { class: "plot", tabindex: "0", role: "group", "aria-label": `${title}: chart, move with the arrow keys` });
    this.readout = make("ul", { class: "readout", "aria-label": `${title}: values` });
    this.readout.style.setProperty("--label", Math.min(32, Math.max(...series.map((curve) => curve.label.length))));
    this.more = make("button", { type: "button" });
    this.more.addEventListener("click", () => { this.all = !this.all; this.cursor(); });
    this.place = make("span");
    this.figure.append(make("figcaption", {}, unit ? `${title}, ${unit}` : title, this.place), this.plot, this.readout, this.more);
    if (note) this.figure.append(make("p", { class: "hint" }, note));
    host.append(this.figure);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => { State.at = null; State.change("cursor"); });
    this.plot.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.plot);
    State.subscribe((what) => (what === "cursor" ? this.cursor() : this.draw()));
  }

  get shown() { return this.series.filter((curve) => !State.hidden.has(curve.arm)); }

  xs(series) {
    const last = series.last || 1;
    return State.across === "share" ? series.x.map((x) => (100 * x) / last) : series.x;
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    this.width = width;
    const shown = this.shown;
    const ys = shown.flatMap((curve) => curve.y.filter((y) => y !== null && (!this.log || y > 0)));
    const positive = ys.filter((y) => y > 0);
    // Labels at powers of two do not help on an axis with fewer than three of them.
    this.powers = this.log && positive.length > 0 && Math.max(...positive) >= 8 * Math.min(...positive);
    const forward = this.powers ? Math.log2 : (y) => y;
    let [low, high] = ys.length ? [Math.min(...ys), Math.max(...ys)].map(forward) : [0, 1];
    // Values that differ by less than their labels could show are drawn as equal.
    const largest = Math.max(Math.abs(low), Math.abs(high));
    if (high - low <= 1e-5 * largest) { low -= largest * 0.1 || 0.5; high += largest * 0.1 || 0.5; }
    this.end = Math.max(1, ...shown.flatMap((curve) => this.xs(curve)));
    const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
    this.toX = (x) => MARGIN.left + (inner.width * x) / this.end;
    this.toY = (y) => MARGIN.top + inner.height * (1 - (forward(y) - low) / (high - low));
    const lines = shown.filter((curve) => curve.nonfinite.length).map((curve) => `${curve.label} not finite at step ${curve.nonfinite[0]}`);
    const svg = make("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": `${this.title} of ${shown.length} runs. ${lines.join(". ")}` });
    this.axes(svg, low, high, inner);
    const ways = shown.map((curve) => this.way(curve));
    const turns = turnsOf(ways, inner.width);
    this.crosses = new Map();
    shown.forEach((curve, index) => this.line(svg, curve, ways, index, turns[index]));
    this.overlay = make("g");
    svg.append(this.overlay);
    this.plot.replaceChildren(svg);
    this.cursor();
  }

  axes(svg, low, high, inner) {
    const ticks = this.powers ? powersOf(low, high, 4) : ticksOf(this.scale * low, this.scale * high, 4);
    for (const { value, label } of ticks) {
      const y = this.toY(value / this.scale);
      svg.append(make("line", { class: "grid-line", x1: MARGIN.left, x2: MARGIN.left + inner.width, y1: y, y2: y }));
      svg.append(make("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, label + this.suffix));
    }
    // Steps, workers and threads are whole numbers.
    for (const { value, label } of ticksOf(0, this.end, Math.max(2, Math.floor(inner.width / 90)), true)) {
      const suffix = State.across === "share" ? " %" : "";
      svg.append(make("text", { x: this.toX(value), y: HEIGHT - 8, "text-anchor": "middle" }, label + suffix));
    }
  }

  // The points of a line from the left end of the axis, in pixels; null for a value without a place.
  way(series) {
    const xs = this.xs(series);
    return series.y.map((y, index) => (y !== null && (!this.log || y > 0) ? [this.toX(xs[index]) - MARGIN.left, this.toY(y)] : null));
  }

  line(svg, series, ways, index, isTurn) {
    const stroke = `stroke: ${colourOf(series.arm)}`;
    const path = pathOf(ways[index], isTurn);
    svg.append(make("path", { class: "curve", d: path, transform: `translate(${MARGIN.left} 0)`, style: stroke, "stroke-dasharray": dashOf(series.arm), "data-source": series.source }, make("title", {}, `${series.label}, from ${series.source}`)));
    const only = ways[index].length === 1 && ways[index][0];
    if (only) {
      // Points at one place are drawn as rings around each other.
      const above = ways.slice(index + 1).filter((other) => other.length === 1 && other[0] && Math.hypot(other[0][0] - only[0], other[0][1] - only[1]) < NEAR);
      svg.append(make("circle", { cx: MARGIN.left + only[0], cy: only[1], r: 3 + 2 * above.length, style: `fill: ${colourOf(series.arm)}` }));
    }
    for (const step of series.nonfinite) {
      const x = this.toX(State.across === "share" ? (100 * step) / (series.last || 1) : step);
      // Crosses at one step are drawn below each other.
      const above = this.crosses.get(step) ?? 0;
      this.crosses.set(step, above + 1);
      const y = MARGIN.top + 10 * above;
      svg.append(make("path", { class: "cross", d: `M${x - 4} ${y - 4}L${x + 4} ${y + 4}M${x - 4} ${y + 4}L${x + 4} ${y - 4}`, style: stroke, "data-nonfinite": step, "data-source": series.source }, make("title", {}, `${series.label}: not finite at step ${step}, from ${series.source}`)));
    }
  }

  point(event) {
    const box = this.plot.getBoundingClientRect();
    const x = ((event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right)) * this.end;
    State.at = Math.min(Math.max(x, 0), this.end);
    State.change("cursor");
  }

  key(event) {
    const moves = { ArrowLeft: -0.02, ArrowRight: 0.02, Home: -1, End: 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const from = State.at ?? this.end;
    State.at = Math.min(Math.max(from + moves[event.key] * this.end, 0), this.end);
    State.change("cursor");
  }

  cursor() {
    if (!this.overlay) return;
    this.overlay.replaceChildren();
    const unit = State.across === "share" ? "% of the run" : this.across;
    this.place.textContent = State.at === null ? "last value" : State.across === "share" ? `at ${compact(State.at)} ${unit}` : `at ${unit} ${Math.round(State.at)}`;
    if (State.at !== null) {
      const x = this.toX(Math.min(State.at, this.end));
      this.overlay.append(make("line", { class: "cursor", x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    }
    const values = this.shown.map((series) => this.value(series));
    this.readout.replaceChildren(...(this.all ? values : values.slice(0, MANY)));
    this.more.hidden = values.length <= MANY;
    this.more.textContent = this.all ? `first ${MANY} rows` : `all ${values.length} rows`;
  }

  value(series) {
    const xs = this.xs(series);
    let nearest = xs.length - 1;
    if (State.at !== null) xs.forEach((x, index) => { if (Math.abs(x - State.at) < Math.abs(xs[nearest] - State.at)) nearest = index; });
    const y = series.y[nearest];
    if (State.at !== null && y !== null && (!this.log || y > 0)) {
      this.overlay.append(make("circle", { cx: this.toX(xs[nearest]), cy: this.toY(y), r: 3.5, style: `fill: ${colourOf(series.arm)}` }));
    }
    const swatch = make("span", { class: "swatch" });
    swatch.style.background = colourOf(series.arm);
    return make("li", { "data-source": series.source, title: `from ${series.source}` }, swatch, make("span", { class: "who" }, series.label), make("span", { class: "what" }, y === null ? "not finite" : this.write(y)));
  }
}
