// @ts-check
/** A layer: its cells as a table. Only the rows in view are in the page, so that thousands scroll smoothly. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import * as kinds from "./kinds.js";
import { bar, cellLink, token } from "./parts.js";
import { counted, even, number, percent, visible, whole } from "./text.js";

const ROW = 40;
const SPARE = 8;

/**
 * @typedef {data.Columns & {pattern: Record<string, string>}} Columns with the labels of the cells
 * @typedef {{name: string, title: string, explain: string, kind: string, key: (columns: Columns, cell: number) => string | number | null,
 *   show: (columns: Columns, cell: number, layer: number) => Node | string}} Column
 */

/** @type {Column[]} */
const COLUMNS = [
  {
    name: "cell",
    title: "Cell",
    explain: "its number",
    kind: "name",
    key: (_, cell) => cell,
    show: (_, cell, layer) => cellLink(layer, cell),
  },
  {
    name: "pattern",
    title: "Pattern",
    explain: "the first pattern of its key: what its triggers have in common",
    kind: "pattern",
    key: (c, i) => c.pattern[i]?.toLowerCase() ?? null,
    show: (c, i) => (c.pattern[i] === undefined ? "" : h("bdi", { title: visible(c.pattern[i]) }, visible(c.pattern[i]))),
  },
  {
    name: "active",
    title: "Fires on",
    explain: "share of prefixes with a coefficient above zero",
    kind: "num",
    key: (c, i) => c.active?.[i] ?? null,
    show: (c, i) => percent(c.active?.[i]),
  },
  {
    name: "peak",
    title: "Peak",
    explain: "the strongest coefficient per root mean square: how far it stands out",
    kind: "num",
    key: (c, i) => c.peak?.[i] ?? null,
    show: (c, i) => `${number(c.peak?.[i], 2)} ×`,
  },
  {
    name: "max",
    title: "Largest m",
    explain: "the largest coefficient",
    kind: "num wide",
    key: (c, i) => c.max[i],
    show: (c, i) => even(c.max[i]),
  },
  {
    name: "min",
    title: "Smallest m",
    explain: "the smallest coefficient",
    kind: "num wide widest",
    key: (c, i) => c.min[i],
    show: (c, i) => even(c.min[i]),
  },
  {
    name: "trigger",
    title: "Top trigger",
    explain: "the end of the prefix that fires the key most; sorted by its last token",
    kind: "text",
    key: (c, i) => c.last[i]?.trim().toLowerCase() ?? null,
    show: trigger,
  },
  {
    name: "next",
    title: "Then",
    explain: "the token that follows it",
    kind: "then",
    key: (c, i) => c.next[i]?.trim().toLowerCase() ?? null,
    show: (c, i) => {
      const next = c.next[i];
      return next === null ? "" : token(next, next === c.promotes?.[i]?.[0] ? "agrees" : "");
    },
  },
  {
    name: "promotes",
    title: "Value promotes",
    explain: "the tokens the value promotes most",
    kind: "tokens",
    key: (c, i) => c.promotes?.[i]?.[0]?.trim().toLowerCase() ?? null,
    show: (c, i) =>
      h(
        "span",
        { class: "promotes" },
        (c.promotes?.[i] ?? []).map((piece) => token(piece)),
      ),
  },
  {
    name: "agreement",
    title: "Agreement",
    explain: "share of its triggers followed by the value’s top token",
    kind: "num agree",
    key: (c, i) => c.agreement?.[i] ?? null,
    show: agreement,
  },
  {
    name: "max_prob",
    title: "Max p",
    explain: "the largest probability in the value’s distribution",
    kind: "num wide",
    key: (c, i) => c.max_prob?.[i] ?? null,
    show: (c, i) => percent(c.max_prob?.[i]),
  },
];

/** @param {data.Columns} c @param {number} i */
function trigger(c, i) {
  const whole = c.trigger[i];
  const last = c.last[i];
  if (whole === null || last === null) return h("span", { class: "soft" }, "dead: never fires");
  const before = whole.endsWith(last) ? whole.slice(0, whole.length - last.length) : whole;
  const spaced = last.startsWith(" ") && last.trim() !== "";
  return h(
    "span",
    { class: "tail" },
    h("bdi", {}, h("span", {}, visible(before) + (spaced ? " " : ""))),
    h("bdi", {}, h("span", { class: "last" }, visible(spaced ? last.slice(1) : last))),
  );
}

