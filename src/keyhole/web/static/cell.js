// @ts-check
/** A cell: its key on the left, its value on the right; below, similar cells and what people wrote about it. */
import { belowTop } from "./below.js";
import { inOther } from "./beside.js";
import { collecting } from "./collect.js";
import { notYet } from "./coming.js";
import * as data from "./data.js";
import { h, replace } from "./dom.js";
import { histogram } from "./histogram.js";
import { gate, labels } from "./kinds.js";
import { uses } from "./uses.js";
import { marked } from "./marks.js";
import { keep, recall } from "./memory.js";
import { written } from "./notes.js";
import { cellLink, label, preview, saidList, telling, token } from "./parts.js";
import { missing, patterns } from "./patterns.js";
import { counted, number, percent, size, whole } from "./text.js";
import { list, showWhole } from "./triggers.js";
import { trial } from "./try.js";

const SHOWN = 12;
const TRIGGERS = 25;
const PREVIEWS = 4;
const ALIGNED = "keyhole.aligned";
const LOWER = "keyhole.below";

/** @param {import("./app.js").Place} place */
export async function render({ run, layer, cell, query, signal }) {
  const [found, kinds] = await Promise.all([data.cell(layer, cell), data.kinds()]);
  const value = h("section", { class: "column valueside", "aria-label": "Value" });
  const keys = h("section", { class: "column keyside", "aria-label": "Key" });
  /** @param {data.Value | undefined} said */
  const read = (said) => {
    replace(keys, keySide(found, run, said));
    replace(value, valueSide(found, run, said, lenses));
  };
  const lenses =
    found.values.length < 2
      ? null
      : h(
          "div",
          { class: "switch", role: "group", "aria-label": "Lens" },
          found.values.map((said, i) =>
            h(
              "button",
              {
                type: "button",
                "aria-pressed": String(i === 0),
                onclick: () => {
                  lenses
                    ?.querySelectorAll("button")
                    .forEach((button, j) => button.setAttribute("aria-pressed", String(i === j)));
                  read(said);
                },
              },
              said.lens,
            ),
          ),
        );
  read(found.values[0]);
  return {
    title: found.address,
    body: h(
      "div",
      { class: "cellpage" },
      h(
        "div",
        { class: "pagehead" },
        h("h1", {}, found.address, h("span", { class: "of" }, ` layer ${data.axis.label(layer)} of ${data.axis.depth}`)),
        steps(layer, cell),
      ),
      collecting(layer, cell, run, signal),
      h("p", { class: "lead" }, summary(found)),
      labels(found, kinds),
      gate(found),
      uses(found),
      trial(found, run, query, signal),
      h(
        "div",
        { class: run.beside && !run.beside.why ? "two even" : "two" },
        keys,
        h(
          "div",
          { class: "more-about" },
          inOther(run, layer, cell, list),
          value,
          written(found, run),
          found.histogram &&
            h(
              "section",
              { "aria-labelledby": "histogram-title" },
              h("h2", { id: "histogram-title" }, "Its coefficients"),
              histogram(found.histogram, found),
            ),
          similar(
            "Similar values",
            "promote the same tokens (cosine)",
            found.similar_values ?? [],
            (cosine) => number(cosine, 2),
            signal,
            found.similar_values ? "None." : notYet("Not searched for yet", "Find them"),
          ),
          similar(
            "Similar keys",
            "fire on the same prefixes",
            found.similar_keys,
            (shared) => `${shared} shared`,
            signal,
          ),
        ),
      ),
    ),
  };
}

/** @param {number} layer @param {number} cell */
function steps(layer, cell) {
  const { axis } = data;
  /** @param {number} by */
  const href = (by) => {
    const to = data.step({ layer, cell }, by);
    return axis.href(to.layer, to.cell);
  };
  return h(
    "nav",
    { class: "steps", "aria-label": "Cells" },
    h("a", { href: href(-1), rel: "prev", title: "Previous cell (k)" }, "← previous"),
    h("a", { href: axis.href(layer) }, `layer ${axis.label(layer)}`),
    h("a", { href: href(1), rel: "next", title: "Next cell (j)" }, "next →"),
  );
}

