// @ts-check
/**
 * Who decides: a map of tokens × layers. A row is a token of the text, a column a layer, the colour what the layer’s feed-forward
 * does to the logit of the token that the model predicts there. It is drawn on a canvas; the same numbers are in a table.
 */
import { editsOfPass, ofPass } from "./contribution.js";
import * as data from "./data.js";
import { h, replace, whenSeen } from "./dom.js";
import { asked } from "./edits.js";
import { failure, token } from "./parts.js";
import { number, percent } from "./text.js";

/** @typedef {import("../types.js").LayerEffects} Effects */

/** Pixels per row. */
const ROW = 22;
/** Pixels of the map at most, and of what is around it. */
const FULL = 470;
const AROUND = 126;
/** The share of all numbers that the colours reach to: a few are much larger than the rest. */
const REACH = 0.98;
/** Upper bound on the maps that are kept. */
const KEPT = 6;

/** What was asked for, and its map. @type {Map<string, Effects>} */
const kept = new Map();

/**
 * The map, kept while the page is: a new answer moves its mark, and fetches other numbers only if the text or the edits are others.
 * @param {import("./edits.js").Again} again
 * @param {AbortSignal} signal
 */
export function heatMap(again, signal) {
  const place = h("div", { class: "heatplace" });
  const about = h("p", { class: "soft small" });
  const node = h(
    "section",
    { class: "heat", "aria-labelledby": "heat-title" },
    h("h2", { id: "heat-title" }, "Who decides"),
    about,
    place,
  );
  let wanted = "";
  let shown = "";
  let seen = false;
  /** Marks the position that is read. @type {(position: number) => void} */
  let mark = () => {};
  /** @type {data.Prompt | null} */
  let found = null;

  async function load() {
    if (!found || shown === wanted) return;
    const mine = wanted;
    const [text, edits] = [asked.text, editsOfPass()];
    place.style.minHeight = `${Math.min(FULL, found.tokens.length * ROW) + AROUND}px`; // nothing below moves when it comes
    place.setAttribute("aria-busy", "true");
    if (!shown) replace(place, h("p", { class: "soft small" }, "Reading every position …"));
    try {
      const known = kept.get(mine);
      /** @type {Effects} */
      const effects = known ?? (await data.post("api/prompt/layers", { text, edits }));
      kept.set(mine, effects);
      if (kept.size > KEPT) kept.delete(/** @type {string} */ (kept.keys().next().value));
      if (mine !== wanted || signal.aborted) return;
      shown = mine;
      mark = draw(place, effects, again, signal);
      mark(found.position);
    } catch (error) {
      if (mine !== wanted) return;
      shown = "";
      replace(place, failure(error));
    } finally {
      if (mine === wanted) place.removeAttribute("aria-busy");
    }
  }

  whenSeen(
    node,
    () => {
      seen = true;
      void load();
    },
    signal,
  );

  return {
    node,
    /** @param {data.Prompt} answer */
    update(answer) {
      found = answer;
      wanted = JSON.stringify([asked.text, editsOfPass()]);
      const pass = ofPass(answer);
      about.textContent = `What each layer’s feed-forward does to the logit of the token that is predicted after each token of the text, everything else unchanged${
        pass && `, in ${pass}`
      }. Choose a square to read that token and see the layer’s cells.`;
      if (shown === wanted) {
        place.removeAttribute("aria-busy");
        mark(answer.position);
      }
      else if (seen || kept.has(wanted)) void load();
    },
  };
}

/**
 * @param {HTMLElement} place
 * @param {Effects} effects
 * @param {import("./edits.js").Again} again
 * @param {AbortSignal} signal
 * @returns {(position: number) => void} marks a position
 */
