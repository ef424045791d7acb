// @ts-check
/** What the table shows, as a file: CSV and JSON are made here, Parquet by the server. The same as SQL, for `keyhole sql`. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { copy, download } from "./files.js";
import { range } from "./measures.js";
import { failure } from "./parts.js";

/**
 * @typedef {import("./measures.js").Measures} Measures
 * @typedef {import("./measures.js").Column} Column
 * @typedef {import("./table.js").State} State
 */

/** A spreadsheet takes a text that begins so for a formula, or, with the apostrophe, for the sign of a text. */
const FORMULA = /^[=+\-@\t\r']/;
const PARQUET = "application/vnd.apache.parquet";

/**
 * @param {{run: data.Run, table: Measures, rows: () => Uint32Array, state: State}} options rows: the places shown, in order
 * @returns {{body: HTMLElement, draw: () => void}} draw: after the rows have changed
 */
export function takeAway({ run, table, rows, state }) {
  const columns = () => state.columns.map((name) => /** @type {Column} */ (table.byName.get(name)));
  const said = h("span", { class: "soft small", role: "status" });
  const sql = h("code", { class: "sql" });

  /** @param {string} text @param {() => Promise<void>} make */
  const button = (text, make) => {
    const made = h(
      "button",
      {
        type: "button",
        class: "quiet",
        onclick: async () => {
          made.disabled = true;
          replace(said);
          try {
            await make();
          } catch (error) {
            replace(said, failure(error));
          } finally {
            made.disabled = false;
          }
        },
      },
      text,
    );
    return made;
  };

  /** Fetch what the rows need, before they are written. */
  async function complete() {
    const [places, chosen] = [rows(), columns()];
    for (const column of chosen) {
      await table.ready(column);
      await table.texts(column, places);
    }
    return { places, chosen };
  }

  const csv = button("CSV", async () => {
    const { places, chosen } = await complete();
    const lines = [chosen.map(({ name }) => name).join(",") + "\n"];
    for (const place of places) lines.push(chosen.map((column) => field(table.value(column, place))).join(",") + "\n");
    download("cells.csv", new Blob(lines), "text/csv");
  });
  const json = button("JSON", async () => {
    const { places, chosen } = await complete();
    const lines = Array.from(places, (place) => JSON.stringify(Object.fromEntries(chosen.map((column) => [column.name, precise(table.value(column, place))]))));
    download("cells.json", new Blob([`[${lines.join(",\n")}]\n`]));
  });
  const parquet = button("Parquet", async () => {
    const filters = Object.fromEntries(state.filters);
    const asked = { columns: state.columns, filters, sort: state.sort, descending: state.down };
    download("cells.parquet", await data.postForFile("api/cells.parquet", asked), PARQUET);
  });

  const draw = () => {
    sql.textContent = statement(columns(), state, table);
  };
  const sharing = h("div", { class: "sharing" });
  const copying = h(
    "button",
    {
      type: "button",
      class: "quiet",
      onclick: () => void copy(sql.textContent ?? "", said, sharing),
    },
    "Copy the SQL",
  );
  const body = h(
    "details",
    { class: "takeaway" },
    h("summary", {}, "Download"),
    h("p", { class: "controls" }, "The cells and columns shown: ", csv, json, run.live && parquet, copying, said),
    sharing,
    h(
      "p",
      { class: "small" },
      run.live
        ? "The same with SQL: keyhole sql RUN QUERY, with this query in quotes: "
        : "This page is an export, which has no server to write Parquet. With the run: keyhole sql RUN --parquet cells.parquet QUERY, with this query in quotes: ",
      sql,
    ),
  );
  return { body, draw };
}

/** A value of a CSV file. Text is quoted; what a spreadsheet would run as a formula has an apostrophe before it. @param {ReturnType<Measures["value"]>} value */
function field(value) {
  if (value === null) return "";
  if (typeof value === "number") return String(precise(value));
  if (typeof value === "boolean") return value ? "True" : "False";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return `"${(FORMULA.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
}

/** A number of single precision in the fewest digits that are exact for it. @param {ReturnType<Measures["value"]>} value */
function precise(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return value;
  for (let digits = 6; digits < 9; digits++) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === value) return short;
  }
  return value;
}

/** The rows shown as SQL. @param {Column[]} chosen @param {State} state @param {Measures} table */
function statement(chosen, state, table) {
  const literal = (/** @type {string} */ text) => `'${text.replaceAll("'", "''")}'`;
  const says = (/** @type {string} */ name, /** @type {string} */ wanted) =>
    wanted.length > 2 && wanted.startsWith('"') && wanted.endsWith('"')
      ? `${name} = ${literal(wanted.slice(1, -1))}`
      : `contains(lower(${name}), lower(${literal(wanted)}))`;
  /** @type {string[]} */
  const conditions = [];
  for (const [name, wanted] of state.filters) {
    const form = table.byName.get(name)?.form;
    const bounds = range(wanted);
    if (form === "flag") conditions.push(wanted === "1" ? name : `not ${name}`);
    else if (form === "level") conditions.push(`${name} = ${literal(wanted)}`);
    else if (form === "labels") conditions.push(`list_contains(${name}, ${literal(wanted)})`);
    else if (form === "tokens") conditions.push(`len([t for t in ${name} if ${says("t", wanted)}]) > 0`);
    else if (form === "token" || form === "text") conditions.push(says(name, wanted));
    else if (bounds) {
      if (bounds[0] > -Infinity) conditions.push(`${name} >= ${bounds[0]}`);
      if (bounds[1] < Infinity) conditions.push(`${name} <= ${bounds[1]}`);
    }
  }
  const where = conditions.length ? ` where ${conditions.join(" and ")}` : "";
  const form = table.byName.get(state.sort)?.form;
  const sort =
    state.sort === "address"
      ? "place"
      : form === "labels"
        ? `len(${state.sort})`
        : form === "token" || form === "text"
          ? `lower(trim(${state.sort}))`
          : form === "tokens"
            ? `lower(trim(${state.sort}[1]))`
            : state.sort;
  return `select ${chosen.map(({ name }) => name).join(", ")} from cells${where} order by ${sort} ${state.down ? "desc" : "asc"} nulls last, place`;
}