/** The cell in one or two sentences. @param {data.Cell} cell */
function summary(cell) {
  const { stats } = cell;
  const said = cell.values[0];
  if (cell.dead)
    return [h("b", {}, "Dead: "), `no prefix of the corpus makes this key fire (${whole(stats.n)} were tried).`];
  const { firing } = stats;
  const often = firing
    ? `Its coefficient is above a tenth of its largest on ${percent(firing.share)} of the text’s prefixes (${
        firing.n === firing.of
          ? `all ${whole(firing.n)}`
          : `95 % interval ${percent(firing.lo)} to ${percent(firing.hi)}; ${whole(firing.n)} of ${whole(firing.of)} sampled`
      }). `
    : "";
  const fires = `${often}At its strongest it is ${number(stats.peak, 2)} times its root mean square. `;
  if (!said) return [fires];
  const { named } = telling(cell.triggers, new Set(said.promoted.map(([piece]) => piece)));
  const most = [fires, "Its value promotes ", token(said.promoted[0][0]), " most"];
  if (!named) return [...most, "."];
  return [
    ...most,
    `; of its ${counted(cell.triggers.length, "trigger")}, `,
    h("b", {}, named),
    ` ${named === 1 ? "is" : "are"} followed by a token that it promotes.`,
  ];
}

// The key

/** @param {data.Cell} cell @param {data.Run} run @param {data.Value | undefined} said */
function keySide(cell, run, said) {
  const largest = Math.max(...[...cell.triggers, ...cell.negative].map((trigger) => Math.abs(trigger.c)), 1e-9);
  const shaded = cell.triggers.concat(cell.negative).some((trigger) => trigger.shade !== null);
  const box = h("div", { class: "triggers" });
  const lower = h("div", { class: "triggers" });
  const ways = [
    h("button", { type: "button", onclick: () => align(true) }, "lined up"),
    h("button", { type: "button", onclick: () => align(false) }, "whole"),
  ];
  /** @param {boolean} aligned */
  const align = (aligned) => {
    for (const each of [box, lower]) {
      each.classList.toggle("aligned", aligned);
      showWhole(each, !aligned);
    }
    ways.forEach((way, i) => way.setAttribute("aria-pressed", String((i === 0) === aligned)));
    keep(ALIGNED, aligned ? "yes" : "no");
  };
  const triggers = list(cell.triggers, largest, narrow() ? 8 : TRIGGERS, said?.promoted, run);
  const negative = list(cell.negative, largest, narrow() ? 4 : 8, said?.demoted, run);
  replace(
    box,
    triggers,
    cell.negative.length > 0 && [
      h("h3", {}, run.model.gated ? "The other side" : "The negative side"),
      h(
        "p",
        { class: "soft small" },
        "Here the coefficient is below zero, so the cell writes its value with a minus: what it demotes becomes likelier.",
        run.model.gated &&
          " In a layer with a gate the sign of a cell is a convention, so a cell is read with the sign of its strongest coefficient.",
      ),
      waits(cell, run, -1, negative),
      ...negative,
    ],
  );
  const above = h("div");
  /** @type {HTMLButtonElement[]} */
  const parts = [
    h("button", { type: "button", onclick: () => choose(false) }, "triggers"),
    h("button", { type: "button", onclick: () => choose(true) }, "below the top"),
  ];
  /** @param {boolean} below */
  const choose = (below) => {
    keep(LOWER, below ? "yes" : "no");
    part(below);
  };
  /** @param {boolean} below */
  const part = (below) => {
    above.hidden = below;
    lower.hidden = !below;
    parts.forEach((button, i) => button.setAttribute("aria-pressed", String((i === 1) === below)));
    if (below && !lower.firstChild) void belowTop(lower, cell, run, largest, said?.promoted);
  };
  replace(
    above,
    cell.triggers.length > 0 &&
      h("section", { "aria-labelledby": "patterns-title" }, h("h3", { id: "patterns-title" }, "Patterns"), waits(cell, run, 1, triggers)),
    cell.triggers.length > 0 || cell.negative.length > 0 ? legend(shaded) : null,
    cell.triggers.length === 0
      ? h("p", { class: "missing" }, "Dead: no prefix of the corpus makes this key fire.")
      : null,
    box,
    run.shading || !cell.triggers.length
      ? null
      : h(
          "p",
          { class: "soft small" },
          notYet("Tokens are not shaded yet", "Shade them"),
        ),
  );
  align(recall(ALIGNED) !== "no");
  part(!cell.dead && recall(LOWER) === "yes");
  return [
    h(
      "div",
      { class: "sidehead" },
      h("h2", { class: "key" }, "Key"),
      h("p", { class: "soft small" }, "the texts that make it fire"),
      !cell.dead && h("div", { class: "switch parts", role: "group", "aria-label": "Which texts" }, parts),
      h("div", { class: "switch ways", role: "group", "aria-label": "Show the texts" }, ways),
    ),
    above,
    lower,
  ];
}

/** What one side of the key waits for. @param {data.Cell} cell @param {data.Run} run @param {1 | -1} side @param {Node[]} listed its triggers */
function waits(cell, run, side, [rows]) {
  const key = cell.patterns?.find((each) => each.side === side);
  if (key) return patterns(key, run, /** @type {HTMLElement[]} */ ([.../** @type {Element} */ (rows).children]));
  return side === 1 && missing(run);
}

