// @ts-check
/**
 * The map of all cells on a canvas: a row a layer, a column a cell. Where cells outnumber pixels, a column stands for
 * several and shows the largest. Sorted, a row reads as a distribution; by number, every cell keeps its place.
 */
import { h, replace } from "./dom.js";
import { cellHref, preview } from "./parts.js";
import { bytes, percent } from "./text.js";

/** @typedef {import("./data.js").CellMap} CellMap */
/** @typedef {import("./data.js").Measure} Measure */

const UNKNOWN = 255;
/** Milliseconds on a cell before it is looked up. */
const PAUSE = 120;
/** Pixels within which the pointer finds the strongest cell. */
const NEAR = 3;
/** Which hue shows a measure: the key's, or the value's. @type {Record<string, string>} */
const HUES = { activity: "--fire", agreement: "--say", max_prob: "--say" };
const KINDS = ["--rule", "--blue", "--fire", "--say"];

/** @param {Measure} measure @param {number} q */
function value(measure, q) {
  const share = q / 254;
  return measure.scale === "log" && measure.lo > 0
    ? measure.lo * (measure.hi / measure.lo) ** share
    : measure.lo + (measure.hi - measure.lo) * share;
}

/** @param {Measure} measure @param {number} q */
function said(measure, q) {
  if (q === UNKNOWN) return "unknown";
  if (measure.kinds) return measure.kinds[q] ?? "unknown";
  return percent(value(measure, q));
}

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
 * @param {AbortSignal} signal
 */