/** @param {data.Columns} c @param {number} i */
function agreement(c, i) {
  const share = c.agreement?.[i] ?? null;
  return share
    ? h("span", { class: "agreement" }, bar(share, "say"), percent(share))
    : share === null
      ? "–"
      : h("span", { class: "soft" }, "0 %");
}

/** @param {import("./app.js").Place} place */
export async function render({ run, layer, query, signal }) {
  const { axis } = data;
  const [read, labels, labelled] = await Promise.all([data.layer(layer), data.labels(layer), data.kinds()]);
  const columns = { ...read.columns, pattern: labels };
  const absent = [run.model.gated ? "active" : "peak", ...(data.patterned ? [] : ["pattern"])];
  const chosen = COLUMNS.filter(({ name }) => !absent.includes(name));
  const count = columns.max.length;
  const searched = Array.from({ length: count }, (_, i) =>
    [columns.trigger[i] ?? "", columns.next[i] ?? "", ...(columns.promotes?.[i] ?? []), labels[i] ?? ""].join("\n").toLowerCase(),
  );
  const state = {
    sort: query.get("sort") ?? (run.lens ? "agreement" : "max"),
    down: query.get("order") !== "up",
    filter: query.get("filter") ?? "",
    alive: query.get("alive") === "1",
    agreeing: query.get("agreeing") === "1",
    kind: query.get("kind") ?? "",
  };
  if (!chosen.some((column) => column.name === state.sort)) state.sort = "cell";
  /** @type {number[]} */
  let rows = [];

  const said = h("p", { class: "soft", role: "status" });
  const body = h("tbody");
  const heads = chosen.map((column) =>
    h(
      "th",
      { scope: "col", class: column.kind, "aria-sort": "none" },
      h("button", { type: "button", title: column.explain, onclick: () => order(column.name) }, column.title),
    ),
  );
  const table = h(
    "table",
    { class: data.patterned ? "cells patterned" : "cells", "aria-rowcount": count + 1, "aria-label": `Cells of layer ${axis.label(layer)}` },
    h("thead", {}, h("tr", { "aria-rowindex": 1 }, heads)),
    body,
  );
  const box = h(
    "div",
    { class: "scroll cellbox", tabindex: 0, role: "region", "aria-label": "Table of cells, scrolls" },
    table,
  );

  /** @param {string} name */
  function order(name) {
    const numeric = chosen.find((column) => column.name === name)?.kind.startsWith("num") ?? false;
    if (state.sort === name) state.down = !state.down;
    else Object.assign(state, { sort: name, down: numeric });
    box.scrollTop = 0;
    arrange(true);
  }

  /** @param {boolean} remember */
  function arrange(remember) {
    const column = /** @type {Column} */ (chosen.find((each) => each.name === state.sort));
    const needle = state.filter.trim().toLowerCase();
    const keys = Array.from({ length: count }, (_, i) => column.key(columns, i));
    const isOfKind = kinds.of(labelled, state.kind);
    rows = [];
    for (let i = 0; i < count; i++) {
      if (
        !isOfKind(layer, i) ||
        (state.alive && columns.dead[i]) ||
        (state.agreeing && !columns.agreement?.[i]) ||
        (needle && !searched[i].includes(needle))
      )
        continue;
      rows.push(i);
    }
    const sign = state.down ? -1 : 1;
    rows.sort((a, b) => {
      const [x, y] = [keys[a], keys[b]];
      if (x === null || y === null) return Number(x === null) - Number(y === null) || a - b; // unknown values come last in both orders
      return (x < y ? -sign : x > y ? sign : 0) || a - b;
    });
    heads.forEach((head, i) =>
      head.setAttribute("aria-sort", chosen[i].name !== state.sort ? "none" : state.down ? "descending" : "ascending"),
    );
    table.setAttribute("aria-rowcount", String(rows.length + 1));
    said.textContent =
      rows.length === count ? counted(count, "cell") : `${whole(rows.length)} of ${counted(count, "cell")}`;
    drawn = [-1, -1];
    draw();
    if (remember) history.replaceState(history.state, "", `${axis.href(layer)}?${link()}`);
  }

  function link() {
    const asked = new URLSearchParams({ sort: state.sort, order: state.down ? "down" : "up" });
    if (state.filter) asked.set("filter", state.filter);
    if (state.alive) asked.set("alive", "1");
    if (state.agreeing) asked.set("agreeing", "1");
    if (state.kind) asked.set("kind", state.kind);
    return asked;
  }

  let drawn = [-1, -1];
  function draw() {
    const begin = Math.max(0, Math.floor(box.scrollTop / ROW) - SPARE);
    const end = Math.min(rows.length, Math.ceil((box.scrollTop + (box.clientHeight || 800)) / ROW) + SPARE);
    if (begin === drawn[0] && end === drawn[1]) return;
    drawn = [begin, end];
    const focused = body.contains(document.activeElement) ? document.activeElement?.getAttribute("href") : null;
    replace(body, space(begin), rows.slice(begin, end).map(row), space(rows.length - end));
    if (!focused) return;
    const again = Array.from(body.querySelectorAll("a")).find((link) => link.getAttribute("href") === focused);
    (again ?? box).focus({ preventScroll: true });
  }

  /** @param {number} many */
  function space(many) {
    if (many <= 0) return null;
    const filler = h("td");
    filler.style.height = `${many * ROW}px`;
    return h("tr", { class: "space", "aria-hidden": "true" }, filler);
  }

  /** @param {number} cell @param {number} i */
  function row(cell, i) {
    const go = /** @param {MouseEvent} event */ (event) => {
      if (!(/** @type {Element} */ (event.target).closest("a")) && !getSelection()?.toString())
        location.hash = axis.href(layer, cell);
    };
    return h(
      "tr",
      { "aria-rowindex": drawn[0] + i + 2, class: columns.dead[cell] ? "dead" : null, onclick: go },
      chosen.map((column) => h("td", { class: column.kind }, column.show(columns, cell, layer))),
    );
  }

  box.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  const resized = new ResizeObserver(draw);
  resized.observe(box);
  signal.addEventListener("abort", () => resized.disconnect());

  const filter = h("input", {
    id: "filter",
    type: "search",
    value: state.filter,
    placeholder: data.patterned ? "pattern, trigger, token" : "in triggers and tokens",
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => {
      state.filter = filter.value;
      box.scrollTop = 0;
      arrange(true);
    },
  });
  /** @param {"alive" | "agreeing"} name @param {string} text */
  const toggle = (name, text) => {
    const input = h("input", {
      type: "checkbox",
      checked: state[name],
      onchange: () => {
        state[name] = input.checked;
        box.scrollTop = 0;
        arrange(true);
      },
    });
    return h("label", { class: "toggle" }, input, text);
  };
  const pick = h(
    "select",
    { id: "pick", onchange: () => (location.hash = axis.href(Number(pick.value))) },
    axis.layers.map((_, i) => h("option", { value: i, selected: i === layer }, `layer ${axis.label(i)}`)),
  );
  arrange(false);
  return {
    title: `Layer ${axis.label(layer)}`,
    body: h(
      "div",
      {},
      h(
        "div",
        { class: "pagehead" },
        h("h1", {}, `Layer ${axis.label(layer)} `, h("span", { class: "of" }, `of ${axis.depth}`)),
        h(
          "nav",
          { class: "steps", "aria-label": "Layers" },
          h("a", { href: axis.href((layer + axis.depth - 1) % axis.depth), rel: "prev", "aria-label": "Previous layer" }, "←"),
          h("label", { for: "pick", class: "hidden" }, "Go to layer"),
          pick,
          h("a", { href: axis.href((layer + 1) % axis.depth), rel: "next", "aria-label": "Next layer" }, "→"),
        ),
      ),
      h(
        "div",
        { class: "controls" },
        h("label", { for: "filter" }, "Filter"),
        filter,
        kinds.choice(labelled, state.kind, (name) => {
          state.kind = name;
          box.scrollTop = 0;
          arrange(true);
        }),
        toggle("alive", "hide dead"),
        toggle("agreeing", "agreement above 0"),
        said,
      ),
      box,
    ),
  };
}
