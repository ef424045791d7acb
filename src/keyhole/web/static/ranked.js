// @ts-check
/**
 * The cells of all layers in one list, by direct effect, by strength, or by measured ablation: the model is run again with the
 * cell switched off. Measuring takes a forward pass per cell, so it is done when it is asked for.
 */
import { editsOfPass, offButton, ofPass, reading, says } from "./contribution.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { asked, isEdited } from "./edits.js";
import { bar, cellLink, label, token } from "./parts.js";
import { counted, even, number, size } from "./text.js";

/** Cells that are measured first: this number of those with the largest effects, and as many of the strongest. */
const FIRST = 16;
/** Cells per request, so that numbers come while one waits; fewer if they are switched off at all tokens of a long text. */
const CHUNK = 32;
/** Upper bound on cells × tokens of such a request. */
const TOKENS = 1024;
/** Rows that are shown at first. */
const SHOWN = 20;
/** Upper bound on the prompts whose measurements are kept. */
const KEPT = 20;

/** @typedef {import("../types.js").RankedCell} Ranked */
/** @typedef {import("../types.js").Ablated} Ablated */
/** @typedef {"strength" | "effect" | "logit" | "log_p"} Column */

/** What was measured, by what was asked, then by cell. @type {Map<string, Map<string, Ablated>>} */
const measured = new Map();
/** How the list is sorted. @type {{by: Column, all: boolean}} */
const view = { by: "effect", all: false };

/** @type {[Column, string, string][]} */
const COLUMNS = [
  ["strength", "strength", "|m|·‖v‖: how much the cell adds to the residual"],
  ["effect", "direct effect", "what the cell’s addition does to the chosen token’s logit, everything else unchanged"],
  ["logit", "measured", "what the chosen token’s logit loses if the model is run again without the cell"],
  ["log_p", "log p", "what the chosen token’s log p loses if the model is run again without the cell, in nats"],
];

/** @param {import("./contribution.js").Shown} shown */
export function rankedList(shown) {
  const { found, signal } = shown;
  const { ranked } = reading(found);
  const { text, token: chosen, everywhere } = asked; // what this list answers: the reader may ask for more while it is measured
  const edits = editsOfPass();
  const key = JSON.stringify([text, found.position, found.chosen.piece, edits, everywhere]);
  const known = measured.get(key) ?? new Map();
  measured.delete(key);
  measured.set(key, known);
  if (measured.size > KEPT) measured.delete(/** @type {string} */ (measured.keys().next().value));

  const table = h("tbody");
  const agreement = h("p", { class: "small agreement-line" });
  const said = h("span", { class: "soft", role: "status" });
  const buttons = h("span", { class: "controls" });
  const heads = COLUMNS.map(([name, text, title]) =>
    h(
      "th",
      { class: "num", scope: "col", "aria-sort": view.by === name ? "descending" : "none" },
      h(
        "button",
        {
          type: "button",
          title,
          "data-at": `sort:${name}`,
          onclick: () => {
            view.by = name;
            heads.forEach((head, i) => head.setAttribute("aria-sort", COLUMNS[i][0] === name ? "descending" : "none"));
            draw();
          },
        },
        text,
      ),
    ),
  );
  const more = h("button", {
    type: "button",
    class: "more",
    onclick: () => {
      view.all = true;
      draw();
    },
  });
  let running = false;

  /** @param {Ranked} cell @param {Column} column @returns {number | null} */
  const value = (cell, column) => {
    if (column === "strength" || column === "effect") return cell[column];
    return known.get(name(cell))?.[column] ?? null;
  };

  function draw() {
    const rows = [...ranked].sort((a, b) => {
      const [one, other] = [value(a, view.by), value(b, view.by)];
      return (other === null ? -1 : Math.abs(other)) - (one === null ? -1 : Math.abs(one));
    });
    /** @type {Record<string, number>} */
    const largest = {};
    for (const [column] of COLUMNS) largest[column] = Math.max(...ranked.map((cell) => size(value(cell, column))), 1e-9);
    largest.logit = largest.effect = Math.max(largest.logit, largest.effect); // one scale, so that they can be compared
    replace(
      table,
      rows.slice(0, view.all ? Infinity : SHOWN).map((cell) => row(cell, largest)),
    );
    more.hidden = view.all || rows.length <= SHOWN;
    more.textContent = `${rows.length - SHOWN} more`;
    replace(agreement, compared(ranked, known));
    offer();
  }

  /** @param {Ranked} cell @param {Record<string, number>} largest */
  function row(cell, largest) {
    return h(
      "tr",
      { class: isEdited(cell.layer, cell.cell, found.position) ? "edited" : null, "data-at": `row:${name(cell)}` },
      h("th", { scope: "row" }, cellLink(cell.layer, cell.cell)),
      h("td", { class: "what" }, says(cell.layer, cell, signal, 3), label(cell.layer, cell.cell, signal)),
      h("td", { class: "num" }, number(cell.m, 2)),
      COLUMNS.map(([column]) => {
        const is = value(cell, column);
        const kind = column === "strength" ? "fire" : (is ?? 0) < 0 ? "unsay" : "say";
        return h(
          "td",
          { class: "num" },
          h("span", { class: "amount" }, column !== "log_p" && is !== null && bar(size(is) / largest[column], kind), signed(is, column)),
        );
      }),
      h("td", {}, offButton(cell.layer, cell.cell, "ranked", shown)),
    );
  }

  /** The buttons that measure: they say how many. */
  function offer() {
    if (running) return;
    const open = ranked.filter((cell) => !known.has(name(cell)));
    const strongest = [...ranked].sort((a, b) => size(b.strength) - size(a.strength)).slice(0, FIRST);
    const first = new Set([...ranked.slice(0, FIRST), ...strongest]);
    const begin = open.filter((cell) => first.has(cell));
    /** @param {Ranked[]} cells @param {string} text @param {string} title */
    const button = (cells, text, title) =>
      cells.length > 0 &&
      h(
        "button",
        { type: "button", class: "quiet", title, "data-at": "measure", onclick: () => void measure(cells) },
        text,
      );
    replace(
      buttons,
      begin.length
        ? button(begin, `Measure ${counted(begin.length, "cell")}`, `the first ${FIRST} by effect and the first ${FIRST} by strength`)
        : button(open, `Measure the other ${open.length}`, "the rest of this list"),
    );
  }

  /** @param {Ranked[]} cells */
  async function measure(cells) {
    running = true;
    let stopped = false;
    replace(buttons, h("button", { type: "button", class: "quiet", "data-at": "measure", onclick: () => (stopped = true) }, "Stop"));
    const before = document.activeElement === document.body;
    if (before) buttons.querySelector("button")?.focus({ preventScroll: true });
    const step = everywhere ? Math.max(1, Math.min(CHUNK, Math.floor(TOKENS / found.tokens.length))) : CHUNK;
    let done = 0;
    try {
      while (done < cells.length && !stopped && !signal.aborted && table.isConnected) {
        said.textContent = `${done} of ${cells.length} measured …`;
        const part = cells.slice(done, done + step);
        const answer = /** @type {import("../types.js").Ablation} */ (
          await data.post("api/prompt/ablation", {
            text,
            position: found.position,
            token: chosen,
            edits,
            everywhere,
            cells: part.map(({ layer, cell }) => [layer, cell]),
          })
        );
        for (const each of answer.cells) known.set(name(each), each);
        done += part.length;
        draw();
      }
      said.textContent = done < cells.length ? `Stopped after ${counted(done, "cell")}.` : "";
    } catch (error) {
      said.textContent = /** @type {Error} */ (error).message;
    }
    running = false;
    const focused = buttons.contains(document.activeElement);
    draw();
    if (focused) buttons.querySelector("button")?.focus({ preventScroll: true });
  }

  draw();
  const pass = ofPass(found);
  return h(
    "section",
    { class: "ranked", "aria-labelledby": "ranked-title" },
    h("h2", { id: "ranked-title" }, "Cells of all layers"),
    h(
      "p",
      { class: "soft small" },
      "The cells with the largest direct effects on ",
      token(found.chosen.piece),
      ` and the largest strengths${pass && `, in ${pass}`}. Measured: the model is run again with the cell switched off ${
        everywhere ? "at every token" : "at this token"
      }. Above 0, the cell speaks for the token.`,
    ),
    h("div", { class: "controls" }, buttons, said),
    agreement,
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "group", "aria-labelledby": "ranked-title" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col" }, "cell"),
            h("th", { scope: "col" }, "writes"),
            h("th", { class: "num", scope: "col", title: "its coefficient" }, "m"),
            heads,
            h("th", { scope: "col" }, h("span", { class: "hidden" }, "switch off")),
          ),
        ),
        table,
      ),
    ),
    more,
  );
}

