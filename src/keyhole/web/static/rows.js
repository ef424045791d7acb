// @ts-check
/** A table of many rows: only those in view are in the page, so that thousands scroll smoothly. */
import { h, replace } from "./dom.js";
import { bar } from "./parts.js";
import { blank, percent, visible } from "./text.js";

const ROW = 40;
const SPARE = 8;
/** Rows of a table, at most: a browser cannot make an element much higher. */
export const MOST_ROWS = 250_000;

/**
 * @typedef {{name: string, title: string, explain: string, kind: string}} Head a column; kind: its classes, `num` if it holds numbers
 * @typedef {{href: string, class?: string | null, cells: (Node | string)[]}} Row
 */

export class Rows {
  /**
   * @param {{label: string, kind: string, heads: Head[], row: (i: number) => Row, order: (name: string) => void, drawn?: (begin: number, end: number) => void, signal: AbortSignal}} options
   *   row: makes the row number i; order: a heading was pressed; drawn: these rows are now in view
   */
  constructor({ label, kind, heads, row, order, drawn, signal }) {
    this.count = 0;
    this.heads = heads;
    this.options = { row, drawn };
    this.titles = heads.map((head) =>
      h(
        "th",
        { scope: "col", class: head.kind, "aria-sort": "none" },
        h("button", { type: "button", title: head.explain, onclick: () => order(head.name) }, head.title),
      ),
    );
    this.body = h("tbody", { onkeydown: (/** @type {KeyboardEvent} */ event) => this.#key(event) });
    this.table = h(
      "table",
      { class: kind, "aria-label": label },
      h("thead", {}, h("tr", { "aria-rowindex": 1 }, this.titles)),
      this.body,
    );
    this.box = h("div", { class: "scroll cellbox", tabindex: 0, role: "region", "aria-label": "Table of cells, scrolls" }, this.table);
    this.seen = [-1, -1];
    this.box.addEventListener("scroll", () => requestAnimationFrame(() => this.draw()), { passive: true });
    const resized = new ResizeObserver(() => this.draw());
    resized.observe(this.box);
    signal.addEventListener("abort", () => resized.disconnect());
  }

  /** Show other rows. @param {number} count @param {string} sort the column they are in order of @param {boolean} down */
  update(count, sort, down) {
    this.count = count;
    this.titles.forEach((head, i) =>
      head.setAttribute("aria-sort", this.heads[i].name !== sort ? "none" : down ? "descending" : "ascending"),
    );
    this.table.setAttribute("aria-rowcount", String(count + 1));
    this.seen = [-1, -1];
    this.draw();
  }

  /** Scroll sideways to a column. @param {string} name */
  reveal(name) {
    const title = this.titles[this.heads.findIndex((head) => head.name === name)];
    if (title) this.box.scrollLeft = Math.max(this.box.scrollLeft, title.offsetLeft + title.offsetWidth - this.box.clientWidth);
  }

  top() {
    this.box.scrollTop = 0;
  }

  /** Fill in columns of the rows in view, because their content came. The rows stay, and with them a click that has begun. @param {string[]} names */
  fill(names) {
    const [begin] = this.seen;
    const rows = Array.from(this.body.querySelectorAll("tr:not(.space)"));
    const columns = this.heads.flatMap(({ name }, column) => (names.includes(name) ? [column] : []));
    rows.forEach((row, i) => {
      const { cells } = this.options.row(begin + i);
      for (const column of columns) replace(row.children[column], cells[column]);
    });
  }

  draw() {
    const { box, body } = this;
    const begin = Math.max(0, Math.floor(box.scrollTop / ROW) - SPARE);
    const end = Math.min(this.count, Math.ceil((box.scrollTop + (box.clientHeight || 800)) / ROW) + SPARE);
    if (begin === this.seen[0] && end === this.seen[1]) return;
    this.seen = [begin, end];
    const focused = body.contains(document.activeElement) ? document.activeElement?.getAttribute("href") : null;
    const rows = Array.from({ length: Math.max(0, end - begin) }, (_, i) => this.#row(begin + i));
    replace(body, this.#space(begin), rows, this.#space(this.count - end));
    this.options.drawn?.(begin, end);
    if (!focused) return;
    const again = Array.from(body.querySelectorAll("a")).find((link) => link.getAttribute("href") === focused);
    (again ?? box).focus({ preventScroll: true });
  }

  /** @param {number} many */
  #space(many) {
    if (many <= 0) return null;
    const filler = h("td");
    filler.style.height = `${many * ROW}px`;
    return h("tr", { class: "space", "aria-hidden": "true" }, filler);
  }

  /** @param {number} i */
  #row(i) {
    const { href, class: kind, cells } = this.options.row(i);
    const go = /** @param {MouseEvent} event */ (event) => {
      if (!(/** @type {Element} */ (event.target).closest("a")) && !getSelection()?.toString()) location.hash = href;
    };
    return h(
      "tr",
      { "aria-rowindex": i + 2, class: kind, onclick: go },
      cells.map((content, column) => h("td", { class: this.heads[column].kind }, content)),
    );
  }

  /** The arrows go from the link of a row to that of the next one. @param {KeyboardEvent} event */
  #key(event) {
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    const row = /** @type {Element} */ (event.target).closest("tr");
    if (!by || !row || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const next = (by > 0 ? row.nextElementSibling : row.previousElementSibling)?.querySelector("a");
    next?.focus({ preventScroll: true });
    next?.closest("tr")?.scrollIntoView({ block: "nearest" });
  }
}

/** The end of a trigger, its last token boxed. @param {string | null} whole @param {string | null} last */
export function tail(whole, last) {
  if (whole === null || last === null) return h("span", { class: "soft" }, "dead: never fires");
  const before = whole.endsWith(last) ? whole.slice(0, whole.length - last.length) : whole;
  const spaced = last.startsWith(" ") && last.trim() !== "";
  return h(
    "span",
    { class: "tail" },
    h("bdi", {}, h("span", {}, visible(before) + (spaced ? " " : ""))),
    h("bdi", {}, h("span", { class: "last" }, last.trim() ? visible(spaced ? last.slice(1) : last) : blank(last))),
  );
}

/** @param {number | null} share */
export function agreement(share) {
  return share
    ? h("span", { class: "agreement" }, bar(share, "say"), percent(share))
    : share === null
      ? "–"
      : h("span", { class: "soft" }, "0 %");
}
