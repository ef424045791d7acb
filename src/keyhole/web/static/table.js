// @ts-check
/** All cells of all layers in one table: choose columns, filter, sort, and take away what is shown. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { MARKED } from "./marks.js";
import { cellsShown, measures, range } from "./measures.js";
import { cellLink, failure, token } from "./parts.js";
import { agreement, MOST_ROWS, Rows, tail } from "./rows.js";
import { takeAway } from "./takeaway.js";
import { counted, even, percent, visible, whole } from "./text.js";

/**
 * @typedef {import("./measures.js").Measures} Measures
 * @typedef {import("./measures.js").Column} Column
 * @typedef {{columns: string[], sort: string, down: boolean, filters: Map<string, string>, page: number}} State
 */

/** The columns to begin with, if the run has them. */
const FIRST = ["address", "label", "kinds", "firing", "peak", "trigger", "next_token", "promoted", "agreement", "max_prob"];
const NUMBERS = ["number", "share", "count"];
/** What the sides are called in the list of columns. @type {Record<string, string>} */
const SIDES = { cell: "Cell", key: "Key", value: "Value", people: "People" };
/** Milliseconds after the last key before a filter is applied: it may look at millions of cells. */
const PAUSE = 150;

/** @param {URLSearchParams} query @param {Measures} table @returns {State} */
function read(query, table) {
  const there = (/** @type {string} */ name) => table.byName.get(name)?.missing === null;
  const asked = (query.get("columns") ?? "").split(",").filter((name) => table.byName.has(name));
  const columns = asked.length ? [...new Set(["address", ...asked])] : FIRST.filter(there);
  const sort = query.get("sort") ?? "";
  return {
    columns,
    sort: table.byName.has(sort) ? sort : there("agreement") ? "agreement" : "peak",
    down: query.get("order") !== "up",
    filters: new Map(
      [...query].flatMap(([name, text]) => {
        const column = table.byName.get(name);
        return column ? [[name, NUMBERS.includes(column.form) ? text.split("..").map(fraction).join("..") : text]] : [];
      }),
    ),
    page: Math.max(0, Number(query.get("page") ?? 0) || 0),
  };
}

/** What of an address cannot be used, and why. @param {URLSearchParams} query @param {Measures} table @returns {string[]} */
function unread(query, table) {
  const found = [];
  for (const [name, text] of query) {
    const names = name === "columns" ? text.split(",").filter(Boolean) : name === "sort" && text ? [text] : [];
    for (const each of names) if (!table.byName.has(each)) found.push(`there is no column “${each}”`);
    if (["columns", "sort", "order", "page"].includes(name)) continue;
    const column = table.byName.get(name);
    if (!column) found.push(`there is no column “${name}”`);
    else if (text && !applies(column, text.split("..").map(fraction).join("..")))
      found.push(`“${text}” is no filter of ${column.title}, which takes ${NUMBERS.includes(column.form) ? "a range of numbers, as in 0.5..2" : column.form === "flag" ? "1 or 0" : `one of ${column.names.join(", ")}`}`);
  }
  return found;
}

/** @param {State} state @param {Measures} table */
function address(state, table) {
  const asked = new URLSearchParams();
  const usual = FIRST.filter((name) => table.byName.get(name)?.missing === null);
  if (state.columns.join() !== usual.join()) asked.set("columns", state.columns.join());
  asked.set("sort", state.sort);
  asked.set("order", state.down ? "down" : "up");
  for (const [name, wanted] of state.filters) asked.set(name, wanted);
  if (state.page) asked.set("page", String(state.page));
  return `#/cells?${asked}`;
}

