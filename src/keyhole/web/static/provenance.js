// @ts-check
/** Where a trigger comes from: its document, its place in it, its whole unit and the units around it. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { boxed, failure } from "./parts.js";
import { counted, visible, whole } from "./text.js";

/** Units shown before and after a trigger's own at first, and more per press of a button. */
const AROUND = 2;
/** Tokens of a unit that are shown at most on each side of the trigger's last one, and more per press of a button. */
export const MOST = 400;

/** @typedef {data.Trigger} Trigger */
/** @typedef {{begin: number, end: number, document: number, first: number, units: number, beginning: string}} At a unit, by its tokens in the corpus */

/** @param {number} unit @returns {Promise<At>} */
async function find(unit) {
  const page = await data.documents(unit);
  const i = unit - page.first;
  const document = page.documents[i];
  const [first, units, beginning] = page.about[document];
  return { begin: page.starts[i], end: page.starts[i + 1], document, first, units, beginning };
}

/** The tokens of the corpus from one to another. @param {number} begin @param {number} end */
async function tokens(begin, end) {
  const found = await data.passages(begin, end);
  return found.flatMap(({ first, tokens }) => tokens.slice(Math.max(0, begin - first), end - first));
}

/** @param {string} text */
const note = (text) => h("p", { class: "soft small" }, text);

/**
 * The button of a trigger that opens what is known of its place, below it.
 * @param {Trigger} trigger
 * @param {HTMLElement} row
 * @param {data.Run} run
 */
export function where(trigger, row, run) {
  /** @type {HTMLElement | null} */
  let panel = null;
  const button = h(
    "button",
    {
      type: "button",
      class: "where",
      "aria-expanded": "false",
      "aria-label": "Where it is: its document, and the text around it",
      title: "Where it is: its document, and the text around it",
      onclick: () => {
        const opening = !panel;
        button.setAttribute("aria-expanded", String(opening));
        panel?.remove();
        panel = opening ? h("div", { class: "place" }, note("Loading …")) : null;
        if (!panel) return;
        row.append(panel);
        const place = panel;
        around(trigger, run).then(
          (found) => replace(place, ...found),
          (error) => replace(place, failure(error)),
        );
      },
    },
    "⋯",
  );
  return button;
}

/** @param {Trigger} trigger @param {data.Run} run */
async function around(trigger, run) {
  const at = await find(trigger.unit);
  const { sources } = run.corpus;
  const file = sources.length === 1 ? [" of ", h("bdi", {}, visible(sources[0]))] : [`, in one of ${sources.length} sources`];
  const head = h(
    "p",
    { class: "small" },
    h("b", {}, `Document ${whole(at.document)}`),
    ...file,
    at.beginning && [": “", h("bdi", {}, visible(at.beginning)), "”"],
    `. ${unitName(run)} ${whole(trigger.unit - at.first + 1)} of ${whole(at.units)} in it, token ${whole(trigger.position + 1)} of ${whole(at.end - at.begin)}.`,
  );
  if (!run.passages)
    return [
      head,
      h(
        "p",
        { class: "soft small" },
        "This export has no more text around triggers, because the corpus is large: ",
        h("code", {}, "keyhole serve RUN"),
        " shows it.",
      ),
    ];
  const text = h("div", { class: "passage" });
  const last = at.first + at.units - 1;
  let [from, to] = [Math.max(at.first, trigger.unit - AROUND), Math.min(last, trigger.unit + AROUND)];
  let room = MOST;
  const draw = async () => {
    const parts = await Promise.all(
      Array.from({ length: to - from + 1 }, async (_, i) => {
        const unit = from + i;
        const own = unit === trigger.unit;
        const { begin, end } = own ? at : await find(unit);
        const centre = own ? begin + trigger.position : unit < trigger.unit ? end - 1 : begin;
        const [a, b] = [Math.max(begin, centre - room), Math.min(end, centre + room + 1)];
        const pieces = await tokens(a, b);
        const left = begin < a ? `… ` : "";
        const right = b < end ? " …" : "";
        return { own, cut: a - begin + (end - b), body: [left, ...(own ? boxed(pieces, centre - a) : [visible(pieces.join(""))]), right] };
      }),
    );
    const cut = parts.reduce((sum, part) => sum + part.cut, 0);
    const more = (/** @type {string} */ label, /** @type {() => void} */ change) =>
      h("button", { type: "button", class: "more", onclick: () => (change(), draw().catch((error) => replace(text, failure(error)))) }, label);
    const [before, after] = [from - at.first, last - to];
    replace(
      text,
      before > 0 && more(`${Math.min(before, 2 * AROUND)} earlier of ${whole(before)}`, () => (from = Math.max(at.first, from - 2 * AROUND))),
      h(
        "p",
        {},
        parts.map(({ own, body }) => h("bdi", { class: own ? "own" : "soft" }, ...body, " ")),
      ),
      cut > 0 && more(`${counted(Math.min(cut, 2 * MOST), "more token")} of ${whole(cut)}`, () => (room += MOST)),
      after > 0 && more(`${Math.min(after, 2 * AROUND)} later of ${whole(after)}`, () => (to = Math.min(last, to + 2 * AROUND))),
    );
  };
  await draw();
  return [head, text];
}

/** @param {data.Run} run */
const unitName = (run) => run.config.unit[0].toUpperCase() + run.config.unit.slice(1);

/**
 * A trigger with its whole unit: `MOST` tokens on each side, as far as the unit goes. Its shades stay where they are known.
 * @param {Trigger} trigger
 * @param {data.Run} run
 * @param {number} [room] tokens on each side
 * @returns {Promise<Trigger>}
 */
export async function wholeUnit(trigger, run, room = MOST) {
  if (!run.passages || (trigger.cut[0] === 0 && trigger.cut[1] === 0)) return trigger;
  const { begin, end } = await find(trigger.unit);
  const from = Math.max(0, trigger.position - room);
  const to = Math.min(end - begin, trigger.position + room + 1);
  const pieces = await tokens(begin + from, begin + to);
  const shift = trigger.cut[0] - from; // where the tokens that were shown begin among these
  const shade = trigger.shade && pieces.map((_, i) => trigger.shade?.[i - shift] ?? 0);
  return { ...trigger, tokens: pieces, at: trigger.position - from, cut: [from, end - begin - to], shade };
}
