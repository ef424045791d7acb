// @ts-check
/** Parts that several pages show: tokens, bars, triggers, links to cells. */
import * as data from "./data.js";
import { append, h, replace, whenSeen } from "./dom.js";
import { starred } from "./marks.js";
import { ABSENT } from "./part.js";
import { quoted, searchHref } from "./query.js";
import { blank, even, number, size, visible, whole } from "./text.js";

/** Items of a long list that are shown at a time. */
const LISTED = 20;

/**
 * A token on its own, its leading space shown.
 * @param {string} piece
 * @param {string} [kind] a further class
 */
export function token(piece, kind = "") {
  const body = h("bdi");
  if (!piece.trim()) append(body, h("i", {}, blank(piece)));
  else if (piece.startsWith(" ")) append(body, h("i", {}, "␣"), visible(piece.slice(1)));
  else append(body, visible(piece));
  return h("span", { class: `token ${kind}`.trim(), title: visible(piece).length > 24 ? visible(piece) : null }, body);
}

/**
 * A token that links to its search: whose values promote it, whose triggers end in it. Not for use inside another link.
 * @param {string} piece
 * @param {string} [kind] a further class
 */
export function tokenLink(piece, kind = "") {
  return h("a", { class: "tokenlink", href: searchHref(quoted(piece)) }, token(piece, kind));
}

/** The address of a cell, with a star in the margin if someone starred it. @param {number} layer @param {number} cell */
export function cellLink(layer, cell) {
  const there = data.has(layer, cell);
  const link = h(
    "a",
    { class: there ? "address" : "address absent", href: data.axis.href(layer, cell), title: there ? null : ABSENT },
    data.axis.address(layer, cell),
  );
  return starred(link, layer, cell);
}

/**
 * A cell's label: what its first pattern says. It is filled in when it comes into view, and stays empty if the cell has no
 * pattern. Null if patterns were not looked for in this run.
 * @param {number} layer
 * @param {number} cell
 * @param {AbortSignal} signal
 */
export function label(layer, cell, signal) {
  if (!data.patterned) return null;
  const place = h("span", { class: "pattern" });
  whenSeen(
    place,
    async () => {
      const text = (await data.labels(layer).catch(() => null))?.[cell];
      if (text === undefined) return;
      place.title = `Pattern: ${visible(text)}`;
      append(place, h("span", { class: "hidden" }, "pattern: "), h("bdi", {}, visible(text)));
    },
    signal,
  );
  return place;
}

/** The link to the annotation of a cell. @param {number} layer @param {number} cell */
export const annotateHref = (layer, cell) => data.axis.href(layer, cell).replace("#/", "#/annotate/");

/**
 * A bar whose length is a share of its room. It is decoration: the number stands beside it.
 * @param {number} share
 * @param {string} kind
 */
export function bar(share, kind) {
  const fill = h("span", { class: `fill ${kind}` });
  fill.style.width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  return h("span", { class: "bar", "aria-hidden": "true" }, fill);
}

/**
 * Tokens with numbers and bars.
 * @param {data.Said[]} said
 * @param {{kind: string, largest: number, shown?: number, mark?: Set<string>, link?: boolean, format?: (value: number | null) => string}} options
 */
export function saidList(said, { kind, largest, shown = said.length, mark, link = false, format = even }) {
  const items = said.map(([piece, value], i) =>
    h(
      "li",
      { hidden: i >= shown },
      (link ? tokenLink : token)(piece, mark?.has(piece) ? "agrees" : ""),
      bar(size(value) / largest, kind),
      h("span", { class: "num" }, format(value)),
    ),
  );
  const list = h("ol", { class: "said" }, items);
  if (said.length <= shown) return list;
  const more = h(
    "button",
    {
      class: "more",
      type: "button",
      onclick: () => {
        items.forEach((item) => (item.hidden = false));
        more.remove();
      },
    },
    `all ${said.length}`,
  );
  return h("div", {}, list, more);
}

