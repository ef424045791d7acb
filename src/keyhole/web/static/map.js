// @ts-check
/**
 * The map of all cells: coloured by a measure, zoomed and moved down to single cells. What is previewed is a cell, and a click or
 * Enter opens that cell: both read one variable.
 */
import * as data from "./data.js";
import { append, h, replace } from "./dom.js";
import { Points, about } from "./mappoints.js";
import { Rows, rowHeight } from "./maprows.js";
import { Measured } from "./measured.js";
import { failure, preview } from "./parts.js";
import { pin, pinned } from "./pins.js";
import { counted, visible } from "./text.js";
import { STEP, Viewport, listen } from "./viewport.js";

/** @typedef {import("../types.js").CellMap} CellMap */

/** Milliseconds that the cursor stays on a cell before the cell is fetched. */
const PAUSE = 120;
/** The hue that shows a measure of keys, of values, of what people found. */
const HUES = { key: "--fire", value: "--say", people: "--blue" };
/** The hues of levels that have names, from the first on. */
const KINDS = Array.from({ length: 11 }, (_, level) => `--kind${level}`);
const COARSE = "Two fingers zoom and move the map. A tap shows a cell, a second tap opens it.";
const FINE =
  "Zoom: + and −, a double click, Ctrl and the wheel, or the wheel alone while the map has the focus. Move: drag, or the arrow keys.";

/** The layouts: one row per layer, or a plane of points. */
const LAYOUTS = { rows: "one row per layer", values: "a map of all values", keys: "a map of all keys" };

/** @typedef {keyof typeof LAYOUTS} Name */
/** @typedef {{x: number, y: number, sx: number}} Part of a map, as `Viewport.restore` takes it */

/** What the reader last looked at, for when they come back to the map. */
const left = {
  layout: /** @type {Name} */ ("rows"),
  measure: "",
  sorted: false,
  place: /** @type {number | null} */ (null),
  parts: /** @type {Partial<Record<Name, Part>>} */ ({}),
};

/** The text of a CSS variable. @param {string} name */
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * `#rgb` or `#rrggbb` as three numbers.
 * @param {string} name of a CSS variable
 */
function colour(name) {
  const digits = variable(name)
    .slice(1)
    .replace(/^(.)(.)(.)$/, "$1$1$2$2$3$3");
  return [0, 2, 4].map((i) => parseInt(digits.slice(i, i + 2), 16));
}

