// Which charts there are: the curves of every run, and the score over time.
(function charts() {
  const host = document.getElementById("charts");
  const percent = { write: (y) => `${(100 * y).toFixed(2)} %`, scale: 100, suffix: " %" };
  const kinds = [
    ["train_loss", { title: "Training loss" }],
    ["val_score", { title: `Validation ${DATA.score.name}`, ...(DATA.score.scale === 100 ? percent : {}) }],
    ["loss_scale", { title: "Loss scale", log: true }],
    ["grad_norm", { title: "Gradient norm", log: true }],
    ["gradient_cosine", { title: "Cosine between the gradients and the fp32 gradients" }],
    ["unchanged_share", { title: "Weights that a step left unchanged", ...percent, note: "Measured in the last step of each epoch. A weight stays unchanged if its update is 0, or too small for the format of the weight. When the learning rate falls to almost 0, as at the end of a cosine schedule, most updates are too small in every format, fp32 included. So compare the recipes with fp32, and look at the epochs before the last one." }],
  ];
  for (const [name, options] of kinds) {
    const series = DATA.cells.filter((cell) => cell.curves[name]).map((cell) => {
      const longest = Math.max(...Object.values(cell.curves).map((curve) => curve.x.at(-1)));
      return { ...cell.curves[name], arm: cell.arm, label: cell.label, source: cell.source, last: longest };
    });
    if (series.length) new Chart(host, { ...options, series });
  }
  if (!host.children.length) host.append(make("p", { class: "hint" }, "No run has logged anything yet."));

  document.getElementById("across").addEventListener("change", (event) => {
    State.across = event.target.value;
    State.at = null;
    State.change("rows");
  });
})();

(function tradeoff() {
  const LINE = 13;
  const host = document.getElementById("tradeoff");
  const known = DATA.arms.map((arm, index) => ({ ...arm, index })).filter((arm) => arm.score !== null && arm.seconds !== null);
  if (!known.length) { host.closest("section").hidden = true; return; }
  const figure = make("figure");
  const plot = make("div", { class: "plot" });
  figure.append(make("figcaption", {}, `Best validation ${DATA.score.title}, over training time, s`), plot);
  if (DATA.arms.some((arm) => arm.front)) figure.append(make("p", { class: "hint" }, `◆ ${DATA.front}.`));
  host.append(figure);

  function draw() {
    const width = plot.clientWidth;
    if (!width) return;
    const height = 300;
    const padded = (values) => {
      const [low, high] = [Math.min(...values), Math.max(...values)];
      const room = (high - low) * 0.15 || Math.abs(high) * 0.05 || 1;
      return [low - room, high + room];
    };
    const [left, right] = padded(known.map((arm) => arm.seconds));
    const [low, high] = padded(known.map((arm) => DATA.score.scale * arm.score));
    const toX = (x) => MARGIN.left + ((width - MARGIN.left - MARGIN.right) * (x - left)) / (right - left);
    const toY = (y) => MARGIN.top + (height - MARGIN.top - MARGIN.bottom) * (1 - (y - low) / (high - low));
    const texts = known.map((arm) => `${arm.label} ${(DATA.score.scale * arm.score).toPrecision(4)}${DATA.score.scale === 100 ? " %" : ""} in ${compact(arm.seconds)} s`);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": texts.join("; ") });
    for (const { value, label } of ticksOf(low, high, 4)) {
      svg.append(make("line", { class: "grid-line", x1: MARGIN.left, x2: width - MARGIN.right, y1: toY(value), y2: toY(value) }));
      svg.append(make("text", { x: MARGIN.left - 6, y: toY(value) + 4, "text-anchor": "end" }, label));
    }
    for (const { value, label } of ticksOf(left, right, Math.max(2, Math.floor(width / 120)))) {
      svg.append(make("text", { x: toX(value), y: height - 8, "text-anchor": "middle" }, label));
    }
    const markers = known.map((arm) => ({ arm, x: toX(arm.seconds), y: toY(DATA.score.scale * arm.score) + 4 }));
    const taken = markers.map(({ arm, x, y }) => ({ arm, left: x - 8, right: x + 8, y }));
    for (const arm of known) {
      const [x, y] = [toX(arm.seconds), toY(DATA.score.scale * arm.score)];
      const shape = arm.front
        ? make("path", { d: `M${x} ${y - 7}L${x + 7} ${y}L${x} ${y + 7}L${x - 7} ${y}Z` })
        : make("circle", { cx: x, cy: y, r: 5 });
      shape.style.fill = arm.rehearsed ? "none" : colourOf(arm.index);
      shape.style.stroke = colourOf(arm.index);
      shape.style.strokeWidth = 2;
      shape.dataset.source = arm.source;
      shape.append(make("title", {}, `${arm.label}, from ${arm.source}`));
      const atEnd = x > width * 0.7;
      const text = arm.label + (arm.rehearsed ? " †" : "");
      const label = { x: x + (atEnd ? -10 : 10), y: y + 4, left: x - (atEnd ? text.length * 6.5 : 0), right: x + (atEnd ? 0 : text.length * 6.5) };
      // No label is written over another one or over a marker. (A rounded sum must not hit again.)
      const hit = () => taken.find((other) => other.arm !== arm && Math.abs(other.y - label.y) < LINE - 0.5 && other.left < label.right && label.left < other.right);
      for (let other = hit(); other; other = hit()) label.y = other.y + LINE;
      svg.append(shape);
      if (label.y > height - MARGIN.bottom) continue; // a crowd: pointing at it tells
      taken.push(label);
      svg.append(make("text", { x: label.x, y: label.y, "text-anchor": atEnd ? "end" : "start" }, text));
    }
    plot.replaceChildren(svg);
  }
  new ResizeObserver(draw).observe(plot);
})();
