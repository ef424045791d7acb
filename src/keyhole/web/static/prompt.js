// @ts-check
/** A prompt, read by the live model: what each layer predicts, which cells contribute, and what changes if they are switched off. */
import * as data from "./data.js";
import { h, replace, whenSeen } from "./dom.js";
import { added, asked, editList, remember } from "./edits.js";
import { bar, cellLink, failure, label, saidList, token } from "./parts.js";
import { number, percent, size } from "./text.js";

const SHOWN = 3;
const EXAMPLES = [
  "The capital of France is",
  "We hold these truths to be self-evident, that all men are created",
  "Do unto others as you would have them do unto",
];

/** @param {import("./app.js").Place} place */
export async function render({ run, query, signal }) {
  if (!run.live) return { title: "Prompt", body: absent() };
  const said = h("p", { class: "soft", role: "status" });
  const answer = h("div", { class: "answer" });
  const field = h("textarea", {
    id: "prompt",
    rows: 3,
    spellcheck: "false",
    placeholder: "The capital of France is",
    onkeydown: /** @param {KeyboardEvent} event */ (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) read(event);
    },
  });
  field.value = query.get("q") ?? asked.text;
  const button = h("button", { type: "submit" }, "Read");
  let turn = 0;

  async function ask() {
    remember();
    const mine = ++turn;
    button.disabled = true;
    answer.setAttribute("aria-busy", "true");
    try {
      const { loaded } = await data.status();
      said.textContent = loaded ? "Reading …" : "Loading the model: the first time takes a while …";
      const { text, position, token, edits } = asked;
      const found = /** @type {data.Prompt} */ (await data.post("api/prompt", { text, position, token, edits }));
      if (mine !== turn || signal.aborted) return;
      said.textContent = "";
      asked.position = found.position;
      replace(answer, result(found, again, signal));
    } catch (error) {
      if (mine !== turn) return;
      said.textContent = "";
      replace(answer, failure(error), asked.edits.length > 0 && editList(again, signal));
    } finally {
      if (mine === turn) {
        button.disabled = false;
        answer.removeAttribute("aria-busy");
      }
    }
  }

  /** Change what is asked for, and ask. @param {Partial<typeof asked>} change */
  function again(change) {
    Object.assign(asked, change);
    void ask();
  }

  /** @param {Event} event */
  function read(event) {
    event.preventDefault();
    examples.remove();
    const fresh = field.value !== asked.text;
    again(
      fresh
        ? {
            text: field.value,
            position: null,
            token: null,
            edits: asked.edits.reduce(
              (kept, edit) => added(kept, { ...edit, positions: null }),
              /** @type {data.Edit[]} */ ([]),
            ),
          }
        : {},
    );
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
            read(event);
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
      { class: "ask", onsubmit: read },
      h("label", { for: "prompt" }, "Text"),
      field,
      h("div", { class: "controls" }, button, said),
    ),
    asked.text ? null : examples,
    answer,
  );
  if (asked.text && field.value === asked.text) void ask();
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

/**
 * @param {data.Prompt} found
 * @param {import("./edits.js").Again} again
 * @param {AbortSignal} signal
 */