/** The colour of every byte of a measure, as pixels of a canvas. @param {Measured} measured @param {boolean} points which lie on paper */
function palette({ map, measure, ends }, points) {
  const pixel = (/** @type {number[]} */ [r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  const [paper, nothing] = points ? [colour("--faint"), colour("--rule")] : [colour("--wash"), colour("--paper")];
  const ink = colour(HUES[measure.side]);
  const kinds = KINDS.map(colour);
  return Uint32Array.from({ length: 256 }, (_, byte) => {
    if (byte === map.unknown) return pixel(nothing);
    if (measure.kinds) return pixel(kinds[byte] ?? nothing);
    const share = Math.max(0, Math.min(1, (byte - ends[0]) / (ends[1] - ends[0]))) ** 0.75;
    return pixel(paper.map((from, i) => Math.round(from + (ink[i] - from) * share)));
  });
}

/**
 * The map, when its first measure is loaded.
 * @param {CellMap} map
 * @param {import("./cells.js").Cells} axis
 * @param {AbortSignal} signal
 */
export async function cellMap(map, axis, signal) {
  const rows = new Rows(axis);
  rows.sorted = left.sorted;
  /** @type {Rows | Points} */
  let layout = rows;
  let view = new Viewport(layout.world, () => later());
  /** @type {Measured | null} */
  let measured = null;
  /** @type {Uint32Array} */
  let colours = new Uint32Array(256);
  /** @type {import("./pins.js").Pins} */
  let marks = new Map();
  /** What the cursor is on; null until the reader points at something. @type {import("./maprows.js").Spot | null} */
  let spot = null;
  /** The cell that the readout names, and that a click opens. @type {number | null} */
  let place = null;
  /** Whether the name or the number of the cell is not loaded yet. */
  let pending = false;
  let same = false;
  let waiting = 0;
  let frame = 0;

  const whole = h("div", { class: "map" });
  const canvas = h("canvas", { "aria-hidden": "true" });
  const pins = h("canvas", { class: "pins", "aria-hidden": "true" });
  const mark = h("div", { class: "cursor", hidden: true });
  const labels = h("div", { class: "rows" });
  const legend = h("div", { class: "legend" });
  const thumb = h("div", { class: "thumb" });
  const note = h("p", { class: "means soft small", role: "status" });
  const extent = h("p", { class: "extent soft small" });
  const readout = h(
    "p",
    { class: "readout", role: "status" },
    "Point at a cell, or move with the arrow keys; Enter opens it.",
  );
  const box = h(
    "div",
    {
      class: "plane",
      tabindex: 0,
      role: "application",
      "data-keys": "map",
      "aria-label": `Map of all cells, ${axis.depth} layers of ${axis.widths}. Arrow keys move, plus and minus zoom, Enter opens the cell.`,
    },
    canvas,
    pins,
    mark,
  );

  // Drawing

  function later() {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
  }

  function draw() {
    const { size } = view;
    if (!measured || size.width <= 1 || signal.aborted) return;
    layout.draw(measured, view, canvas, colours);
    const known = measured;
    const shown = [...marks.keys()].flatMap((place) => {
      const at = layout.spot(known, place, view);
      if (!at) return [];
      const { x, y, width, height } = layout.where(known, view, at);
      const [px, py] = view.on(x + width / 2, y);
      return [height ? { px, py, height: view.sy } : { px, py: py - 11, height: 9 }];
    });
    pin(pins, size, shown, { ink: variable("--text"), paper: variable("--paper") });
    thumb.style.left = `${(view.x / view.world.width) * 100}%`;
    thumb.style.width = `${Math.min(100, (size.width / view.sx / view.world.width) * 100)}%`;
    thumb.hidden = view.whole || layout !== rows;
    const about = matchMedia("(pointer: coarse)").matches ? COARSE : FINE;
    replace(extent, measured.failed || `${layout.described(measured, view)} ${about}`);
    buttons.forEach(([button, possible]) => (button.disabled = !possible()));
    if (view.whole) delete left.parts[left.layout];
    else left.parts[left.layout] = { x: view.x, y: view.y, sx: view.sx };
    if (spot && pending) tell(); // its name or number may be loaded by now
    else follow();
  }

  /** The frame around what the cursor is on. */
  function follow() {
    mark.hidden = !spot;
    if (!spot || !measured) return;
    const at = layout.where(measured, view, spot);
    const [px, py] = view.on(at.x, at.y);
    const width = Math.max(at.width ? 9 : 13, at.width * view.sx + 4);
    const height = at.height ? at.height * view.sy : 13;
    mark.style.width = `${width}px`;
    mark.style.left = `${px + (at.width * view.sx) / 2 - width / 2}px`;
    mark.style.top = `${py + (at.height * view.sy) / 2 - height / 2}px`;
    mark.style.height = `${height}px`;
  }

  function describe() {
    if (!measured) return;
    const { measure, ends } = measured;
    legend.dataset.measure = measure.name;
    const absent = measured.unknown && h("span", { class: "unknown" }, "unknown");
    const people = marks.size > 0 && h("span", { class: "pinned" }, `${counted(marks.size, "cell")} that people marked`);
    if (measure.kinds) {
      replace(legend, measure.kinds.map((kind, i) => h("span", { class: `kind kind${i}` }, kind)), absent, people);
      return;
    }
    const most = ends[1] < map.levels ? " and more" : "";
    const scale = measure.scale === "log" ? " (log scale)" : "";
    replace(
      legend,
      h("span", {}, measured.shown(measured.value(ends[0]))),
      h("span", { class: `ramp ${HUES[measure.side].slice(2)}`, "aria-hidden": "true" }),
      h("span", {}, measured.shown(measured.value(ends[1])) + most + scale),
      absent,
      people,
    );
  }

  // The cursor

  /** Say what the cursor is on. */
  function tell() {
    if (!measured || !spot) return;
    place = layout.place(measured, spot);
    left.place = place;
    follow();
    clearTimeout(waiting);
    const byte = layout.byte(measured, spot, view);
    pending = place === null || byte === null;
    const said = ` ${measured.measure.title}: ${measured.said(byte)}`;
    if (place === null) {
      replace(readout, `Loading the cell of this rank …${said}`);
      return;
    }
    const { layer, cell } = axis.split(place);
    const where = axis.address(layer, cell);
    const done = marks.get(place);
    const look = h("span");
    replace(
      readout,
      h("a", { href: axis.href(layer, cell), tabindex: -1 }, h("b", {}, where)),
      said,
      done && h("span", { class: "pinned" }, visible(done.join(", "))),
      look,
    );
    waiting = window.setTimeout(() => replace(look, preview(where, signal, { promoted: 6 })), PAUSE);
  }

  /** @param {import("./maprows.js").Spot | null} to null: nothing is loaded there yet */
  function move(to) {
    if (!to) return;
    same = spot !== null && spot.layer === to.layer && spot.index === to.index;
    spot = to;
    tell();
  }

  /** What opens the cell that the readout names now. */
  function opener() {
    const named = place;
    return () => {
      if (named === null || signal.aborted) return;
      const { layer, cell } = axis.split(named);
      location.hash = axis.href(layer, cell);
    };
  }

  /** Zoom around the cursor, or around the middle if it is not in view. @param {number} factor */
  function zoom(factor) {
    const { width, height } = view.size;
    const [px, py] = spot ? view.on(...layout.middle(spot)) : [-1, -1];
    const inside = px >= 0 && px <= width && py >= 0 && py <= height;
    if (inside) view.zoom(factor, px, py);
    else view.zoom(factor, width / 2, height / 2);
  }

  /** @param {KeyboardEvent} event */
  function keyed(event) {
    if (!measured || event.altKey) return;
    if (event.key === "Enter") opener()();
    else if (event.key === "+" || event.key === "=") zoom(STEP);
    else if (event.key === "-" || event.key === "_") zoom(1 / STEP);
    else if (event.key === "0") view.reset();
    else if (event.key === "Escape") box.blur();
    else {
      const from = spot ?? layout.first(measured, view);
      const to = from && layout.step(measured, view, from, event);
      if (!to) return;
      move(spot ? to : from);
      view.reveal(...layout.middle(spot ?? to));
    }
    event.preventDefault();
  }

  listen(box, {
    view: () => view,
    point: (px, py) => measured && move(layout.pick(measured, view, px, py)),
    pointed: () => same,
    open: opener,
  });
  box.addEventListener("keydown", keyed);
  box.addEventListener("focus", () => {
    if (measured && !spot) move(layout.first(measured, view));
  });

  // Measures

  /** Load and show a measure. @param {string} name */
  async function show(name) {
    left.measure = name;
    const which = map.measures.findIndex((each) => each.name === name);
    try {
      const found = await data.measureMap(which);
      if (left.measure !== name || signal.aborted) return; // another one was chosen meanwhile
      if (found.name !== name) throw new Error("The run was analyzed again: reload the page.");
      measured = new Measured(map, which, found, axis, later);
      colours = palette(measured, layout !== rows);
      describe();
      draw();
      if (!spot && left.place !== null && left.parts[left.layout]) spot = layout.spot(measured, left.place, view);
      if (spot) tell();
    } catch (error) {
      replace(legend, failure(error));
    }
  }

  let turn = 0;
  /** Show the cells in another layout. @param {Name} name */
  async function arrange(name) {
    const mine = ++turn;
    try {
      replace(note, "");
      let next = /** @type {Rows | Points} */ (rows);
      if (name !== "rows") {
        const planes = await data.planes();
        if (mine !== turn) return; // another layout was chosen meanwhile
        const number = planes.planes.findIndex((each) => each.name === name);
        if (number < 0) {
          const missing = planes.planes.length ? "This model’s keys cannot be read." : "This map is not computed yet. Compute it: ";
          replace(note, missing, !planes.planes.length && h("code", {}, "keyhole analyze RUN --only plane"));
          return;
        }
        const plane = planes.planes[number];
        const all = plane.tiles.length ? null : await data.points(number);
        if (mine !== turn) return;
        next = new Points(axis, number, plane, all, () => later());
        replace(note, about(planes, planes.planes[number]));
      }
      if (signal.aborted) return;
      left.layout = name;
      layout = next;
      view = new Viewport(layout.world, () => later());
      spot = null;
      fit();
      if (measured) {
        colours = palette(measured, layout !== rows);
        if (place !== null) spot = layout.spot(measured, place, view);
        if (spot) tell();
      }
      labels.hidden = ordering.hidden = orderingLabel.hidden = layout !== rows;
      whole.classList.toggle("scattered", layout !== rows);
      for (const [each, button] of layouts) button.setAttribute("aria-pressed", String(each === name));
    } catch (error) {
      if (mine === turn) replace(note, failure(error));
    }
  }

  /** Give the map the room it has. */
  function fit() {
    if (!box.clientWidth) return;
    const height = layout.height(box.clientWidth);
    box.style.height = `${height}px`;
    const first = view.size.width === 1;
    const part = left.parts[left.layout];
    view.resize({ width: box.clientWidth, height });
    if (first && part) view.restore(part);
  }

  const known = map.measures.some((each) => each.name === left.measure);
  const begin = known ? left.measure : map.shown;
  const choice = h(
    "select",
    { id: "measure", onchange: () => void show(choice.value) },
    map.measures.map((each) => h("option", { value: each.name, selected: each.name === begin }, each.title)),
  );
  const ordering = h(
    "select",
    {
      id: "ordering",
      onchange: () => {
        left.sorted = rows.sorted = ordering.value === "sorted";
        if (measured && place !== null) spot = layout.spot(measured, place, view);
        draw();
        if (spot) tell();
      },
    },
    h("option", { value: "number" }, "by number"),
    h("option", { value: "sorted", selected: left.sorted }, "strongest first"),
  );

  /** Buttons, and whether each can do something now. @type {[HTMLButtonElement, () => boolean][]} */
  const buttons = [
    [button("−", "Zoom out", () => zoom(1 / STEP)), () => !view.whole],
    [button("+", "Zoom in", () => zoom(STEP)), () => view.sx < view.most],
    [button("whole", "Show the whole map", () => view.reset()), () => !view.whole],
  ];

  const orderingLabel = h("label", { for: "ordering" }, "Cells");
  const layouts = /** @type {Name[]} */ (Object.keys(LAYOUTS)).map((name) => {
    const pressed = String(name === "rows");
    const asked = { type: "button", title: LAYOUTS[name], "aria-pressed": pressed, onclick: () => void arrange(name) };
    return /** @type {[Name, HTMLButtonElement]} */ ([name, h("button", asked, name)]);
  });
  const resized = new ResizeObserver(fit);
  resized.observe(box);
  signal.addEventListener("abort", () => resized.disconnect());
  const recolour = () => measured && ((colours = palette(measured, layout !== rows)), later());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour, { signal });
  const every = Math.ceil(axis.depth / Math.max(1, Math.floor(rows.height() / 15)));
  replace(
    labels,
    axis.layers.map((_, layer) => {
      const link = h(
        "a",
        { href: axis.href(layer), "aria-label": `Layer ${axis.label(layer)}`, tabindex: layer % every ? -1 : 0 },
        layer % every ? "" : axis.label(layer),
      );
      link.style.height = `${rowHeight(axis.depth)}px`;
      return link;
    }),
  );
  if (left.layout !== "rows") await arrange(left.layout);
  // with the first measure, not after it: their entry in the legend would move the map under the reader's finger
  const people = pinned().then(
    (found) => void (marks = found),
    () => {}, // without them, the map is whole
  );
  await Promise.all([people, show(begin)]);
  describe();
  later();
  append(
    whole,
    h(
      "div",
      { class: "controls" },
      h("span", { class: "switch", role: "group", "aria-label": "Layout" }, layouts.map(([, each]) => each)),
      h("label", { for: "measure" }, "Colour"),
      choice,
      orderingLabel,
      ordering,
      h("span", { class: "zoom", role: "group", "aria-label": "Zoom" }, buttons.map(([each]) => each)),
      legend,
    ),
    note,
    h("div", { class: "maprows" }, labels, h("div", { class: "framed" }, box, h("div", { class: "track" }, thumb))),
    extent,
    readout,
  );
  return whole;
}

/** @param {string} text @param {string} says @param {() => void} act */
function button(text, says, act) {
  return h("button", { type: "button", class: "quiet", "aria-label": says, title: says, onclick: act }, text);
}
