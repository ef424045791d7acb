// @ts-check
/** A prompt, continued by the live model: without edits and with them, side by side, token by token. */
import * as data from "./data.js";
import { append, h, replace } from "./dom.js";
import { token } from "./parts.js";
import { counted, percent, visible } from "./text.js";

/**
 * @typedef {import("../types.js").GeneratedToken} Made
 * @typedef {import("../types.js").PromptPiece} Given
 * @typedef {"original" | "edited"} Side
 * @typedef {{prompt: Given[], original: Made[], edited: Made[]}} Continued
 */

const KEPT = "keyhole.generate";
/** How a text is continued; kept for the session. @type {{length: number, temperature: number, seed: number, chat: boolean}} */
const chosen = { length: 40, temperature: 0, seed: 0, chat: false, ...stored() };
/** The last continuation, and what was asked for: it is shown again if the same is asked. */
let last = { asked: "", made: /** @type {Continued} */ ({ prompt: [], original: [], edited: [] }), said: "" };

const ENDS = {
  token: "ends with an end token",
  length: "ends at the length asked for",
  context: "ends because the model’s context is full",
};

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
  } catch {
    return {};
  }
}

function remember() {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(chosen));
  } catch {
    // this browser stores nothing: it is kept until the page is left
  }
}

/**
 * The section of the prompt page that continues its text.
 * @param {{text: string, edits: data.Edit[]}} asked
 * @param {data.Run} run
 * @param {AbortSignal} signal
 */
export function generation(asked, run, signal) {
  if (!run.live) return null;
  const { text, edits } = asked;
  const said = h("p", { class: "soft small", role: "status" });
  const columns = h("div", { class: "continued" });
  /** @type {AbortController | null} */
  let running = null;

  /** @param {"length" | "temperature" | "seed"} name @param {string} label @param {import("./dom.js").Attributes} bounds @param {string} title */
  const field = (name, label, bounds, title) => {
    const input = h("input", {
      id: `generate-${name}`,
      type: "number",
      required: true,
      value: chosen[name],
      title,
      ...bounds,
      onchange: () => {
        if (!input.checkValidity()) return;
        chosen[name] = input.valueAsNumber;
        remember();
      },
    });
    return [h("label", { for: `generate-${name}`, title }, label), input];
  };
  const length = field("length", "Length", { min: 1, max: 500, step: 1 }, "at most this many new tokens, on each side");
  const temperature = field("temperature", "Temperature", { min: 0, max: 100, step: "any" }, "0: always the most probable token");
  const seed = field("seed", "Seed", { min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 }, "above temperature 0: the random numbers, the same for both sides");
  const turn = h("input", {
    type: "checkbox",
    checked: chosen.chat,
    onchange: () => {
      chosen.chat = turn.checked;
      remember();
    },
  });
  const chat = h(
    "label",
    { class: "toggle", hidden: true, title: "the text becomes a user’s turn, by the tokenizer’s chat template" },
    turn,
    "as a chat turn",
  );
  const start = h("button", { type: "submit" }, "Generate");
  const stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Stop");
  const section = h(
    "section",
    { class: "generation", "aria-labelledby": "generation-title" },
    h("h2", { id: "generation-title" }, "Continuation"),
    h(
      "p",
      { class: "soft small" },
      edits.length
        ? "The text, continued without and with the edits. Edits at chosen tokens act there; edits everywhere act on the new tokens too."
        : "The text, continued by the model. With edits, it is continued without and with them, side by side.",
    ),
    h("form", { class: "controls", onsubmit: begin }, length, temperature, seed, chat, start, stop, said),
    columns,
  );
  void data.status().then(
    ({ chat: has, limits }) => {
      chat.hidden = !has;
      /** @type {HTMLInputElement} */ (length[1]).max = String(limits.generated_tokens);
    },
    () => {}, // the request that is asked for says what is wrong
  );

  /** @param {Event} event */
  function begin(event) {
    event.preventDefault();
    void make();
  }

  async function make() {
    running?.abort();
    const mine = (running = new AbortController());
    const [wanted, name] = [{ text, edits, ...chosen, chat: chosen.chat && !chat.hidden }, key()];
    /** @type {Continued} */
    const made = { prompt: [], original: [], edited: [] };
    const shown = draw(made);
    const quit = () => mine.abort();
    signal.addEventListener("abort", quit);
    start.hidden = true;
    stop.hidden = false;
    stop.focus();
    said.textContent = "Generating …";
    let end = "";
    try {
      for await (const line of data.stream("api/generate", wanted, mine.signal)) {
        if (!section.isConnected) mine.abort(); // the page shows another answer by now
        shown(/** @type {import("../types.js").GenerateLine} */ (line));
      }
      end = mine.signal.aborted ? `Stopped. ${compared(made)}` : compared(made);
    } catch (error) {
      end = /** @type {Error} */ (error).message;
    } finally {
      signal.removeEventListener("abort", quit);
      if (running === mine) {
        const focused = document.activeElement === stop;
        start.hidden = false;
        stop.hidden = true;
        if (focused) start.focus();
        said.textContent = end;
        last = { asked: name, made, said: end };
      }
    }
  }

  function key() {
    return JSON.stringify([text, edits, chosen]);
  }

  /**
   * Empty columns, and what adds a line of the answer to them.
   * @param {Continued} made
   */
  function draw(made) {
    const without = column("Without edits", "");
    const withEdits = edits.length ? column("With edits", "withedits") : null;
    replace(columns, without.box, withEdits?.box);
    /** @param {import("../types.js").GenerateLine} line */
    return ({ prompt, token: found }) => {
      if (prompt) {
        made.prompt = prompt;
        for (const each of [without, withEdits]) each?.given(prompt);
      } else if (found) {
        made[found.side].push(found);
        const i = made[found.side].length - 1;
        (found.side === "edited" ? withEdits : without)?.add(found);
        if (!withEdits || !differs(made, i)) return;
        without.mark(i, made.edited[i]);
        withEdits.mark(i, made.original[i]);
      }
    };
  }

  if (last.asked === key()) {
    // after a look at a cell, and back
    const shown = draw({ prompt: [], original: [], edited: [] });
    shown({ prompt: last.made.prompt });
    const { original, edited } = last.made;
    for (let i = 0; i < Math.max(original.length, edited.length); i++)
      for (const found of [original[i], edited[i]]) if (found) shown({ token: found });
    said.textContent = last.said;
  }
  return section;
}

