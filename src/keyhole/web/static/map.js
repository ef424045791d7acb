// @ts-check
/**
 * The map of all cells on a canvas: a row is a layer, a column is a cell. If there are more cells than pixels, a column stands
 * for several cells and shows the largest. A layer with fewer cells than others has a shorter row. Sorted, a row reads as a
 * distribution; by number, every cell keeps its place.
 */
import { h, replace } from "./dom.js";
import { preview } from "./parts.js";
import { bytes, number, percent } from "./text.js";

/** @typedef {import("../types.js").CellMap} CellMap */
/** @typedef {import("../types.js").Measure} Measure */

/** Milliseconds that the cursor stays on a cell before the cell is fetched. */
const PAUSE = 120;
/** Pixels within which the pointer finds the strongest cell. */
const NEAR = 3;
/** The hue that shows a measure of keys, of values, of what people found. */
const HUES = { key: "--fire", value: "--say", people: "--blue" };
/** The hues of levels that have names, from the first on. */
const KINDS = Array.from({ length: 11 }, (_, level) => `--kind${level}`);

/**
 * `#rgb`, `#rrggbb` or `rgb(…)` as three numbers.
 * @param {string} name of a CSS variable
 */
function colour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const digits = text.slice(1).replace(/^(.)(.)(.)$/, "$1$1$2$2$3$3");
  return [0, 2, 4].map((i) => parseInt(digits.slice(i, i + 2), 16));
}

/**
 * @param {CellMap} map
 * @param {import("./cells.js").Cells} axis
 * @param {AbortSignal} signal
 */