function draw(place, effects, again, signal) {
  const rows = effects.tokens.length;
  const columns = data.axis.depth;
  const sizes = effects.effects.flat().map((value) => Math.abs(value ?? 0));
  sizes.sort((a, b) => a - b);
  const reach = sizes[Math.floor((sizes.length - 1) * REACH)] || sizes.at(-1) || 1;
  const cursor = { row: rows - 1, column: columns - 1 };

  const canvas = h("canvas", { "aria-hidden": "true", width: columns, height: rows });
  canvas.style.height = `${rows * ROW}px`;
  const frame = h("div", { class: "square", hidden: true });
  const readout = h("p", { class: "readout", role: "status" }, "Point at a square, or move with the arrow keys; Enter goes there.");
  const box = h(
    "div",
    {
      class: "squares",
      tabindex: 0,
      role: "application",
      "data-keys": "heat",
      "data-at": "heat",
      "aria-label": `Map of ${rows} tokens and ${columns} layers. Arrow keys move, Enter reads the token and goes to the layer.`,
    },
    canvas,
    frame,
  );
  /** @param {string} kind @param {(i: number) => Node} show */
  const side = (kind, show) =>
    h(
      "ol",
      { class: kind, "aria-hidden": "true" },
      effects.tokens.map((_, i) => {
        const item = h("li", {}, show(i));
        item.style.height = `${ROW}px`;
        return item;
      }),
    );
  const left = side("given", (i) => token(effects.tokens[i]));
  const right = side("follows", (i) =>
    h("span", { title: `predicted with ${percent(effects.p[i])}` }, token(effects.predicted[i])),
  );
  const every = Math.ceil(columns / 12);
  const axis = h(
    "div",
    { class: "axis", "aria-hidden": "true" },
    Array.from({ length: columns }, (_, layer) => h("span", {}, layer % every ? "" : data.axis.label(layer))),
  );

  function paint() {
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const image = context.createImageData(columns, rows);
    const [none, up, down] = ["--wash", "--say", "--unsay"].map(colour);
    effects.effects.forEach((row, i) =>
      row.forEach((value, layer) => {
        const share = Math.min(1, Math.abs(value ?? 0) / reach) ** 0.75;
        const ink = (value ?? 0) < 0 ? down : up;
        const pixel = (i * columns + layer) * 4;
        for (let c = 0; c < 3; c++) image.data[pixel + c] = none[c] + (ink[c] - none[c]) * share;
        image.data[pixel + 3] = 255;
      }),
    );
    context.putImageData(image, 0, 0);
  }

  function tell() {
    const { row, column } = cursor;
    frame.hidden = false;
    frame.style.left = `${(column / columns) * 100}%`;
    frame.style.width = `${100 / columns}%`;
    frame.style.top = `${row * ROW}px`;
    frame.style.height = `${ROW}px`;
    const value = effects.effects[row][column];
    replace(
      readout,
      h("b", {}, `layer ${data.axis.label(column)}`),
      ` after token ${row} `,
      token(effects.tokens[row]),
      ": ",
      h("b", {}, signed(value)),
      " on ",
      token(effects.predicted[row]),
      ` (predicted with ${percent(effects.p[row])})`,
    );
  }

  /** @param {MouseEvent} event */
  function point(event) {
    const area = canvas.getBoundingClientRect();
    cursor.column = clamp(Math.floor(((event.clientX - area.left) / area.width) * columns), columns);
    cursor.row = clamp(Math.floor((event.clientY - area.top) / ROW), rows);
    tell();
  }

  const go = () => again({ position: cursor.row, token: null }, `layer:${cursor.column}`);

  /** @param {KeyboardEvent} event */
  function move(event) {
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      Home: [0, -columns],
      End: [0, columns],
      PageUp: [-10, 0],
      PageDown: [10, 0],
    };
    if (event.key === "Enter") go();
    else if (moves[event.key]) {
      const [down, right] = moves[event.key];
      if (!frame.hidden) {
        cursor.row = clamp(cursor.row + down, rows);
        cursor.column = clamp(cursor.column + right, columns);
      }
      tell();
      frame.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else return;
    event.preventDefault();
  }

  box.addEventListener("pointermove", point);
  box.addEventListener("click", (event) => (point(event), go()));
  box.addEventListener("keydown", move);
  box.addEventListener("focus", () => box.matches(":focus-visible") && tell());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint, { signal });
  paint();
  replace(
    place,
    h(
      "div",
      { class: "legend" },
      h("span", {}, `−${number(reach)} and less`),
      h("span", { class: "ramp signed", "aria-hidden": "true" }),
      h("span", {}, `+${number(reach)} and more`),
    ),
    h(
      "div",
      { class: "heatbox scroll" },
      h("div", { class: "heatrows heataxis" }, h("span", { class: "given" }, "after"), axis, h("span", { class: "follows" }, "predicts")),
      h("div", { class: "heatrows" }, left, box, right),
    ),
    readout,
    asTable(effects),
  );
  return (position) => {
    for (const list of [left, right])
      [...list.children].forEach((item, i) => item.classList.toggle("here", i === position));
    if (frame.hidden) cursor.row = clamp(position, rows);
  };
}

/** The same numbers as a table, made when it is opened. @param {Effects} effects */
function asTable(effects) {
  const place = h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Effects of the layers as a table" });
  const details = h("details", { class: "meanings" }, h("summary", {}, "The same as a table"), place);
  details.addEventListener("toggle", () => {
    if (place.firstChild) return;
    const layers = Array.from({ length: data.axis.depth }, (_, layer) => layer);
    place.append(
      h(
        "table",
        { class: "heattable" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col" }, "token"),
            h("th", { scope: "col" }, "predicts"),
            layers.map((layer) => h("th", { class: "num", scope: "col" }, data.axis.layers[layer].layer)),
          ),
        ),
        h(
          "tbody",
          {},
          effects.effects.map((row, i) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, `${i} `, token(effects.tokens[i])),
              h("td", {}, token(effects.predicted[i])),
              row.map((value) => h("td", { class: "num" }, signed(value))),
            ),
          ),
        ),
      ),
    );
  });
  return details;
}

/** @param {number | null} value */
function signed(value) {
  return ((value ?? 0) > 0 ? "+" : "") + number(value, 3);
}

/** @param {number} at @param {number} count */
function clamp(at, count) {
  return Math.max(0, Math.min(count - 1, at));
}

/** `#rrggbb` of a CSS variable as three numbers. @param {string} name */
function colour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
}
