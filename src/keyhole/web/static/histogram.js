// @ts-check
/** A histogram as SVG. Counts are on a square-root scale, because most coefficients are near zero and the few large ones matter. */
import { h, svg } from "./dom.js";
import { number, whole } from "./text.js";

const WIDTH = 320;
const HEIGHT = 120;
const FOOT = 18;

/**
 * @param {{edges: number[], counts: number[], n: number}} histogram
 * @param {import("./data.js").Cell} cell
 */
export function histogram({ edges, counts, n }, cell) {
  const [lo, hi] = [edges[0], edges[edges.length - 1]];
  const x = (/** @type {number} */ value) => ((value - lo) / (hi - lo || 1)) * WIDTH;
  const tallest = Math.sqrt(Math.max(...counts, 1));
  const bars = counts.map((count, i) => {
    const height = (Math.sqrt(count) / tallest) * (HEIGHT - 8);
    const middle = (edges[i] + edges[i + 1]) / 2;
    return svg(
      "rect",
      {
        x: x(edges[i]),
        y: HEIGHT - height,
        width: Math.max(0.5, x(edges[i + 1]) - x(edges[i]) - 0.7),
        height,
        class: middle < 0 ? "chill" : "fire",
      },
      svg("title", {}, `${number(edges[i])} to ${number(edges[i + 1])}: ${whole(count)}`),
    );
  });
  const least = cell.triggers.length ? cell.triggers[cell.triggers.length - 1].c : null;
  const ticks = lo < 0 && hi > 0 && x(0) > 45 && x(0) < WIDTH - 45 ? [lo, 0, hi] : [lo, hi];
  const chart = svg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT + FOOT}`,
      class: "histogram",
      role: "img",
      "aria-label": `Histogram of the coefficient over ${whole(n)} prefixes, from ${number(lo)} to ${number(hi)}.`,
    },
    bars,
    svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT, class: "axis" }),
    lo < 0 && hi > 0 ? svg("line", { x1: x(0), x2: x(0), y1: 0, y2: HEIGHT, class: "zero" }) : null,
    least !== null && least > lo && least < hi
      ? svg(
          "line",
          { x1: x(least), x2: x(least), y1: 6, y2: HEIGHT, class: "threshold" },
          svg("title", {}, `the triggers begin at ${number(least)}`),
        )
      : null,
    ticks.map((tick) =>
      svg(
        "text",
        { x: x(tick), y: HEIGHT + 14, "text-anchor": tick === lo ? "start" : tick === hi ? "end" : "middle" },
        number(tick),
      ),
    ),
  );
  return h(
    "figure",
    {},
    chart,
    h(
      "figcaption",
      {},
      `The coefficient over ${whole(n)} random prefixes of the text, repeats included; heights on a root scale. Mean ${number(cell.stats.mean)}, standard deviation ${number(cell.stats.std)}.${least === null ? "" : ` Its triggers begin at ${number(least)}.`}`,
    ),
  );
}