/**
 * One side: the text, then its new tokens.
 * @param {string} title
 * @param {string} kind
 */
function column(title, kind) {
  const tokens = h("p", { class: "written-tokens" });
  const ended = h("p", { class: "soft small" });
  /** @type {HTMLElement[]} */
  const made = [];
  return {
    box: h("div", { class: kind || null }, h("h3", {}, title), tokens, ended),
    /** @param {Given[]} prompt */
    given(prompt) {
      for (const [piece, special] of prompt)
        append(tokens, special ? token(piece, "special") : h("span", { class: "given" }, visible(piece)));
    },
    /** @param {Made} found */
    add(found) {
      const shown = token(found.piece, found.special ? "special" : "");
      shown.title = `token ${made.length}, p ${percent(found.p)}${found.special ? ", a special token" : ""}`;
      made.push(shown);
      append(tokens, shown, found.piece.includes("\n") && h("br"));
      if (found.end) ended.textContent = `${counted(made.length, "token")}; ${ENDS[found.end]}.`;
    },
    /** @param {number} i @param {Made | undefined} other */
    mark(i, other) {
      made[i]?.classList.add("differs");
      if (made[i]) made[i].title += other ? `; on the other side: ${visible(other.piece)}` : "; the other side has ended";
    },
  };
}

/**
 * Whether the sides differ at a token: it is another one, or one side has ended before it.
 * @param {Continued} made
 * @param {number} i
 */
function differs({ original, edited }, i) {
  if (original[i] && edited[i]) return original[i].piece !== edited[i].piece;
  const shorter = original[i] ? edited : original;
  return Boolean(shorter.at(-1)?.end);
}

/** What differs between the sides, in words. @param {Continued} made */
function compared(made) {
  if (!made.edited.length) return "";
  const count = Math.max(made.original.length, made.edited.length);
  const differing = Array.from({ length: count }, (_, i) => differs(made, i));
  const first = differing.indexOf(true);
  if (first < 0) return `Both sides are the same (${counted(count, "token")}).`;
  const same = first ? `The first ${counted(first, "token")} ${first === 1 ? "is" : "are"} the same; of` : "Of";
  return `${same} the ${first ? "rest" : "tokens"}, ${differing.filter(Boolean).length} of ${count - first} differ (underlined twice).`;
}
