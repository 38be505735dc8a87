// Lines that coincide take turns along their way, in stripes of the x axis, so that none hides
// another. Each line is a list of points [x, y] in pixels, with null where it is interrupted.
const STRIPE = 10;
// Pixels between two lines that look like one.
const NEAR = 1.5;

function heightAt(points, x) {
  let [before, after] = [0, points.length - 1];
  while (after - before > 1) {
    const middle = (before + after) >> 1;
    if (points[middle][0] <= x) before = middle; else after = middle;
  }
  const [from, to] = [points[before], points[after]];
  if (from[0] > x || to[0] < x) return null;
  return from[0] === to[0] ? from[1] : from[1] + ((to[1] - from[1]) * (x - from[0])) / (to[0] - from[0]);
}

// Returns, for each line, a function that tells whether it is this line's turn in a stripe.
function turnsOf(lines, end) {
  const places = Array.from({ length: 2 * Math.ceil(end / STRIPE) + 1 }, (_, number) => (number * STRIPE) / 2);
  const heights = lines.map((line) => {
    const points = line.filter((point) => point !== null);
    return places.map((x) => (points.length ? heightAt(points, x) : null));
  });
  const coincide = (one, other, stripe) => {
    const gaps = [0, 1, 2].map((offset) => 2 * stripe + offset)
      .filter((place) => heights[one][place] != null && heights[other][place] != null)
      .map((place) => Math.abs(heights[one][place] - heights[other][place]));
    return gaps.length > 0 && Math.max(...gaps) < NEAR;
  };
  return lines.map((_, one) => (stripe) => {
    const group = lines.map((_, other) => other).filter((other) => other === one || coincide(one, other, stripe));
    return group[stripe % group.length] === one;
  });
}

// Returns the path of a line in the stripes in which it is its turn.
function pathOf(line, isTurn) {
  let [path, end] = ["", null];
  for (let index = 1; index < line.length; index += 1) {
    const [from, to] = [line[index - 1], line[index]];
    if (from === null || to === null) continue;
    const slope = to[0] > from[0] ? (to[1] - from[1]) / (to[0] - from[0]) : 0;
    let start = from;
    for (let stripe = Math.floor(from[0] / STRIPE); start !== null; stripe += 1) {
      const border = (stripe + 1) * STRIPE;
      const stop = to[0] <= border ? to : [border, from[1] + slope * (border - from[0])];
      const written = ([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`;
      if (isTurn(stripe)) {
        path += `${end === start ? "" : `M${written(start)}`}L${written(stop)}`;
        end = stop;
      }
      start = stop === to ? null : stop;
    }
  }
  return path;
}
