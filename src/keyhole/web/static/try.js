// @ts-check
/** Try this key: a text of the reader's own, every token shaded by the cell's coefficient, while it is typed. */
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { forget, keep, recall } from "./memory.js";
import { failure } from "./parts.js";
import { counted, number, percent, visible } from "./text.js";

/** Milliseconds without a keystroke after which the text is read. */
const PAUSE = 250;
const KEPT = "keyhole.try";

/**
 * The text is kept in this browser, so the next cell is tried on it too. At most one request is under way: what is typed meanwhile
 * is read after it, and only the newest text.
 * @param {data.Cell} cell
 * @param {data.Run} run
 * @param {URLSearchParams} query `try`: a text to begin with
 * @param {AbortSignal} signal
 */
export function trial(cell, run, query, signal) {
  if (!run.live)
    return h(
      "p",
      { class: "trial soft small" },
      "To try this key on a text of your own, open the run with its model: ",
      h("code", {}, "keyhole serve RUN"),
      ".",
    );
  const said = h("span", { class: "soft small", role: "status" });
  const shown = h("div", { class: "tried" });
  const wrong = h("div");
  const field = h("textarea", {
    id: "try",
    rows: 1,
    spellcheck: "false",
    placeholder: "a text of your own: every token is shaded by this cell’s coefficient",
    oninput: () => {
      if (field.value) keep(KEPT, field.value);
      else forget(KEPT);
      clearTimeout(timer);
      timer = window.setTimeout(ask, PAUSE);
    },
    onfocus: () => ask(),
  });
  field.value = query.get("try") ?? recall(KEPT) ?? "";
  const off = h("a", { class: "small", hidden: true }, "switch it off in a prompt");
  let timer = 0;
  let busy = false;
  /** the text that is shaded, or that could not be */
  let answered = "";

  async function ask() {
    clearTimeout(timer);
    if (busy || signal.aborted || field.value === answered) return;
    const text = field.value;
    if (!text) {
      answered = "";
      off.hidden = true;
      replace(said);
      replace(shown);
      replace(wrong);
      return;
    }
    busy = true;
    shown.setAttribute("aria-busy", "true");
    try {
      const { loaded } = await data.status();
      if (!loaded) said.textContent = "Loading the model: the first time takes a while …";
      const found = /** @type {data.Tried} */ (
        await data.post("api/try", { text, layer: cell.layer, cell: cell.cell })
      );
      if (signal.aborted) return;
      replace(wrong);
      replace(shown, shading(found, cell, said));
      said.textContent = strongest(found, cell);
      off.href = `#/prompt?q=${encodeURIComponent(text)}&edits=${cell.address}*0`;
      off.hidden = false;
    } catch (error) {
      if (signal.aborted) return;
      said.textContent = "";
      off.hidden = true;
      replace(shown);
      replace(wrong, failure(error));
    } finally {
      busy = false;
      answered = text;
      shown.removeAttribute("aria-busy");
    }
    if (field.value !== text) void ask();
  }

  if (query.has("try")) void ask();
  else if (field.value)
    data.status().then(
      ({ loaded }) => (loaded ? ask() : undefined),
      () => undefined, // the page says elsewhere that the server is gone; the text stays
    );
  return h(
    "div",
    { class: "trial" },
    h("div", { class: "asked" }, h("label", { for: "try" }, "Try this key"), field),
    wrong,
    shown,
    h("div", { class: "controls" }, said, off),
  );
}

/** The largest coefficient of the text, in words. @param {data.Tried} found @param {data.Cell} cell */
function strongest({ tokens, coefficients }, cell) {
  const largest = Math.max(...coefficients.map((m) => m ?? 0));
  const read = `${counted(tokens.length, "token")} read.`;
  if (largest <= 0) return `${read} None of them makes the key fire.`;
  const most = coefficients.indexOf(largest);
  return `${read} The strongest: ${described(tokens[most], largest, cell)}`;
}

/** @param {string} piece @param {number | null} m @param {data.Cell} cell */
function described(piece, m, cell) {
  const most = cell.stats.max ?? 0;
  const share = most > 0 ? `, ${percent(Math.abs(m ?? 0) / most)} of the largest in the corpus` : "";
  return `“${visible(piece)}”, m = ${number(m)}${share}.`;
}

/**
 * The tokens of the text, shaded. The keyboard reaches them by one stop of the tab key; the arrows go from one to the next.
 * @param {data.Tried} found
 * @param {data.Cell} cell
 * @param {HTMLElement} said where the coefficient of the token that the reader points at is said
 */
function shading({ tokens, coefficients }, cell, said) {
  const { max, min } = cell.stats;
  const largest = Math.max(Math.abs(max ?? 0), Math.abs(min ?? 0), 1e-9);
  const items = tokens.map((piece, i) => {
    const m = coefficients[i] ?? 0;
    const span = h(
      "span",
      {
        class: m < 0 ? "cold" : "warm",
        tabindex: i ? "-1" : "0",
        title: `m = ${number(coefficients[i])}`,
        onfocus: () => tell(i),
        onmouseenter: () => tell(i),
      },
      visible(piece),
    );
    span.style.setProperty("--s", `${Math.round(Math.min(1, Math.abs(m) / largest) * 100)}%`);
    return span;
  });
  /** @param {number} i */
  const tell = (i) => {
    said.textContent = `Token ${i + 1} of ${tokens.length}: ${described(tokens[i], coefficients[i], cell)}`;
  };
  const text = h(
    "bdi",
    {
      class: "line",
      role: "group",
      "aria-label": "The text, shaded by this key. The arrow keys go from token to token.",
      onkeydown: /** @param {KeyboardEvent} event */ (event) => {
        const at = items.indexOf(/** @type {HTMLSpanElement} */ (document.activeElement));
        const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: items.length - 1 }[event.key];
        if (at < 0 || to === undefined) return;
        event.preventDefault(); // elsewhere the arrows go to the next cell
        if (!items[to]) return;
        items[at].tabIndex = -1;
        items[to].tabIndex = 0;
        items[to].focus();
      },
    },
    items,
  );
  return h("p", { class: "triedtext" }, text);
}
