// @ts-check
/** The overview: what was scanned, cells worth a look, the map of all cells, the paper's figures. */
import * as beside from "./beside-overview.js";
import { draw } from "./chart.js";
import { badge, capital, headline } from "./claims.js";
import { notYet } from "./coming.js";
import * as data from "./data.js";
import { h, replace, whenSeen } from "./dom.js";
import { cellMap } from "./map.js";
import { different, failure, label, line, telling, token } from "./parts.js";
import { counted, visible, whole } from "./text.js";

const CARDS = 6;
const CARD_TRIGGERS = 3;

/** @param {import("./app.js").Place} place */
export async function render({ run, signal }) {
  const { axis } = data;
  const body = h(
    "div",
    {},
    h("p", { class: "kicker" }, "What a model’s memories store"),
    h("h1", {}, "The memories of ", h("bdi", {}, visible(run.model.name))),
    h(
      "p",
      { class: "lead" },
      `The feed-forward layers of this model hold ${whole(axis.length)} memory cells. Each has a `,
      h("b", { class: "key" }, "key"),
      ", which fires on some texts, and a ",
      h("b", { class: "value" }, "value"),
      ", which then makes some next tokens more likely. Pick one.",
    ),
    run.model.made && h("p", { class: "soft" }, visible(run.model.made)),
    worth(run, signal),
    section(
      "map",
      "All cells",
      `A row is a layer, a column is a cell; or every cell is a point where its value, or its key, lies. ${run.dead ? `${counted(run.dead, "cell")} never fired.` : ""}`,
      async (place) => replace(place, await cellMap(await data.map(), axis, signal)),
      signal,
    ),
    section("scanned", "What was scanned", "", async (place) => replace(place, run.beside ? beside.scanned(run, await data.comparison(), facts) : listedFacts(run)), signal),
    section("figures", "The paper’s findings, on this model", "", (place) => figures(place, run, signal), signal),
  );
  return { title: "Overview", body };
}

/**
 * A part of the page that is filled when it comes into view. An error is shown in its place.
 * @param {string} id
 * @param {string} title
 * @param {string} lead
 * @param {(place: HTMLElement) => unknown} fill
 * @param {AbortSignal} signal
 */
function section(id, title, lead, fill, signal) {
  const place = h("div", { class: "filled" }, h("p", { class: "soft" }, "Loading …"));
  const whole = h(
    "section",
    { class: id, "aria-labelledby": `${id}-title` },
    h("h2", { id: `${id}-title` }, title),
    lead && h("p", { class: "soft" }, lead),
    place,
  );
  whenSeen(
    place,
    async () => {
      try {
        await fill(place);
      } catch (error) {
        replace(place, failure(error));
      }
    },
    signal,
  );
  return whole;
}

/** @param {data.Run} run @param {AbortSignal} signal */
function worth(run, signal) {
  const cards = run.worth.map((where) => {
    const at = data.axis.find(where);
    const inside = h("div", { class: "inside" });
    const card = h(
      "a",
      { class: "card", href: data.axis.href(at.layer, at.cell) },
      h("span", { class: "cardhead" }, h("b", {}, where), h("span", {}, `layer ${data.axis.label(at.layer)} of ${data.axis.depth}`)),
      inside,
    );
    whenSeen(
      card,
      async () => {
        try {
          replace(inside, label(at.layer, at.cell, signal), sketch(await data.cell(at.layer, at.cell)));
        } catch (error) {
          replace(inside, failure(error));
        }
      },
      signal,
    );
    return h("li", {}, card);
  });
  if (!cards.length) return null;
  cards.slice(CARDS).forEach((card) => (card.hidden = true));
  const more = h(
    "button",
    {
      type: "button",
      class: "more",
      hidden: cards.length <= CARDS,
      onclick: () => {
        cards.forEach((card) => (card.hidden = false));
        more.remove();
        cards[CARDS].querySelector("a")?.focus();
      },
    },
    `${cards.length - CARDS} more`,
  );
  return h(
    "section",
    { class: "worth", "aria-labelledby": "worth-title" },
    h("h2", { id: "worth-title" }, "Worth looking at"),
    h("ul", { class: "cards" }, cards),
    more,
  );
}