/** @param {import("./app.js").Place} place */
export async function render({ run, query, signal }) {
  const { axis } = data;
  const table = await measures();
  const state = read(query, table);
  const odd = unread(query, table);
  for (const [name, text] of state.filters) if (!applies(/** @type {Column} */ (table.byName.get(name)), text)) state.filters.delete(name);
  const column = (/** @type {string} */ name) => /** @type {Column} */ (table.byName.get(name));
  const said = h("p", { class: "soft", role: "status" });
  const trouble = h("div");
  const body = h("div", { class: "alltable" });
  const pager = h("p", { class: "pager small", hidden: true });
  const filters = h("div", { class: "filters" });
  /** @type {Uint32Array} the cells that pass the filters, in order */
  let found = new Uint32Array();
  /** @type {Rows} */
  let rows;
  let turn = 0;

  // Rows

  /** The cell of a row. @param {number} i */
  const at = (i) => found[state.page * MOST_ROWS + i];

  function build() {
    const chosen = state.columns.map(column);
    rows = new Rows({
      label: "All cells",
      kind: "cells all",
      heads: chosen.map((each) => ({ name: each.name, title: each.title, explain: explained(each), kind: `as-${each.form} of-${each.name}${NUMBERS.includes(each.form) ? " num" : ""}` })),
      row: (i) => {
        const { layer, cell } = axis.split(at(i));
        return { href: axis.href(layer, cell), class: table.here.get("dead")?.[at(i)] ? "dead" : null, cells: chosen.map((each) => shown(table, each, at(i))) };
      },
      order: (name) => {
        if (state.sort === name) state.down = !state.down;
        else Object.assign(state, { sort: name, down: NUMBERS.includes(column(name).form) });
        state.page = 0;
        rows.top();
        void arrange();
      },
      drawn: (begin, end) => void texts(begin, end),
      signal,
    });
    replace(body, rows.box);
  }

  /** Fetch the texts of the rows in view, and draw them again if some were missing. @param {number} begin @param {number} end */
  async function texts(begin, end) {
    const places = Array.from({ length: Math.max(0, end - begin) }, (_, i) => at(begin + i));
    const lacking = state.columns.map(column).filter((each) => each.form === "text" && places.some((place) => table.text(each, place) === undefined));
    if (!lacking.length) return;
    const shownRows = rows;
    try {
      await Promise.all(lacking.map((each) => table.texts(each, places)));
      if (!signal.aborted && shownRows === rows) rows.fill(lacking.map(({ name }) => name));
    } catch (error) {
      replace(trouble, failure(error));
    }
  }

  /** Filter and sort anew. */
  async function arrange() {
    if (signal.aborted) return;
    const mine = ++turn;
    history.replaceState(history.state, "", address(state, table));
    body.setAttribute("aria-busy", "true");
    try {
      const wanted = new Map([...state.filters].filter(([name, text]) => applies(column(name), text)));
      const needed = [...state.columns, ...(state.columns.includes("trigger") ? ["last_token"] : []), "dead"];
      await Promise.all(needed.map((name) => table.ready(column(name))));
      const passing = await table.select(wanted);
      const ordered = await table.order(passing, column(state.sort), state.down);
      if (mine !== turn || signal.aborted) return;
      found = ordered;
      replace(trouble);
      said.textContent =
        found.length === cellsShown() ? counted(cellsShown(), "cell") : `${whole(found.length)} of ${counted(cellsShown(), "cell")}`;
      state.page = Math.min(state.page, Math.max(0, Math.ceil(found.length / MOST_ROWS) - 1));
      turnPage();
    } catch (error) {
      if (mine === turn) replace(trouble, failure(error));
    } finally {
      if (mine === turn) body.removeAttribute("aria-busy");
    }
  }

  /** Show a page of the rows: there is more than one only if there are very many. */
  function turnPage() {
    const pages = Math.max(1, Math.ceil(found.length / MOST_ROWS));
    const first = state.page * MOST_ROWS;
    const count = Math.min(MOST_ROWS, found.length - first);
    pager.hidden = pages === 1;
    const step = (/** @type {number} */ by, /** @type {string} */ text) =>
      h("button", { type: "button", class: "quiet", disabled: state.page + by < 0 || state.page + by >= pages, onclick: () => { state.page += by; rows.top(); history.replaceState(history.state, "", address(state, table)); turnPage(); } }, text);
    replace(pager, step(-1, "←"), ` rows ${whole(first + 1)} to ${whole(first + count)} of ${whole(found.length)} `, step(1, "→"));
    rows.update(count, state.sort, state.down);
    drawSql();
  }

  // Filters

  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let waiting;
  /** @param {string} name @param {string} wanted */
  function filter(name, wanted) {
    if (wanted === "") state.filters.delete(name);
    else state.filters.set(name, wanted);
    state.page = 0;
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      rows.top();
      void arrange();
    }, PAUSE);
  }
  signal.addEventListener("abort", () => clearTimeout(waiting));

  const usable = table.columns.filter(({ missing, name }) => missing === null && name !== "address" && name !== "place");
  const add = h(
    "select",
    {
      id: "add-filter",
      onchange: () => {
        const name = add.value;
        add.value = "";
        if (filters.querySelector(`[data-filter="${name}"]`) === null) filters.append(control(column(name)));
        /** @type {HTMLElement | null} */ (filters.querySelector(`[data-filter="${name}"] :is(input, select)`))?.focus();
      },
    },
    h("option", { value: "" }, "choose a column"),
    Object.entries(SIDES).map(([side, title]) =>
      h("optgroup", { label: title }, usable.filter((each) => each.side === side).map((each) => h("option", { value: each.name }, each.title))),
    ),
  );

  /** A filter of one column. @param {Column} each */
  function control(each) {
    const wanted = state.filters.get(each.name) ?? "";
    const id = `filter-${each.name}`;
    const set = (/** @type {string} */ text) => filter(each.name, text);
    /** @type {Node[]} */
    let fields;
    if (NUMBERS.includes(each.form)) {
      const [low, high] = wanted.includes("..") ? wanted.split("..") : [wanted, wanted];
      const field = (/** @type {string} */ suffix, /** @type {string} */ value, /** @type {string} */ hint) =>
        h("input", { type: "text", inputmode: "decimal", id: `${id}${suffix}`, value, placeholder: hint, "aria-label": `${each.title}, ${hint}`, autocomplete: "off", oninput: () => changed() });
      const [from, to] = [field("", low, "at least"), field("-to", high, "at most")];
      const changed = () => {
        const [a, b] = [from, to].map(({ value }) => fraction(value));
        const text = a || b ? `${a}..${b}` : "";
        for (const [one, value] of /** @type {[HTMLInputElement, string][]} */ ([[from, a], [to, b]])) one.setAttribute("aria-invalid", String(Number.isNaN(Number(value))));
        set(text);
      };
      fields = [from, h("span", { class: "soft" }, "to"), to];
    } else if (each.form === "flag" || each.form === "level" || each.form === "labels") {
      const options = each.form === "flag" ? [["1", "yes"], ["0", "no"]] : each.names.map((name) => [name, name.replaceAll("_", " ")]);
      const select = h("select", { id, onchange: () => set(select.value) }, h("option", { value: "" }, "any"), options.map(([value, text]) => h("option", { value, selected: value === wanted }, text)));
      fields = [select];
    } else {
      const field = h("input", { type: "search", id, value: wanted, placeholder: "contains", title: "In quotes: is equal", autocomplete: "off", spellcheck: "false", oninput: () => set(field.value) });
      fields = [field];
    }
    const gone = h(
      "button",
      {
        type: "button",
        class: "plain",
        "aria-label": `Remove the filter of ${each.title}`,
        onclick: () => {
          row.remove();
          filter(each.name, "");
          add.focus();
        },
      },
      "×",
    );
    const row = h("span", { class: "filter", "data-filter": each.name }, h("label", { for: id, title: explained(each) }, each.title), fields, gone);
    return row;
  }
  for (const name of new Set(["layer", ...state.filters.keys()])) filters.append(control(column(name)));

  // Columns

  const choose = h(
    "details",
    { class: "choose" },
    h("summary", {}, "Columns"),
    Object.entries(SIDES).map(([side, title]) =>
      h(
        "fieldset",
        {},
        h("legend", {}, title),
        table.columns
          .filter((each) => each.side === side && each.name !== "address")
          .map((each) => {
            const box = h("input", {
              type: "checkbox",
              checked: state.columns.includes(each.name),
              disabled: each.missing !== null,
              onchange: () => {
                state.columns = table.columns.map(({ name }) => name).filter((name) => (name === each.name ? box.checked : state.columns.includes(name)));
                build();
                void arrange();
              },
            });
            return h("label", { class: "toggle", title: explained(each) }, box, each.title, each.missing !== null && h("span", { class: "soft" }, " (none)"));
          }),
      ),
    ),
    h(
      "dl",
      { class: "meaning" },
      table.columns.map((each) => h("div", {}, h("dt", {}, each.title, " ", h("code", {}, each.name)), h("dd", {}, explained(each)))),
    ),
  );

  const away = takeAway({ run, table, rows: () => found, state });
  const drawSql = away.draw;

  build();
  window.addEventListener(MARKED, () => void measures().then(arrange), { signal });
  await arrange();
  requestAnimationFrame(() => rows.reveal(state.sort));
  return {
    title: "Cells",
    body: h(
      "div",
      {},
      h("div", { class: "pagehead" }, h("h1", {}, "All cells ", h("span", { class: "of" }, `of ${counted(data.layersShown().length, "layer")}`))),
      h("div", { class: "controls" }, filters, h("label", { for: "add-filter" }, "Add a filter"), add, said),
      h("div", { class: "tools" }, choose, away.body),
      odd.length > 0 && h("p", { class: "missing", role: "alert" }, visible(`Of the address, this was left out: ${odd.join("; ")}.`)),
      trouble,
      body,
      pager,
    ),
  };
}

