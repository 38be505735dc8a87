// One chart: lines over a common x axis, a cursor shared by all charts, and the values below it.
const HEIGHT = 230;
// Number of lines whose values are shown below a chart at first; the others are shown on demand.
const MANY = 12;
const MARGIN = { left: 56, right: 14, top: 14, bottom: 26 };

function niceTicks(low, high, count) {
  const raw = (high - low) / count || 1;
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * magnitude).find((each) => each >= raw);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-6; tick += step) ticks.push(Number(tick.toPrecision(10)));
  return ticks;
}

function compact(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  if (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}

class Chart {
  constructor(host, { title, unit = "", across = "step", log = false, write = compact, tick = write, note = "", series }) {
    Object.assign(this, { across, log, write, tick, series, title, all: false });
    this.figure = make("figure");
    this.plot = make("div", { class: "plot", tabindex: "0", role: "group", "aria-label": `${title}: chart, move with the arrow keys` });
    this.readout = make("ul", { class: "readout", "aria-label": `${title}: values` });
    this.readout.style.setProperty("--label", Math.min(32, Math.max(...series.map((each) => each.label.length))));
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

  get shown() { return this.series.filter((each) => !State.hidden.has(each.arm)); }

  xs(series) {
    const last = series.last || 1;
    return State.across === "share" ? series.x.map((x) => (100 * x) / last) : series.x;
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    this.width = width;
    const shown = this.shown;
    const ys = shown.flatMap((each) => each.y.filter((y) => y !== null && (!this.log || y > 0)));
    const positive = ys.filter((y) => y > 0);
    // Labels at powers of two do not help on an axis with fewer than three of them.
    this.powers = this.log && positive.length > 0 && Math.max(...positive) >= 8 * Math.min(...positive);
    const forward = this.powers ? Math.log2 : (y) => y;
    let [low, high] = ys.length ? [Math.min(...ys), Math.max(...ys)].map(forward) : [0, 1];
    if (low === high) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
    this.end = Math.max(1, ...shown.flatMap((each) => this.xs(each)));
    const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
    this.toX = (x) => MARGIN.left + (inner.width * x) / this.end;
    this.toY = (y) => MARGIN.top + inner.height * (1 - (forward(y) - low) / (high - low));
    const lines = shown.filter((each) => each.nonfinite.length).map((each) => `${each.label} not finite at step ${each.nonfinite[0]}`);
    const svg = make("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": `${this.title} of ${shown.length} runs. ${lines.join(". ")}` });
    this.axes(svg, low, high, inner);
    for (const each of shown) this.line(svg, each);
    this.overlay = make("g");
    svg.append(this.overlay);
    this.plot.replaceChildren(svg);
    this.cursor();
  }

  axes(svg, low, high, inner) {
    const ticks = this.powers
      ? niceTicks(low, high, 4).filter((tick) => Number.isInteger(tick)).map((tick) => 2 ** tick)
      : niceTicks(low, high, 4);
    for (const tick of ticks) {
      const y = this.toY(tick);
      svg.append(make("line", { class: "grid-line", x1: MARGIN.left, x2: MARGIN.left + inner.width, y1: y, y2: y }));
      svg.append(make("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, this.powers && (tick >= 1e7 || tick < 1e-3) ? `2^${Math.log2(tick)}` : this.tick(tick)));
    }
    // Steps, workers and threads are whole numbers.
    for (const tick of niceTicks(0, this.end, Math.max(2, Math.floor(inner.width / 90))).filter(Number.isInteger)) {
      const suffix = State.across === "share" ? " %" : "";
      svg.append(make("text", { x: this.toX(tick), y: HEIGHT - 8, "text-anchor": "middle" }, compact(tick) + suffix));
    }
  }

  line(svg, series) {
    const xs = this.xs(series);
    const stroke = `stroke: ${colourOf(series.arm)}`;
    let path = "";
    let down = false;
    series.y.forEach((y, index) => {
      const drawable = y !== null && (!this.log || y > 0);
      if (drawable) path += `${down ? "L" : "M"}${this.toX(xs[index]).toFixed(1)} ${this.toY(y).toFixed(1)}`;
      down = drawable;
    });
    svg.append(make("path", { class: "curve", d: path, style: stroke, "stroke-dasharray": dashOf(series.arm), "data-source": series.source }, make("title", {}, `${series.label}, from ${series.source}`)));
    if (xs.length === 1 && series.y[0] !== null) svg.append(make("circle", { cx: this.toX(xs[0]), cy: this.toY(series.y[0]), r: 3, style: `fill: ${colourOf(series.arm)}` }));
    for (const step of series.nonfinite) {
      const x = this.toX(State.across === "share" ? (100 * step) / (series.last || 1) : step);
      const y = MARGIN.top;
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