export function cellMap(map, signal) {
  const { layers, cells } = map;
  const decoded = new Map(map.measures.map((measure) => [measure.name, bytes(measure.data)]));
  let measure = map.measures.find((each) => each.name === "agreement") ?? map.measures[0];
  let sorted = false;
  /** Cells in the order of the columns, layer after layer. @type {Int32Array} */
  let order = new Int32Array(layers * cells);
  let cursor = { layer: 0, column: 0 };
  let columns = cells;
  let waiting = 0;
  /** Colours run between these bytes: nearly all cells lie there. */
  let ends = [0, 254];

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
      "aria-label": `Map of all cells, ${layers} layers of ${cells}. Arrow keys move, Enter opens the cell.`,
    },
    canvas,
    h("div", { class: "cursor", hidden: true }),
  );
  const mark = /** @type {HTMLElement} */ (box.lastChild);

  const quantized = () => /** @type {Uint8Array} */ (decoded.get(measure.name));

  function arrange() {
    const q = quantized();
    const known = q.filter((is) => is !== UNKNOWN).sort();
    const at = (/** @type {number} */ share) =>
      known[Math.min(known.length - 1, Math.floor(known.length * share))] ?? 0;
    ends = measure.kinds || !known.length ? [0, 254] : [at(0.005), Math.max(at(0.998), at(0.005) + 1)];
    order = new Int32Array(layers * cells);
    for (let layer = 0; layer < layers; layer++) {
      const row = order.subarray(layer * cells, (layer + 1) * cells);
      for (let cell = 0; cell < cells; cell++) row[cell] = cell;
      if (!sorted) continue;
      const known = /** @param {number} cell */ (cell) =>
        q[layer * cells + cell] === UNKNOWN ? -1 : q[layer * cells + cell];
      row.sort((a, b) => known(b) - known(a) || a - b);
    }
  }

  /** The cell a column stands for: the largest among those it holds. @param {number} layer @param {number} column */
  function cellAt(layer, column) {
    const q = quantized();
    const begin = Math.floor((column * cells) / columns);
    const end = Math.max(begin + 1, Math.floor(((column + 1) * cells) / columns));
    let best = order[layer * cells + begin];
    for (let i = begin; i < end; i++) {
      const cell = order[layer * cells + i];
      const is = q[layer * cells + cell];
      const was = q[layer * cells + best];
      if (is !== UNKNOWN && (was === UNKNOWN || is > was)) best = cell;
    }
    return best;
  }

  function draw() {
    const width = box.clientWidth;
    if (!width) return;
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    const height = layers * rowHeight();
    columns = Math.min(cells, Math.floor(width * ratio));
    canvas.width = columns;
    canvas.height = layers;
    canvas.style.height = `${height}px`;
    const paint = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const image = paint.createImageData(columns, layers);
    const paper = colour("--wash");
    const nothing = colour("--paper");
    const ink = colour(HUES[measure.name] ?? "--blue");
    const kinds = KINDS.map(colour);
    const q = quantized();
    for (let layer = 0; layer < layers; layer++) {
      for (let column = 0; column < columns; column++) {
        const is = q[layer * cells + cellAt(layer, column)];
        const share = Math.max(0, Math.min(1, (is - ends[0]) / (ends[1] - ends[0]))) ** 0.75;
        for (let i = 0; i < 3; i++) {
          const shown =
            is === UNKNOWN ? nothing[i] : measure.kinds ? kinds[is][i] : paper[i] + (ink[i] - paper[i]) * share;
          image.data[(layer * columns + column) * 4 + i] = shown;
        }
        image.data[(layer * columns + column) * 4 + 3] = 255;
      }
    }
    paint.putImageData(image, 0, 0);
    const every = Math.ceil(layers / Math.max(1, Math.floor(height / 15)));
    replace(
      labels,
      Array.from({ length: layers }, (_, layer) => {
        const link = h(
          "a",
          { href: `#/L${layer}`, "aria-label": `Layer ${layer}`, tabindex: layer % every ? -1 : 0 },
          layer % every ? "" : String(layer),
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
    const cell = cellAt(cursor.layer, cursor.column);
    mark.style.left = `${((cursor.column + 0.5) / columns) * 100}%`;
    mark.style.top = `${cursor.layer * rowHeight()}px`;
    mark.style.height = `${rowHeight()}px`;
    return cell;
  }

  function tell() {
    const cell = place();
    mark.hidden = false;
    const q = quantized()[cursor.layer * cells + cell];
    const where = `L${cursor.layer}.${cell}`;
    const look = h("span");
    replace(readout, h("b", {}, where), ` ${measure.title}: ${said(measure, q)}`, look);
    clearTimeout(waiting);
    waiting = window.setTimeout(() => replace(look, preview(where, signal, { promoted: 6 })), PAUSE);
  }

  function go() {
    location.hash = cellHref(cursor.layer, cellAt(cursor.layer, cursor.column));
  }

  /** @param {PointerEvent | MouseEvent} event */
  function point(event) {
    const area = canvas.getBoundingClientRect();
    const inside = (/** @type {number} */ share, /** @type {number} */ count) =>
      Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    cursor = {
      layer: inside((event.clientY - area.top) / area.height, layers),
      column: inside((event.clientX - area.left) / area.width, columns),
    };
    if (!sorted) cursor.column = strongest(cursor.layer, cursor.column, Math.floor((NEAR * columns) / area.width));
    tell();
  }

  /** The column with the largest value within so many columns; the nearest of several. @param {number} layer @param {number} column @param {number} reach */
  function strongest(layer, column, reach) {
    const q = quantized();
    const at = (/** @type {number} */ each) => {
      const is = q[layer * cells + cellAt(layer, each)];
      return is === UNKNOWN ? -1 : is;
    };
    let best = column;
    for (let away = 1; away <= reach; away++) {
      for (const each of [column - away, column + away])
        if (each >= 0 && each < columns && at(each) > at(best)) best = each;
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
      const clamp = (/** @type {number} */ at, /** @type {number} */ count) => Math.max(0, Math.min(count - 1, at));
      cursor = mark.hidden
        ? cursor
        : { layer: clamp(cursor.layer + down, layers), column: clamp(cursor.column + right, columns) };
      tell();
    } else return;
    event.preventDefault();
  }

  function describe() {
    if (measure.kinds) {
      replace(
        legend,
        measure.kinds.map((kind, i) => h("span", { class: `kind kind${i}` }, kind)),
      );
      return;
    }
    const ramp = h("span", { class: `ramp ${(HUES[measure.name] ?? "--blue").slice(2)}`, "aria-hidden": "true" });
    replace(
      legend,
      h("span", {}, percent(value(measure, ends[0]))),
      ramp,
      h(
        "span",
        {},
        percent(value(measure, ends[1])) +
          (ends[1] < 254 ? " and more" : "") +
          (measure.scale === "log" ? " (log scale)" : ""),
      ),
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