export function cellMap(map, axis, signal) {
  const { levels, unknown } = map;
  const layers = axis.depth;
  const decoded = new Map(map.measures.map((measure) => [measure.name, bytes(measure.data)]));
  let measure = map.measures.find((each) => each.name === map.shown) ?? map.measures[0];
  let sorted = false;
  /** The places of the cells in the order in which they are drawn, layer by layer. */
  const order = new Int32Array(axis.length);
  let cursor = { layer: 0, column: 0 };
  /** Columns of the widest layer. */
  let columns = axis.widest;
  let waiting = 0;
  /** Colours run between these bytes: nearly all cells lie between them. */
  let ends = [0, levels];

  const canvas = h("canvas", { "aria-hidden": "true" });
  const labels = h("div", { class: "rows" });
  const readout = h(
    "p",
    { class: "readout", role: "status" },
    "Point at a cell, or move with the arrow keys; Enter opens it.",
  );
  const legend = h("div", { class: "legend" });
  const box = h(
    "div",
    {
      class: "plane",
      tabindex: 0,
      role: "application",
      "data-keys": "map",
      "aria-label": `Map of all cells, ${layers} layers of ${axis.widths}. Arrow keys move, Enter opens the cell.`,
    },
    canvas,
    h("div", { class: "cursor", hidden: true }),
  );
  const mark = /** @type {HTMLElement} */ (box.lastChild);

  /** The bytes of the measure that is shown. @type {Uint8Array} */
  let q = new Uint8Array();

  /** The number that a byte stands for. @param {number} byte */
  function value(byte) {
    const share = byte / levels;
    const [lo, hi] = [measure.lo ?? 0, measure.hi ?? 0];
    return measure.scale === "log" && lo > 0 ? lo * (hi / lo) ** share : lo + (hi - lo) * share;
  }

  /** A number of the measure as text. @param {number} of */
  function shown(of) {
    return measure.format === "percent" ? percent(of) : number(of);
  }

  /** @param {number} byte */
  function said(byte) {
    if (byte === unknown) return "unknown";
    return measure.kinds ? (measure.kinds[byte] ?? "unknown") : shown(value(byte));
  }

  function arrange() {
    q = decoded.get(measure.name) ?? q;
    const known = q.filter((is) => is !== unknown).sort();
    const at = (/** @type {number} */ share) =>
      known[Math.min(known.length - 1, Math.floor(known.length * share))] ?? 0;
    ends = measure.kinds || !known.length ? [0, levels] : [at(0.005), Math.max(at(0.998), at(0.005) + 1)];
    for (let place = 0; place < order.length; place++) order[place] = place;
    if (!sorted) return;
    for (let layer = 0; layer < layers; layer++)
      order.subarray(...axis.span(layer)).sort((a, b) => strength(b) - strength(a) || a - b);
  }

  /** The byte of a cell; a cell without a number comes last. @param {number} place */
  function strength(place) {
    const is = q[place];
    return is === unknown ? -1 : is;
  }

  /** @param {number} at @param {number} count */
  const clamp = (at, count) => Math.max(0, Math.min(count - 1, at));

  /** The number of columns of a layer. @param {number} layer */
  const count = (layer) => Math.ceil((axis.size(layer) * columns) / axis.widest);

  /** The place of the cell that a column shows: the largest among those it stands for. @param {number} layer @param {number} column */
  function placeAt(layer, column) {
    const row = order.subarray(...axis.span(layer));
    const begin = Math.floor((column * axis.widest) / columns);
    const end = Math.min(row.length, Math.max(begin + 1, Math.floor(((column + 1) * axis.widest) / columns)));
    let best = row[begin];
    for (let i = begin; i < end; i++) if (strength(row[i]) > strength(best)) best = row[i];
    return best;
  }

  function draw() {
    const width = box.clientWidth;
    if (!width) return;
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    const height = layers * rowHeight();
    columns = Math.min(axis.widest, Math.floor(width * ratio));
    canvas.width = columns;
    canvas.height = layers;
    canvas.style.height = `${height}px`;
    const paint = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const image = paint.createImageData(columns, layers);
    const paper = colour("--wash");
    const nothing = colour("--paper");
    const ink = colour(HUES[measure.side]);
    const kinds = KINDS.map(colour);
    for (let layer = 0; layer < layers; layer++) {
      const used = count(layer);
      for (let column = 0; column < used; column++) {
        const is = q[placeAt(layer, column)];
        const pixel = (layer * columns + column) * 4;
        const share = Math.max(0, Math.min(1, (is - ends[0]) / (ends[1] - ends[0]))) ** 0.75;
        for (let i = 0; i < 3; i++) {
          const shown =
            is === unknown ? nothing[i] : measure.kinds ? kinds[is][i] : paper[i] + (ink[i] - paper[i]) * share;
          image.data[pixel + i] = shown;
        }
        image.data[pixel + 3] = 255;
      }
    }
    paint.putImageData(image, 0, 0);
    const every = Math.ceil(layers / Math.max(1, Math.floor(height / 15)));
    replace(
      labels,
      Array.from({ length: layers }, (_, layer) => {
        const link = h(
          "a",
          { href: axis.href(layer), "aria-label": `Layer ${axis.label(layer)}`, tabindex: layer % every ? -1 : 0 },
          layer % every ? "" : axis.label(layer),
        );
        link.style.height = `${rowHeight()}px`;
        return link;
      }),
    );
    place();
  }

  const rowHeight = () => (layers <= 12 ? 24 : layers <= 40 ? 13 : 8);

  /** Show where the cursor is, on the plane and in words. */
  function place() {
    cursor.column = clamp(cursor.column, count(cursor.layer)); // rows differ in length, and resizing changes it
    mark.style.left = `${((cursor.column + 0.5) / columns) * 100}%`;
    mark.style.top = `${cursor.layer * rowHeight()}px`;
    mark.style.height = `${rowHeight()}px`;
    return placeAt(cursor.layer, cursor.column);
  }

  function tell() {
    const at = place();
    mark.hidden = false;
    const { layer, cell } = axis.split(at);
    const where = axis.address(layer, cell);
    const look = h("span");
    replace(readout, h("b", {}, where), ` ${measure.title}: ${said(q[at])}`, look);
    clearTimeout(waiting);
    waiting = window.setTimeout(() => replace(look, preview(where, signal, { promoted: 6 })), PAUSE);
  }

  function go() {
    const { layer, cell } = axis.split(placeAt(cursor.layer, cursor.column));
    location.hash = axis.href(layer, cell);
  }

  /** @param {PointerEvent | MouseEvent} event */
  function point(event) {
    const area = canvas.getBoundingClientRect();
    const layer = clamp(Math.floor(((event.clientY - area.top) / area.height) * layers), layers);
    const column = Math.floor(((event.clientX - area.left) / area.width) * columns);
    cursor = { layer, column: clamp(column, count(layer)) };
    if (!sorted) cursor.column = strongest(cursor.layer, cursor.column, Math.floor((NEAR * columns) / area.width));
    tell();
  }

  /** The column with the largest value at most `reach` columns away; the nearest if several have it. @param {number} layer @param {number} column @param {number} reach */
  function strongest(layer, column, reach) {
    const at = (/** @type {number} */ each) => strength(placeAt(layer, each));
    let best = column;
    for (let away = 1; away <= reach; away++) {
      for (const each of [column - away, column + away])
        if (each >= 0 && each < count(layer) && at(each) > at(best)) best = each;
    }
    return best;
  }

  /** @param {KeyboardEvent} event */
  function move(event) {
    const step = event.shiftKey ? Math.max(1, Math.round(columns / 20)) : 1;
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowLeft: [0, -step],
      ArrowRight: [0, step],
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      Home: [0, -columns],
      End: [0, columns],
    };
    if (event.key === "Enter") go();
    else if (moves[event.key]) {
      const [down, right] = moves[event.key];
      if (!mark.hidden) cursor = { layer: clamp(cursor.layer + down, layers), column: cursor.column + right };
      tell();
    } else return;
    event.preventDefault();
  }

  function describe() {
    const absent = q.includes(unknown) && h("span", { class: "unknown" }, "unknown");
    if (measure.kinds) {
      replace(
        legend,
        measure.kinds.map((kind, i) => h("span", { class: `kind kind${i}` }, kind)),
        absent,
      );
      return;
    }
    const ramp = h("span", { class: `ramp ${HUES[measure.side].slice(2)}`, "aria-hidden": "true" });
    replace(
      legend,
      h("span", {}, shown(value(ends[0]))),
      ramp,
      h(
        "span",
        {},
        shown(value(ends[1])) +
          (ends[1] < levels ? " and more" : "") +
          (measure.scale === "log" ? " (log scale)" : ""),
      ),
      absent,
    );
  }

  function change() {
    arrange();
    describe();
    draw();
    if (!mark.hidden) tell();
  }

  box.addEventListener("pointermove", point);
  box.addEventListener("click", (event) => (point(event), go()));
  box.addEventListener("keydown", move);
  box.addEventListener("focus", tell);
  const resized = new ResizeObserver(draw);
  resized.observe(box);
  signal.addEventListener("abort", () => resized.disconnect());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw, { signal });

  const choice = h(
    "select",
    {
      id: "measure",
      onchange: () => {
        measure = /** @type {Measure} */ (map.measures.find((each) => each.name === choice.value));
        change();
      },
    },
    map.measures.map((each) => h("option", { value: each.name, selected: each === measure }, each.title)),
  );
  const ordering = h(
    "select",
    {
      id: "ordering",
      onchange: () => {
        sorted = ordering.value === "sorted";
        change();
      },
    },
    h("option", { value: "number" }, "by number"),
    h("option", { value: "sorted" }, "strongest first"),
  );
  change();
  return h(
    "div",
    { class: "map" },
    h(
      "div",
      { class: "controls" },
      h("label", { for: "measure" }, "Colour"),
      choice,
      h("label", { for: "ordering" }, "Cells"),
      ordering,
      legend,
    ),
    h("div", { class: "maprows" }, labels, box),
    readout,
  );
}