/**
 * A list with a button that shows more of it.
 * @template T
 * @param {T[]} items
 * @param {(item: T) => HTMLLIElement} show
 * @param {number} [rows] that are shown at first, at least
 */
export function listed(items, show, rows = 0) {
  const list = h("ol", { class: "hits" });
  let shown = 0;
  const more = h("button", { type: "button", class: "more", onclick: () => add() });
  const add = () => {
    items.slice(shown, shown + LISTED).forEach((item) => list.append(show(item)));
    shown = Math.min(items.length, shown + LISTED);
    more.textContent = `more (${whole(items.length - shown)} left)`;
    more.hidden = shown >= items.length;
  };
  do add();
  while (shown < Math.min(rows, items.length));
  return h("div", {}, list, more);
}

/**
 * The first tokens that differ in more than case and spaces.
 * @param {data.Said[]} said
 * @param {number} count
 */
export function different(said, count) {
  /** @type {Map<string, string>} */
  const found = new Map();
  for (const [piece] of said) {
    const word = piece.trim().toLowerCase() || piece;
    if (!found.has(word)) found.set(word, piece);
    if (found.size === count) break;
  }
  return [...found.values()];
}

/**
 * A trigger as a line of text: what stands before, the last token boxed, the next token marked, what follows.
 * @param {data.Trigger} trigger
 * @param {{largest?: number, top?: string | null, promoted?: Set<string>, before?: number, after?: number, mark?: Set<number>}} [options]
 *   largest: the coefficient that full shade stands for; top and promoted: the value's tokens;
 *   before, after: upper bounds on the tokens shown, if there are to be fewer than the answer has; mark: tokens that were searched for
 */
export function line(trigger, { largest, top, promoted, before = Infinity, after = Infinity, mark } = {}) {
  const { tokens, at, shade } = trigger;
  const begin = Math.max(0, at - before);
  const end = Math.min(tokens.length, at + 2 + after);
  /** @param {number} i @param {string} text */
  const shaded = (i, text) => {
    const span = h("span", {}, visible(text));
    if (shade && shade[i]) {
      span.className = shade[i] > 0 ? "warm" : "cold";
      span.style.setProperty("--s", `${Math.round(Math.abs(shade[i]) * 100)}%`);
      if (largest) span.title = `m = ${number(shade[i] * largest, 2)}`;
    }
    if (mark?.has(i)) span.classList.add("match");
    return span;
  };
  const left = h("span", {}, begin || trigger.cut[0] ? h("span", { class: "cut" }, "…") : null);
  for (let i = begin; i < at; i++) left.append(shaded(i, tokens[i]));
  const last = tokens[at] ?? "";
  const spaced = last.startsWith(" ") && last.trim() !== "";
  if (spaced) left.append(" ");
  const box = shaded(at, last.trim() ? (spaced ? last.slice(1) : last) : blank(last));
  box.classList.add("last");
  if (trigger.c < 0) box.classList.add("minus");
  const right = h("bdi", { class: "after" });
  if (at + 1 < tokens.length) {
    const next = tokens[at + 1];
    const kind = next === top ? "next agrees" : promoted?.has(next) ? "next promoted" : "next";
    if (next.startsWith(" ") && next.trim()) right.append(" ");
    const span = h("span", { class: kind }, next.trim() ? visible(next.replace(/^ /, "")) : blank(next));
    span.title =
      kind === "next agrees"
        ? "the next token, and the one the value promotes most"
        : kind === "next promoted"
          ? "the next token, and one the value promotes"
          : "the next token";
    right.append(span);
    for (let i = at + 2; i < end; i++) right.append(visible(tokens[i]));
    if (end < tokens.length || trigger.cut[1]) right.append(h("span", { class: "cut" }, "…"));
  } else if (trigger.cut[1] === 0) right.append(h("span", { class: "cut", title: "nothing follows" }, " ∎"));
  return h(
    "span",
    { class: "line" },
    h("bdi", { class: "before" }, left),
    h("span", { class: "right" }, h("bdi", {}, box), right),
  );
}

