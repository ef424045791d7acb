// @ts-check
/** A list of triggers: coefficient, bar, text; where each comes from, and its whole unit. */
import { h, replace } from "./dom.js";
import { bar, failure, line } from "./parts.js";
import { MOST, where, wholeUnit } from "./provenance.js";
import { counted, even, whole } from "./text.js";

/** @typedef {import("./data.js").Trigger} Trigger */
/** @typedef {import("./data.js").Said} Said */
/** @typedef {import("./data.js").Run} Run */

/** The event that asks the rows of a list for whole units; its detail is false if they are to be short again. */
const WHOLE = "keyhole-whole";

/**
 * Show the whole units of all triggers inside an element, or short texts again.
 * @param {Element} box
 * @param {boolean} long
 */
export function showWhole(box, long) {
  for (const row of box.querySelectorAll(".triggerlist > li:not([hidden])"))
    row.dispatchEvent(new CustomEvent(WHOLE, { detail: long }));
}

/**
 * @param {Trigger[]} triggers
 * @param {number} largest
 * @param {number} shown
 * @param {Said[] | undefined} said
 * @param {Run} [run] the run that the triggers are of; without it nothing more of their texts is asked for
 */
export function list(triggers, largest, shown, said, run) {
  const promoted = new Set(said?.map(([piece]) => piece));
  const items = triggers.map((trigger, i) => {
    const look = { largest, top: said?.[0]?.[0], promoted };
    const text = h("span", { class: "text" }, line(trigger, look));
    const row = h(
      "li",
      { hidden: i >= shown, class: trigger.c < 0 ? "below" : null },
      h(
        "span",
        { class: "coefficient" },
        h("span", { class: "num" }, even(trigger.c)),
        bar(Math.abs(trigger.c) / largest, trigger.c < 0 ? "chill" : "fire"),
      ),
      text,
      trigger.count > 1
        ? h("span", { class: "count", title: "how often this prefix occurs" }, `×${whole(trigger.count)}`)
        : null,
    );
    if (run) {
      row.append(where(trigger, row, run));
      lengthen(row, text, trigger, look, run);
    }
    return row;
  });
  const more = h(
    "button",
    {
      type: "button",
      class: "more",
      hidden: triggers.length <= shown,
      onclick: () => {
        items.forEach((item) => (item.hidden = false));
        const box = more.closest(".triggers");
        more.remove();
        if (box && !box.classList.contains("aligned")) showWhole(box, true);
      },
    },
    `all ${triggers.length}`,
  );
  return [h("ol", { class: "triggerlist" }, items), more];
}

/**
 * Let a row show its whole unit when it is asked to.
 * @param {HTMLElement} row
 * @param {HTMLElement} text where its line is
 * @param {Trigger} trigger
 * @param {Parameters<typeof line>[1]} look
 * @param {Run} run
 */
function lengthen(row, text, trigger, look, run) {
  let room = MOST;
  let long = false;
  const draw = async () => {
    try {
      const found = await wholeUnit(trigger, run, room);
      if (!long) return;
      const left = found.cut[0] + found.cut[1];
      const next = Math.min(found.cut[0], MOST) + Math.min(found.cut[1], MOST);
      const more = h(
        "button",
        { type: "button", class: "more", onclick: () => ((room += MOST), void draw()) },
        `${counted(next, "more token")} of ${whole(left)}`,
      );
      replace(text, line(found, look), left > 0 && run.passages && more);
    } catch (error) {
      replace(text, line(trigger, look), failure(error));
    }
  };
  row.addEventListener(WHOLE, (event) => {
    const wanted = /** @type {CustomEvent<boolean>} */ (event).detail;
    if (wanted === long) return;
    long = wanted;
    if (long) void draw();
    else replace(text, line(trigger, look));
  });
}