/** @param {{layer: number, cell: number}} cell */
const name = ({ layer, cell }) => `${layer}.${cell}`;

/** @param {number | null} value @param {Column} column */
function signed(value, column) {
  if (value === null) return h("span", { class: "soft" }, "–");
  return h("span", {}, (value > 0 && column !== "strength" ? "+" : "") + even(value));
}

/**
 * How far direct and measured effects agree, over the cells that were measured. The last layer is left out: nothing but the
 * head reads what its cells write, so there the two are the same (up to a norm between layer and residual).
 * @param {Ranked[]} ranked
 * @param {Map<string, Ablated>} known
 */
function compared(ranked, known) {
  const measured = ranked.filter((cell) => typeof known.get(name(cell))?.logit === "number");
  const pairs = measured.flatMap((cell) => {
    if (cell.layer === data.axis.depth - 1) return [];
    const lost = known.get(name(cell))?.logit;
    return cell.effect === null || lost === null || lost === undefined ? [] : [[cell.effect, lost]];
  });
  const n = pairs.length;
  if (!measured.length) return "";
  if (n < 3) return `${counted(measured.length, "cell")} measured, ${n} of them below the last layer: too few to compare.`;
  const alike = pairs.filter(([a, b]) => Math.sign(a) === Math.sign(b)).length;
  const r = correlation(pairs);
  return `Below the last layer, direct and measured effect agree in sign for ${alike} of n = ${n} cells measured; their correlation is r = ${
    r === null ? "–" : r.toFixed(2).replace("-", "−")
  }. The last layer is left out, because nothing is computed anew after it. These cells were chosen for their size: it is no estimate for all cells.`;
}

/** Pearson’s r; null if one side does not vary. @param {number[][]} pairs */
function correlation(pairs) {
  const mean = (/** @type {number} */ i) => pairs.reduce((sum, pair) => sum + pair[i], 0) / pairs.length;
  const [x, y] = [mean(0), mean(1)];
  const sum = (/** @type {(a: number, b: number) => number} */ of) =>
    pairs.reduce((total, [a, b]) => total + of(a - x, b - y), 0);
  const spread = Math.sqrt(sum((a) => a * a) * sum((_, b) => b * b));
  return spread > 0 ? sum((a, b) => a * b) / spread : null;
}