/** @param {data.Cell} cell */
function sketch(cell) {
  const said = cell.values[0];
  const top = said?.promoted[0]?.[0];
  const names = new Set(said?.promoted.map(([piece]) => piece));
  const { named, triggers } = telling(cell.triggers, names);
  const follow = new Set(triggers.map((trigger) => trigger.tokens[trigger.at + 1]));
  return [
    h("span", { class: "label key" }, "fires on"),
    h(
      "span",
      { class: "lines" },
      triggers.slice(0, CARD_TRIGGERS).map((trigger) => line(trigger, { before: 14, after: 0, top, promoted: names })),
    ),
    said && h("span", { class: "label value" }, "promotes"),
    said &&
      h(
        "span",
        { class: "promotes" },
        different(said.promoted, 6).map((piece) => token(piece, follow.has(piece) ? "agrees" : "")),
      ),
    named > 1 &&
      h(
        "span",
        { class: "soft small" },
        `It promotes what follows ${named} of its ${counted(triggers.length, "trigger")}.`,
      ),
  ];
}

/**
 * What was scanned, as names and values.
 * @param {Pick<data.Run, "model" | "corpus" | "config">} run
 * @param {string} shape its layers and cells
 * @returns {[string, string][]}
 */
function facts({ model, corpus, config }, shape) {
  return [
    ["Model", `${model.name} (${model.family})`],
    ["Cells", shape],
    ["Corpus", corpus.sources.join(", ")],
    [
      "Text",
      `${counted(corpus.documents, "document")}, ${counted(corpus.units, config.unit)}, ${counted(corpus.tokens, "token")}`,
    ],
    [
      "Scanned",
      `${whole(corpus.scanned_prefixes)} distinct prefixes; ${config.top} triggers per key${config.per === "sentence" ? ", at most one per sentence" : ""}`,
    ],
    [
      "Coefficients",
      model.gated
        ? "both signs; each cell is read with the sign of its strongest coefficient"
        : model.signed
          ? "both signs"
          : "never negative",
    ],
  ];
}

/** @param {data.Run} run */
function listedFacts(run) {
  const { axis } = data;
  const rows = facts(run, `${axis.depth} layers × ${axis.widths} = ${whole(axis.length)}`);
  if (data.part) rows.push(["This export", data.part.said]);
  return h(
    "dl",
    { class: "facts" },
    rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("bdi", {}, visible(value))))),
  );
}

/** @param {HTMLElement} place @param {data.Run} run @param {AbortSignal} signal */
async function figures(place, run, signal) {
  const [{ claims, figures, outcomes }, compared] = await Promise.all([
    data.figures(),
    run.beside ? data.comparison() : null,
  ]);
  if (!figures.length && !claims.length) {
    replace(
      place,
      h("p", { class: "missing" }, notYet("Nothing is measured yet", "Fill the tables")),
    );
    return;
  }
  replace(
    place,
    headline(claims, outcomes),
    compared && beside.claims(compared),
    figures.map((figure) => {
      const both = compared?.figures.find(({ name }) => name === figure.name);
      const plot = h("div", {
        class: "plot",
        role: "img",
        "aria-label": `Chart: ${figure.title}. ${figure.verdicts.map((verdict) => `${verdict.claim}: ${verdict.verdict}`).join(". ")}`,
      });
      whenSeen(plot, () => void draw(plot, both?.spec ?? figure.spec, signal), signal);
      const their = both?.other && h("div", { class: "plot their", role: "img", "aria-label": `Chart: ${figure.title}, in the other run` });
      if (their) whenSeen(their, () => void draw(their, both.other, signal), signal);
      return h(
        "article",
        { class: "finding" },
        h("h3", {}, visible(figure.title)),
        h(
          "div",
          { class: "beside" },
          h(
            "figure",
            {},
            plot,
            their && compared && h("h4", {}, "In ", h("bdi", {}, visible(compared.name))),
            their,
            h(
              "figcaption",
              {},
              figure.label && h("b", {}, `${figure.label}. `),
              visible(figure.caption),
              figure.note && h("i", {}, ` ${capital(figure.note)}.`),
            ),
          ),
          h(
            "div",
            { class: "aside" },
            figure.paper && [
              h("h4", {}, "The paper"),
              h("p", {}, visible(figure.paper.finding)),
              h("p", { class: "published" }, visible(figure.paper.published)),
            ],
            figure.verdicts.length > 0 && h("h4", {}, "Here"),
            figure.verdicts.map((verdict) =>
              h(
                "div",
                { class: "verdict" },
                h("p", {}, badge(verdict.verdict), ` ${capital(verdict.claim)}.`),
                h("p", { class: "soft small" }, `${capital(verdict.why)}.`),
                verdict.effect && h("p", { class: "soft small" }, `Effect ${visible(verdict.effect.said)}.`),
                compared && beside.there(compared, verdict.claim),
              ),
            ),
          ),
        ),
      );
    }),
  );
}