/** @param {boolean} shaded */
function legend(shaded) {
  return h(
    "p",
    { class: "soft small signs" },
    h("span", {}, h("span", { class: "last" }, "last"), " token of the prefix"),
    h(
      "span",
      {},
      h("span", { class: "next" }, "next"),
      " token, ",
      h("span", { class: "next promoted" }, "promoted"),
      " by the value, ",
      h("span", { class: "next agrees" }, "its first"),
      " token",
    ),
    shaded && h("span", {}, h("span", { class: "ramp fire" }), " coefficient at each token"),
  );
}

const narrow = () => matchMedia("(max-width: 44rem)").matches;

// The value

/** @param {data.Cell} cell @param {data.Run} run @param {data.Value | undefined} said @param {HTMLElement | null} lenses */
function valueSide(cell, run, said, lenses) {
  const head = h(
    "div",
    { class: "sidehead" },
    h("h2", { class: "value" }, "Value"),
    h("p", { class: "soft small" }, "the tokens it then makes likelier"),
    lenses,
  );
  if (!said)
    return [
      head,
      h("p", { class: "missing" }, notYet("The value is not read yet", "Read it")),
    ];
  const side = run.model.gated ? "other" : "negative";
  const largest = Math.max(...[...said.promoted, ...said.demoted].map(([, logit]) => size(logit)), 1e-9);
  const follow = (/** @type {data.Trigger[]} */ triggers) =>
    new Set(triggers.map((trigger) => trigger.tokens[trigger.at + 1]).filter((next) => next !== undefined));
  return [
    head,
    h("p", { class: "soft small signs" }, h("span", {}, token("token", "agrees"), " follows a trigger on the left")),
    h(
      "div",
      { class: "sides" },
      h(
        "div",
        {},
        h("h3", {}, "Promoted"),
        saidList(said.promoted, { kind: "say", largest, shown: SHOWN, mark: follow(cell.triggers), link: true }),
      ),
      h(
        "div",
        {},
        h("h3", {}, "Demoted"),
        saidList(said.demoted, { kind: "unsay", largest, shown: SHOWN, mark: follow(cell.negative), link: true }),
      ),
    ),
    h(
      "ul",
      { class: "sentences" },
      agreement(said.agreement, "trigger"),
      said.negative_agreement?.hits
        ? agreement(said.negative_agreement, `trigger of the ${side} side`, `triggers of the ${side} side`)
        : null,
      said.rank ? h("li", {}, `What follows the top trigger has rank ${whole(said.rank)} in the value.`) : null,
      h(
        "li",
        { class: "soft" },
        `Max p ${percent(said.max_prob)}, entropy ${number(said.entropy)} nats, norm ${number(said.norm)}; lens ${said.lens}.`,
      ),
      cell.sign < 0 &&
        h(
          "li",
          { class: "soft" },
          "Read with the sign −: the value shown is −v of the model’s weights, and every coefficient −m.",
        ),
    ),
  ];
}

/** @param {data.Agreement | null} agreement @param {string} one @param {string} [many] */
function agreement(agreement, one, many) {
  return (
    agreement &&
    h("li", {}, token(agreement.token), ` follows ${agreement.hits} of ${counted(agreement.of, one, many)}.`)
  );
}

// Similar cells

/**
 * @param {string} title
 * @param {string} what
 * @param {[string, number | null][]} cells
 * @param {(measure: number | null) => string} say
 * @param {AbortSignal} signal
 * @param {string | Node[]} none what is said if there are none
 */
function similar(title, what, cells, say, signal, none = "None.") {
  const id = `${title.toLowerCase().replace(" ", "-")}-title`;
  return h(
    "section",
    { "aria-labelledby": id },
    h("h2", { id }, title),
    h("p", { class: "soft small" }, what),
    cells.length === 0 && h("p", { class: "soft" }, none),
    h(
      "ul",
      { class: "alike" },
      cells
        .slice(0, PREVIEWS)
        .map(([where, measure]) =>
          h("li", {}, link(where), h("span", { class: "soft small" }, say(measure)), preview(where, signal)),
        ),
    ),
    cells.length > PREVIEWS &&
      h(
        "ul",
        { class: "others" },
        cells
          .slice(PREVIEWS)
          .map(([where, measure]) => {
            const { layer, cell } = data.axis.find(where);
            return h("li", {}, link(where), h("span", { class: "soft small" }, ` ${say(measure)}`), label(layer, cell, signal));
          }),
      ),
  );
}

/** A cell with its marks. @param {string} where */
function link(where) {
  const { layer, cell } = data.axis.find(where);
  return h("span", {}, cellLink(layer, cell), " ", marked(layer, cell));
}
