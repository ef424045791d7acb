// @ts-check
/** A layer: its cells as a table. */
import * as beside from "./beside-layer.js";
import * as data from "./data.js";
import { h } from "./dom.js";
import * as kinds from "./kinds.js";
import { cellLink, token } from "./parts.js";
import { agreement, Rows, tail } from "./rows.js";
import { counted, even, number, percent, visible, whole } from "./text.js";

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
    name: "firing",
    title: "Fires on",
    explain: "share of sampled prefixes with a coefficient above a tenth of the cell’s largest",
    kind: "num",
    key: (c, i) => c.firing?.[i] ?? null,
    show: (c, i) => percent(c.firing?.[i]),
  },
  {
    name: "peak",
    title: "Peak",
    explain: "the strongest coefficient per root mean square: how far it stands out",
    kind: "num wide",
    key: (c, i) => c.peak[i],
    show: (c, i) => `${number(c.peak[i], 2)} ×`,
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
    show: (c, i) => tail(c.trigger[i], c.last[i]),
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
    show: (c, i) => agreement(c.agreement?.[i] ?? null),
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

/** @param {import("./app.js").Place} place */
export async function render({ run, layer, query, signal }) {
  const { axis } = data;
  const [read, labels, labelled, other] = await Promise.all([
    data.layer(layer),
    data.labels(layer),
    data.kinds(),
    run.beside && !run.beside.why ? data.overlaps(layer) : null,
  ]);
  const columns = { ...read.columns, pattern: labels };
  const absent = [...(run.shading ? [] : ["firing"]), ...(data.patterned ? [] : ["pattern"])];
  const own = COLUMNS.filter(({ name }) => !absent.includes(name));
  const chosen = other ? [...own, ...beside.columns(other)] : own;
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
  const shown = new Rows({
    label: `Cells of layer ${axis.label(layer)}`,
    kind: ["cells", data.patterned && "patterned", other && "compared"].filter(Boolean).join(" "),
    heads: chosen,
    row: (i) => ({
      href: axis.href(layer, rows[i]),
      class: columns.dead[rows[i]] ? "dead" : null,
      cells: chosen.map((column) => column.show(columns, rows[i], layer)),
    }),
    order,
    signal,
  });

  /** @param {string} name */
  function order(name) {
    const numeric = chosen.find((column) => column.name === name)?.kind.startsWith("num") ?? false;
    if (state.sort === name) state.down = !state.down;
    else Object.assign(state, { sort: name, down: numeric });
    shown.top();
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
    said.textContent =
      rows.length === count ? counted(count, "cell") : `${whole(rows.length)} of ${counted(count, "cell")}`;
    shown.update(rows.length, state.sort, state.down);
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

  const filter = h("input", {
    id: "filter",
    type: "search",
    value: state.filter,
    placeholder: data.patterned ? "pattern, trigger, token" : "in triggers and tokens",
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => {
      state.filter = filter.value;
      shown.top();
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
        shown.top();
        arrange(true);
      },
    });
    return h("label", { class: "toggle" }, input, text);
  };
  const pick = h(
    "select",
    { id: "pick", onchange: () => (location.hash = axis.href(Number(pick.value))) },
    data.layersShown().map((i) => h("option", { value: i, selected: i === layer }, `layer ${axis.label(i)}`)),
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
          h("a", { href: axis.href(data.layerStep(layer, -1)), rel: "prev", "aria-label": "Previous layer" }, "←"),
          h("label", { for: "pick", class: "hidden" }, "Go to layer"),
          pick,
          h("a", { href: axis.href(data.layerStep(layer, 1)), rel: "next", "aria-label": "Next layer" }, "→"),
        ),
      ),
      other && run.beside && beside.summary(other, run.beside),
      run.beside?.why && h("p", { class: "soft overlap" }, "Beside it: ", h("bdi", {}, visible(run.beside.name)), `. ${visible(run.beside.why)}`),
      h(
        "div",
        { class: "controls" },
        h("label", { for: "filter" }, "Filter"),
        filter,
        kinds.choice(labelled, state.kind, (name) => {
          state.kind = name;
          shown.top();
          arrange(true);
        }),
        toggle("alive", "hide dead"),
        toggle("agreeing", "agreement above 0"),
        said,
      ),
      shown.box,
    ),
  };
}
