// @ts-check
/** A prompt, read by the live model: what each layer predicts, which cells contribute, and what changes if they are switched off. */
import { byLayer } from "./bylayer.js";
import { switched } from "./contribution.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { editList } from "./editlist.js";
import { added, asked, remember, sortOut } from "./edits.js";
import { effectBar } from "./effectbar.js";
import { generation } from "./generate.js";
import { heatMap } from "./heat.js";
import { failure, saidList, token } from "./parts.js";
import { address, read, sharing } from "./promptlink.js";
import { rankedList } from "./ranked.js";
import { number, percent } from "./text.js";

const EXAMPLES = [
  "The capital of France is",
  "We hold these truths to be self-evident, that all men are created",
  "Do unto others as you would have them do unto",
];
/** Upper bound on the answers that are kept, so that going back needs no model. */
const KEPT = 12;
/** @type {Map<string, data.Prompt>} */
const answers = new Map();

/** What identifies an answer. */
const key = () => JSON.stringify([asked.text, asked.position, asked.token, asked.edits]);

/** @param {import("./app.js").Place} place */
export async function render({ run, query, signal, moved }) {
  if (!run.live) return { title: "Prompt", body: absent() };
  Object.assign(asked, read(query) ?? {});
  sortOut();
  const said = h("p", { class: "soft", role: "status" });
  const notice = h("div", { class: "notice" });
  const answer = h("div", { class: "answer" });
  const bar = effectBar(again);
  const heat = heatMap(again, signal);
  const field = h("textarea", {
    id: "prompt",
    rows: 3,
    spellcheck: "false",
    placeholder: "The capital of France is",
    onkeydown: /** @param {KeyboardEvent} event */ (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
    },
  });
  field.value = asked.text;
  const button = h("button", { type: "submit" }, "Read");
  let turn = 0;
  let shown = "";
  /** @type {{key: string, node: Node | null}} */
  let continued = { key: "", node: null };

  /** @param {{first?: boolean, then?: string}} [options] first: the page was just opened; then: the element to go to */
  async function ask({ first = false, then = "" } = {}) {
    const mine = ++turn;
    replace(notice);
    rest();
    if (!asked.text) return show(null, then);
    const known = answers.get(key());
    if (known) return finish(known, first, then);
    button.disabled = true;
    answer.setAttribute("aria-busy", "true");
    bar.update(null);
    try {
      const { loaded } = await data.status();
      if (mine !== turn) return;
      said.textContent = loaded ? "Reading …" : "Loading the model: the first time takes a while …";
      const found = await reading();
      if (mine === turn && !signal.aborted) finish(found, first, then);
    } catch (error) {
      if (mine !== turn || signal.aborted) return;
      fail(error);
    } finally {
      if (mine === turn) rest();
    }
  }

  /** Nothing is being read. */
  function rest() {
    said.textContent = "";
    button.disabled = false;
    answer.removeAttribute("aria-busy");
  }

  /** What the model says. A position or a token that the text or the model does not have is said, and left out. @returns {Promise<data.Prompt>} */
  async function reading() {
    const { text, position, token, edits } = asked;
    try {
      return await data.post("api/prompt", { text, position, token, edits });
    } catch (error) {
      const wrong = error instanceof data.Failure && error.code === "wrong_value";
      if (!wrong || (position === null && token === null)) throw error;
      // the position may be right, and the token wrong
      const kept = position !== null && token !== null && (await data.post("api/prompt", { text, position, token: null, edits }).catch(() => null));
      const found = kept || (await data.post("api/prompt", { text, position: null, token: null, edits }));
      const instead = kept ? "The most probable token is looked at instead." : "The last token is read instead.";
      replace(notice, failure(error), h("p", { class: "soft small" }, instead));
      Object.assign(asked, { position: kept ? position : null, token: null });
      return found;
    }
  }

  /** @param {data.Prompt} found @param {boolean} first @param {string} then */
  function finish(found, first, then) {
    answers.set(key(), found);
    asked.position = found.position;
    answers.set(key(), found);
    while (answers.size > KEPT) answers.delete(/** @type {string} */ (answers.keys().next().value));
    remember();
    moved(address(asked, found.tokens.length - 1), first);
    show(found, then);
  }

  /** The reading that is there stays; the edits that it was asked with can be changed. @param {unknown} error */
  function fail(error) {
    const there = shown !== "";
    replace(
      notice,
      failure(error),
      there && h("p", { class: "soft small" }, "Below is the last reading that worked."),
    );
    if (!there) return show(null, "");
    const list = answer.querySelector(".edits");
    list?.replaceWith(editList([], again, signal));
    bar.node.hidden = true;
  }

  /** @param {data.Prompt | null} found @param {string} then */
  function show(found, then) {
    keeping(() => {
      if (!found) {
        shown = "";
        const some = asked.edits.length + asked.rejected.length > 0;
        replace(answer, some && h("section", {}, h("h2", {}, "Edits"), editList([], again, signal)));
        return;
      }
      shown = key();
      const wrong = new Set(found.problems.map(({ edit }) => edit));
      const usable = { ...asked, edits: asked.edits.filter((_, i) => !wrong.has(i)) };
      const own = JSON.stringify([usable.text, usable.edits]);
      if (own !== continued.key) continued = { key: own, node: generation(usable, run, signal) };
      const context = { found, again, signal };
      heat.update(found);
      bar.update(found);
      replace(
        answer,
        tokens(found, again),
        prediction(context),
        acting(found, () => show(found, "")),
        heat.node,
        rankedList(context),
        byLayer(context),
        continued.node,
      );
    });
    if (!found) bar.update(null);
    bar.node.hidden = !found || !asked.edits.length;
    const target = then && answer.querySelector(`[data-at="${then}"]`);
    if (target instanceof HTMLElement) {
      target.scrollIntoView({ block: "center" });
      target.focus({ preventScroll: true });
    }
  }

  /** Draw the answer anew; what had the focus keeps it, and its place in the window. @param {() => void} draw */
  function keeping(draw) {
    /** @type {{at: string, top: number}[]} */
    const places = [];
    let element = document.activeElement;
    if (!answer.contains(element)) element = null;
    for (; element && element !== answer; element = element.parentElement)
      if (element instanceof HTMLElement && element.dataset.at)
        places.push({ at: element.dataset.at, top: element.getBoundingClientRect().top });
    draw();
    for (const { at, top } of places) {
      const now = answer.querySelector(`[data-at="${CSS.escape(at)}"]`);
      if (!(now instanceof HTMLElement)) continue;
      now.focus({ preventScroll: true });
      window.scrollBy(0, now.getBoundingClientRect().top - top);
      return;
    }
  }

  /** @type {import("./edits.js").Again} */
  function again(change, then = "") {
    Object.assign(asked, change);
    remember();
    void ask({ then });
  }

  /** @param {Event} event */
  function submit(event) {
    event.preventDefault();
    examples.remove();
    if (field.value === asked.text) {
      if (shown !== key() && !button.disabled) void ask();
      return;
    }
    /** @type {data.Edit[]} */
    const none = [];
    again({
      text: field.value,
      position: null,
      token: null,
      edits: asked.edits.reduce((kept, edit) => added(kept, { ...edit, positions: null }), none),
    });
  }

  const examples = h(
    "p",
    { class: "examples" },
    h("span", { class: "soft small" }, "Or try "),
    EXAMPLES.map((text) =>
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          onclick: /** @param {Event} event */ (event) => {
            field.value = text;
            submit(event);
          },
        },
        text,
      ),
    ),
  );
  const body = h(
    "div",
    { class: "promptpage" },
    h("h1", {}, "Prompt"),
    h(
      "p",
      { class: "lead" },
      "Type a text. The live model reads it: what each layer would predict, before and after its feed-forward, and the cells that make the difference. Switch some off, and see the prediction change.",
    ),
    h(
      "form",
      { class: "ask", onsubmit: submit },
      h("label", { for: "prompt" }, "Text"),
      field,
      h("div", { class: "controls" }, button, said),
    ),
    asked.text ? null : examples,
    notice,
    answer,
    bar.node,
  );
  void ask({ first: true });
  return { title: "Prompt", body };
}