/**
 * A text of tokens, one of them boxed and the one after it marked.
 * @param {string[]} tokens
 * @param {number} at
 * @returns {(Node | string)[]}
 */
export function boxed(tokens, at) {
  const last = tokens[at] ?? "";
  const spaced = last.startsWith(" ") && last.trim() !== "";
  const next = tokens[at + 1];
  return [
    visible(tokens.slice(0, at).join("")) + (spaced ? " " : ""),
    h("span", { class: "last" }, last.trim() ? visible(spaced ? last.slice(1) : last) : blank(last)),
    next?.startsWith(" ") && next.trim() ? " " : "",
    ...(next === undefined ? [] : [h("span", { class: "next" }, next.trim() ? visible(next.replace(/^ /, "")) : blank(next))]),
    visible(tokens.slice(at + 2).join("")),
  ];
}

/**
 * The triggers whose next token the value promotes come first: each such token once before any comes twice.
 * @param {data.Trigger[]} triggers
 * @param {Set<string>} promoted
 */
export function telling(triggers, promoted) {
  /** @type {Map<string, number>} */
  const seen = new Map();
  const ranked = triggers.map((trigger, i) => {
    const next = trigger.tokens[trigger.at + 1];
    if (next === undefined || !promoted.has(next)) return { trigger, turn: Infinity, i };
    const turn = seen.get(next) ?? 0;
    seen.set(next, turn + 1);
    return { trigger, turn, i };
  });
  ranked.sort((a, b) => (a.turn === b.turn ? a.i - b.i : a.turn - b.turn));
  return { named: ranked.filter(({ turn }) => turn < Infinity).length, triggers: ranked.map(({ trigger }) => trigger) };
}

/**
 * A short look at a cell, filled in when it comes into view: its label, a trigger and what its value promotes.
 * @param {string} where `L12.345`
 * @param {AbortSignal} signal
 * @param {{triggers?: number, promoted?: number, pick?: (cell: data.Cell) => {trigger: data.Trigger, mark?: Set<number>}[], negative?: boolean, demoted?: boolean}} [options]
 *   pick: which triggers are shown, if not those whose next token the value promotes; negative: what a negative coefficient
 *   promotes, which writes −value, so that these are the tokens that the value demotes; demoted: those tokens, beside triggers
 *   that are chosen by what the value promotes
 */
export function preview(where, signal, { triggers = 1, promoted = 4, pick, negative = false, demoted = negative } = {}) {
  const at = data.axis.find(where);
  if (!data.has(at.layer, at.cell)) return h("span", { class: "preview soft small" }, ABSENT);
  const place = h("span", { class: "preview" }, " ");
  whenSeen(
    place,
    async () => {
      try {
        const cell = await data.cell(at.layer, at.cell);
        const value = cell.values[0];
        const said = value?.[negative ? "demoted" : "promoted"];
        const names = new Set(said?.map(([piece]) => piece));
        replace(
          place,
          label(at.layer, at.cell, signal),
          (pick?.(cell) ?? telling(cell.triggers, names).triggers.map((trigger) => ({ trigger, mark: undefined })))
            .slice(0, triggers)
            .map(({ trigger, mark }) =>
              line(trigger, { before: 14, after: 0, top: said?.[0]?.[0], promoted: names, mark }),
            ),
          cell.dead && h("span", { class: "cut" }, "dead: no prefix makes this key fire"),
          said &&
            h(
              "span",
              { class: "promotes" },
              different(value[demoted ? "demoted" : "promoted"], promoted).map((piece) => tokenLink(piece)),
            ),
        );
      } catch (error) {
        replace(place, /** @type {Error} */ (error).message);
      }
    },
    signal,
  );
  return place;
}

/**
 * An error, shown where the reader looks.
 * @param {unknown} error
 */
export function failure(error) {
  return h("p", { class: "missing", role: "alert" }, visible(error instanceof Error ? error.message : String(error)));
}