/** What a column means, and why it is empty if it is. @param {Column} each */
function explained(each) {
  return each.missing === null ? each.means : `${each.means}. ${each.missing}`;
}

/** `12%` as a share; other text as it is. @param {string} text */
function fraction(text) {
  const percentage = /^\s*([\d.]+)\s*%\s*$/.exec(text);
  return percentage ? String(Number(percentage[1]) / 100) : text.trim();
}

/** Whether a filter can be applied: numbers may be half typed. @param {Column} column @param {string} wanted */
function applies(column, wanted) {
  if (column.form === "text" || column.form.startsWith("token")) return true;
  return NUMBERS.includes(column.form) ? range(wanted) !== null : column.form === "flag" ? ["0", "1"].includes(wanted) : column.names.includes(wanted);
}

/**
 * A cell of the table.
 * @param {Measures} table
 * @param {Column} column
 * @param {number} place
 * @returns {Node | string}
 */
function shown(table, column, place) {
  if (column.name === "address") {
    const { layer, cell } = data.axis.split(place);
    return cellLink(layer, cell);
  }
  if (column.form === "tokens") return h("span", { class: "promotes" }, table.tokens(column, place).map((piece) => token(piece)));
  const value = table.value(column, place);
  if (column.name === "trigger") {
    const last = table.value(/** @type {Column} */ (table.byName.get("last_token")), place);
    const text = table.text(column, place);
    return text === undefined ? "…" : tail(text, typeof last === "string" ? last : null);
  }
  if (column.form === "text") return table.text(column, place) === undefined ? "…" : typeof value === "string" ? h("bdi", { title: visible(value) }, visible(value)) : "";
  if (column.name === "agreement") return agreement(typeof value === "number" ? value : null);
  if (value === null) return column.form === "token" || column.form === "level" ? "" : "–";
  switch (column.form) {
    case "flag":
      return value ? "yes" : "";
    case "token":
      return token(String(value));
    case "labels":
      return /** @type {string[]} */ (value).join(", ").replaceAll("_", " ");
    case "share":
      return percent(Number(value));
    case "count":
      return column.name === "orientation" ? (Number(value) < 0 ? "−" : "+") : whole(Number(value));
    case "number":
      return even(Number(value));
  }
  return String(value);
}