function result(found, again, signal) {
  const chips = found.tokens.map((piece, i) =>
    h(
      "button",
      {
        type: "button",
        class: "chip",
        "aria-pressed": String(i === found.position),
        title: `token ${i}`,
        onclick: () => again({ position: i, token: null }),
      },
      token(piece),
    ),
  );
  const { chosen } = found;
  const largest = Math.max(...found.prediction.concat(found.original).map(([, p]) => p ?? 0), 1e-9);
  /** @param {data.Said[]} said */
  const bars = (said) => {
    const list = saidList(said, { kind: "say", largest, format: percent, mark: new Set([chosen.piece]) });
    list.querySelectorAll("li").forEach((item, i) => {
      const button = h("button", {
        type: "button",
        class: "plain",
        title: "Measure effects on this token",
        "aria-pressed": String(said[i][0] === chosen.piece),
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
  return [
    h(
      "section",
      { "aria-labelledby": "tokens-title" },
      h("h2", { id: "tokens-title" }, "Tokens"),
      h("p", { class: "soft small" }, "Choose the token after which the prediction is read."),
      h("div", { class: "chips", role: "group", "aria-label": "Position" }, chips),
    ),
    h(
      "section",
      { "aria-labelledby": "prediction-title" },
      h("h2", { id: "prediction-title" }, "Prediction"),
      h(
        "div",
        { class: "predictions" },
        h("div", {}, h("h3", {}, "Original"), bars(found.original)),
        h(
          "div",
          {},
          h("h3", {}, found.edited ? "Edited" : "Edited (no edits yet)"),
          found.edited
            ? bars(found.prediction)
            : h("p", { class: "soft small" }, "Switch a cell off below (⊘) to see the prediction without it."),
        ),
        h("div", {}, h("h3", {}, "Edits"), editList(again, signal)),
      ),
      h(
        "p",
        {},
        "Effects below are on ",
        token(chosen.piece, "agrees"),
        `: p ${percent(chosen.original_p)}${found.edited ? ` → ${percent(chosen.p)}` : ""}, logit ${original.toFixed(2)}${found.edited ? ` → ${logit.toFixed(2)} (${shift >= 0 ? "+" : ""}${number(shift, 2)})` : ""}. Choose another token above.`,
      ),
    ),
    h(
      "section",
      { "aria-labelledby": "layers-title" },
      h("h2", { id: "layers-title" }, "Layer by layer"),
      layers(found, again, signal),
    ),
  ];
}

/** @param {data.Prompt} found @param {import("./edits.js").Again} again @param {AbortSignal} signal */
function layers(found, again, signal) {
  const rows = h("ol", { class: "layers" });
  const draw = () => {
    const largest = Math.max(
      ...found.layers.flatMap((each) => each[asked.by].map((cell) => size(measure(cell)))),
      1e-9,
    );
    replace(
      rows,
      found.layers.map((each) => {
        const [before, after] = [each.before[0], each.after[0]];
        const cells = each[asked.by].map((cell, i) =>
          contribution(each.layer, cell, largest, found, again, i >= SHOWN, signal),
        );
        const more = h(
          "button",
          {
            type: "button",
            class: "more",
            "aria-label": `All cells of layer ${data.axis.label(each.layer)}`,
            onclick: () => {
              cells.forEach((cell) => (cell.hidden = false));
              more.remove();
            },
          },
          `+${cells.length - SHOWN}`,
        );
        return h(
          "li",
          { class: before[0] === after[0] ? null : "changed" },
          h("a", { class: "address", href: data.axis.href(each.layer) }, data.axis.layers[each.layer].layer),
          h("div", { class: "beforeafter" }, guess(each.before), h("span", { class: "soft" }, "→"), guess(each.after)),
          h("ul", { class: "contributions" }, cells),
          cells.length > SHOWN && more,
        );
      }),
    );
  };
  /** @param {"effective" | "strongest"} by @param {string} text @param {string} explain */
  const choose = (by, text, explain) =>
    h(
      "button",
      {
        type: "button",
        title: explain,
        "aria-pressed": String(asked.by === by),
        onclick: /** @param {Event} event */ (event) => {
          asked.by = by;
          /** @type {Element} */ (event.currentTarget).parentElement
            ?.querySelectorAll("button")
            .forEach((button) => button.setAttribute("aria-pressed", String(button === event.currentTarget)));
          draw();
        },
      },
      text,
    );
  const where = h(
    "select",
    { id: "where", onchange: () => (asked.everywhere = where.value === "all") },
    h("option", { value: "here", selected: !asked.everywhere }, "at this token"),
    h("option", { value: "all", selected: asked.everywhere }, "everywhere"),
  );
  draw();
  return h(
    "div",
    {},
    h(
      "div",
      { class: "controls" },
      h("span", {}, "Cells by"),
      h(
        "span",
        { class: "switch", role: "group", "aria-label": "Cells by" },
        choose("effective", "effect", "on the chosen token’s logit"),
        choose("strongest", "strength", "|m|·‖v‖"),
      ),
      h("label", { for: "where" }, "⊘ switches off"),
      where,
    ),
    rows,
  );
}

/** @param {data.Contribution} cell */
const measure = (cell) => (asked.by === "effective" ? cell.effect : cell.strength);

/** What a layer predicts: the first token; the others are in its title. @param {data.Said[]} said */
function guess(said) {
  const [piece, p] = said[0];
  const shown = token(piece);
  shown.title = said.map(([piece, p]) => `${piece} ${percent(p)}`).join("\n");
  return h("span", { class: "guess" }, shown, h("span", { class: "num soft" }, percent(p)));
}

/**
 * @param {number} layer
 * @param {data.Contribution} cell
 * @param {number} largest
 * @param {data.Prompt} found
 * @param {import("./edits.js").Again} again
 * @param {boolean} hidden
 * @param {AbortSignal} signal
 */
function contribution(layer, cell, largest, found, again, hidden, signal) {
  const positions = () => (asked.everywhere ? null : [found.position]);
  const edited = asked.edits.some(
    (edit) =>
      edit.layer === layer &&
      edit.cell === cell.cell &&
      (edit.positions === null || edit.positions.includes(found.position)),
  );
  const off = h(
    "button",
    {
      type: "button",
      class: "plain off",
      "aria-label": `Switch off ${data.axis.address(layer, cell.cell)}`,
      title: "Switch off",
      disabled: edited,
      onclick: () => again({ edits: added(asked.edits, { layer, cell: cell.cell, scale: 0, positions: positions() }) }),
    },
    "⊘",
  );
  const value = measure(cell) ?? 0;
  return h(
    "li",
    {
      hidden,
      class: edited ? "edited" : null,
      title: `m ${number(cell.m)}, strength ${number(cell.strength)}, effect ${number(cell.effect)}`,
    },
    cellLink(layer, cell.cell),
    says(layer, cell, signal),
    bar(Math.abs(value) / largest, value < 0 ? "unsay" : asked.by === "effective" ? "say" : "fire"),
    h("span", { class: "num soft" }, (value > 0 && asked.by === "effective" ? "+" : "") + number(value, 2)),
    off,
    label(layer, cell.cell, signal),
  );
}

/** What the cell writes here: the first token that its value promotes; the first it demotes if the coefficient is negative. @param {number} layer @param {data.Contribution} cell @param {AbortSignal} signal */
function says(layer, cell, signal) {
  const place = h("span", { class: "says" });
  whenSeen(
    place,
    async () => {
      const [said] = (await data.cell(layer, cell.cell).catch(() => null))?.values ?? [];
      const piece = ((cell.m ?? 0) < 0 ? said?.demoted : said?.promoted)?.[0]?.[0];
      if (piece !== undefined) replace(place, token(piece));
    },
    signal,
  );
  return place;
}
