// @ts-check
/**
 * A prompt in the address of the page: `#/prompt?q=TEXT&at=4&token=%20Paris&edits=L3.17*0@5,L28.56*-2`.
 *
 * An edit is a cell, its scale after `*` (without it: 0) and its positions after `@` (without them: everywhere): numbers and ranges,
 * `@2;5-7`. `~0.5~TOKEN` at its end moves the value towards a token, percent-encoded once more than the rest; `~` alone says that the
 * value is replaced, by numbers that this browser keeps for the session. A piece that cannot be read is reported, and the rest holds.
 */
import { parse } from "./cells.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { added, asked } from "./edits.js";
import { copy } from "./files.js";

/** Positions that one edit may name. */
const MOST = 512;

/**
 * The address of what is asked. The position is left out if it is the last one.
 * @param {import("./edits.js").Asked} of
 * @param {number} last the text's last position
 */
export function address(of, last) {
  const { text, position, token, edits } = of;
  /** Spaces as such, and what else an address may hold as it is: it can be read. @param {string} value */
  const plain = (value) => encodeURIComponent(value).replace(/%(20|2C|3A|3B|40|2F)/g, (c) => (c === "%20" ? "+" : decodeURIComponent(c)));
  const parts = [`q=${plain(text)}`];
  if (position !== null && position !== last) parts.push(`at=${position}`);
  if (token !== null) parts.push(`token=${plain(token)}`);
  if (edits.length) parts.push(`edits=${edits.map(written).join(",")}`);
  return `#/prompt?${parts.join("&")}`;
}

/** An edit as the address has it. @param {data.Edit} edit */
export function written({ layer, cell, scale, positions, value, towards, by }) {
  const moved = towards === undefined ? (value ? "~" : "") : `~${by}~${encodeURIComponent(encodeURIComponent(towards))}`;
  return `${data.axis.address(layer, cell)}*${scale}${positions ? `@${ranges(positions)}` : ""}${moved}`;
}

/** `2;5-7` @param {number[]} positions */
function ranges(positions) {
  /** @type {[number, number][]} */
  const found = [];
  for (const position of [...positions].sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && last[1] === position - 1) last[1] = position;
    else found.push([position, position]);
  }
  return found.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(";");
}

/**
 * What an address asks for; null if it names nothing. What cannot be read is in `rejected`.
 * @param {URLSearchParams} query
 * @returns {Partial<import("./edits.js").Asked> | null}
 */
export function read(query) {
  if (!["q", "at", "token", "edits"].some((name) => query.has(name))) return null;
  /** @type {import("./edits.js").Rejected[]} */
  const rejected = [];
  /** @type {data.Edit[]} */
  let edits = [];
  for (const piece of (query.get("edits") ?? "").split(",").filter((piece) => piece.trim())) {
    const found = edit(piece);
    if (typeof found === "string") rejected.push({ text: piece, message: found });
    else if (edits.some((each) => clash(each, found)))
      rejected.push({ text: piece, message: `${data.axis.address(found.layer, found.cell)} is edited twice at a token. The first edit holds.` });
    else edits = added(edits, found);
  }
  const at = query.get("at");
  const position = at !== null && /^\d{1,6}$/.test(at.trim()) ? Number(at) : null;
  if (at !== null && position === null)
    rejected.push({ text: `at=${at}`, message: "A position is a whole number, from 0. The last token is read." });
  return { text: query.get("q") ?? asked.text, position, token: query.get("token"), edits, rejected };
}

/** Whether two edits act on the same cell at the same token. @param {data.Edit} one @param {data.Edit} other */
function clash(one, other) {
  const { positions } = other;
  if (one.layer !== other.layer || one.cell !== other.cell) return false;
  return one.positions === null || positions === null || one.positions.some((position) => positions.includes(position));
}

/** The edit that a piece of an address stands for, or why it stands for none. @param {string} piece @returns {data.Edit | string} */
function edit(piece) {
  const [plain, by, ...rest] = piece.split("~"); // a token may have more of them
  const towards = rest.length ? rest.join("~") : undefined;
  const [, name, scale = "0", where] = /^([^*@]*)(?:\*([^@]*))?(?:@(.*))?$/s.exec(plain) ?? [];
  const cell = name === undefined ? null : parse(name);
  const at = data.axis.locate(cell);
  if (!cell || cell.cell === null) return "An edit is written L3.17*0: layer 3, cell 17, switched off.";
  if (!at) return data.axis.missing(cell);
  const factor = scale.trim() === "" ? NaN : Number(scale);
  if (!Number.isFinite(factor)) return `The scale is a number; “${scale}” is none. 0 switches the cell off.`;
  if (by !== undefined) return changed({ ...at, scale: factor, positions: null }, by, towards);
  if (where === undefined) return { ...at, scale: factor, positions: null };
  const positions = new Set();
  for (const range of where.split(";")) {
    const [, from, to = from] = /^\s*(\d{1,6})(?:-(\d{1,6}))?\s*$/.exec(range) ?? [];
    if (from === undefined || Number(to) < Number(from)) return `Positions are written @2;5-7; “${where}” is not.`;
    if (Number(to) - Number(from) >= MOST) return `“${range}” is more than ${MOST} positions.`;
    for (let position = Number(from); position <= Number(to); position++) positions.add(position);
  }
  return { ...at, scale: factor, positions: [...positions].sort((a, b) => a - b) };
}

/**
 * An edit that changes the value too, or why it cannot be read.
 * @param {data.Edit} edit
 * @param {string} by
 * @param {string | undefined} towards
 * @returns {data.Edit | string}
 */
function changed(edit, by, towards) {
  const name = data.axis.address(edit.layer, edit.cell);
  if (towards === undefined) {
    const kept = asked.edits.find((each) => each.layer === edit.layer && each.cell === edit.cell)?.value;
    return kept ? { ...edit, value: kept } : `The new value of ${name} is in a file of edits and not in the link: load that file.`;
  }
  const far = by.trim() === "" ? NaN : Number(by);
  if (!Number.isFinite(far)) return `A value is moved by a number; “${by}” is none.`;
  try {
    return { ...edit, towards: decodeURIComponent(towards), by: far };
  } catch {
    return `“${towards}” is no token as an address has it.`;
  }
}

/** Buttons that copy the prompt: as a link, as a program. */
export function sharing() {
  const said = h("span", { class: "soft", role: "status" });
  const box = h("div", { class: "controls sharing" });
  /** @param {string} what @param {() => string | Promise<string>} make */
  const button = (what, make) =>
    h(
      "button",
      {
        type: "button",
        class: "quiet",
        "data-at": what,
        onclick: async () => {
          try {
            await copy(await make(), said, box);
          } catch (error) {
            said.textContent = /** @type {Error} */ (error).message;
          }
        },
      },
      what,
    );
  replace(
    box,
    // without a token of the server: it is a secret
    button("Copy link", () => location.origin + location.pathname + location.hash),
    button("Copy as Python", async () => {
      const { text, position, token, edits } = asked;
      return (await data.post("api/prompt/python", { text, position, token, edits })).code;
    }),
    said,
  );
  return box;
}