function absent() {
  return h(
    "div",
    {},
    h("h1", {}, "Prompt"),
    h(
      "p",
      { class: "missing" },
      "These pages were exported without the model. To type a prompt and switch cells off, serve the run where its model is: ",
      h("code", {}, "keyhole serve RUN"),
    ),
  );
}

/** The text’s tokens, to choose one. @param {data.Prompt} found @param {import("./edits.js").Again} again */
function tokens(found, again) {
  const chips = found.tokens.map((piece, i) =>
    h(
      "button",
      {
        type: "button",
        class: "chip",
        "aria-pressed": String(i === found.position),
        title: `token ${i}`,
        "data-at": `chip:${i}`,
        onclick: () => again({ position: i, token: null }),
      },
      token(piece),
    ),
  );
  return h(
    "section",
    { "aria-labelledby": "tokens-title" },
    h("h2", { id: "tokens-title" }, "Tokens"),
    h("p", { class: "soft small" }, "Choose the token after which the prediction is read."),
    h("div", { class: "chips", role: "group", "aria-label": "Position" }, chips),
    sharing(),
  );
}

/** @param {import("./contribution.js").Shown} context */
function prediction({ found, again, signal }) {
  const { chosen } = found;
  const largest = Math.max(...found.prediction.concat(found.original).map(([, p]) => p ?? 0), 1e-9);
  /** @param {data.Said[]} said @param {string} side */
  const bars = (said, side) => {
    const list = saidList(said, { kind: "say", largest, format: percent, mark: new Set([chosen.piece]) });
    list.querySelectorAll("li").forEach((item, i) => {
      const button = h("button", {
        type: "button",
        class: "plain",
        title: "Measure effects on this token",
        "aria-pressed": String(said[i][0] === chosen.piece),
        "data-at": `${side}:${i}`,
        onclick: () => again({ token: said[i][0] }),
      });
      const shown = item.firstChild;
      if (shown) {
        item.insertBefore(button, shown);
        button.append(shown);
      }
    });
    return list;
  };
  const [logit, original] = [chosen.logit ?? NaN, chosen.original_logit ?? NaN];
  const shift = logit - original;
  return h(
    "section",
    { "aria-labelledby": "prediction-title" },
    h("h2", { id: "prediction-title" }, "Prediction"),
    h(
      "div",
      { class: "predictions" },
      h("div", {}, h("h3", {}, "Original"), bars(found.original, "original")),
      h(
        "div",
        {},
        h("h3", {}, found.edited ? "Edited" : "Edited (no edits yet)"),
        found.edited
          ? bars(found.prediction, "edited")
          : h("p", { class: "soft small" }, "Switch a cell off below (⊘) to see the prediction without it."),
      ),
      h("div", {}, h("h3", {}, "Edits"), editList(found.problems, again, signal)),
    ),
    h(
      "p",
      {},
      "Effects below are on ",
      token(chosen.piece, "agrees"),
      `: p ${percent(chosen.original_p)}${found.edited ? ` → ${percent(chosen.p)}` : ""}, logit ${original.toFixed(2)}${found.edited ? ` → ${logit.toFixed(2)} (${shift >= 0 ? "+" : ""}${number(shift, 2)})` : ""}. Choose another token above.`,
    ),
  );
}

/** What the parts below show, and where a cell is switched off. @param {data.Prompt} found @param {() => void} draw */
function acting(found, draw) {
  const where = h(
    "select",
    {
      id: "where",
      "data-at": "where",
      onchange: () => {
        asked.everywhere = where.value === "all";
        remember();
        draw();
      },
    },
    h("option", { value: "here", selected: !asked.everywhere }, "at this token"),
    h("option", { value: "all", selected: asked.everywhere }, "everywhere"),
  );
  return h(
    "div",
    { class: "controls acting" },
    found.edited && h("span", {}, "Shown below"),
    found.edited &&
      switched(
        "Shown below",
        [
          ["original", "original", "the pass without the edits"],
          ["edited", "with the edits", "the pass with the edits"],
        ],
        asked.pass,
        (pass) => {
          asked.pass = pass;
          remember();
          draw();
        },
      ),
    h("label", { for: "where" }, "⊘ switches off"),
    where,
  );
}
